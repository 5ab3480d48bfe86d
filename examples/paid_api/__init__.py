"""A paid API to try jobs on: each call is counted, and would be charged for."""

"""The definition of a job by the user: its steps, their functions, and its changes between runs."""

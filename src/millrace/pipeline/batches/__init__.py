"""Batches of providers: many questions at once, answered within a day, at half the price. Pure."""

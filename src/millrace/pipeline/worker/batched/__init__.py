"""Turns of workers on steps that ask in batches of a provider."""

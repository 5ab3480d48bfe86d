"""The live page of a workspace: what runs, what waits and why, from its state at rest."""

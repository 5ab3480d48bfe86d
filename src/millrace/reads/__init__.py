"""Coordinated reads: many journals, one consistent checkpoint over all of them and all members."""

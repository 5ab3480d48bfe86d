"""A ledger that is a log: numbered records, snapshots, and epochs that fence old owners off."""

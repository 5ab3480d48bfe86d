"""The ledger of the embedded broker: one SQLite file, its tables, the mark of its last commit."""

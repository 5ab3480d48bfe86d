"""The default broker: rows in segment files, everything else in one SQLite ledger, no service.

`EmbeddedBroker.open(folder)` in `broker`; the ledger lies behind `ledger.Ledger`.
"""

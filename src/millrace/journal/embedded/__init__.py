"""The default broker: rows in segment files, everything else in one SQLite ledger, no service.

`EmbeddedBroker.open(folder)` is in `embedded_broker`; the ledger's port is in `ledger.ledger_port`.
"""

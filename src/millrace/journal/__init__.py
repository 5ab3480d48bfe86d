"""Journals: named, append-only, typed logs whose rows rest in order and are read by offset.

Pure: records, clocks, sequencing, committed, names, values, contract, book,
deciding, reading. What serves
journals is a broker: `memory` keeps nothing, `embedded` keeps rows in segment files and one ledger.
"""

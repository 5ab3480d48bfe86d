"""Journals: named, append-only, typed logs whose rows rest in order and are read by offset.

Pure: records, clocks, names, sequencing, committed, values, contract, book, deciding, publishing,
reading. What serves journals is a broker: `memory` keeps nothing, `embedded` keeps rows in segment
files and one ledger. Both decide on a book (`base`, `looking`, `turns`) and differ in storing.
"""

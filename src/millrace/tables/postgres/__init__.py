"""Tables of PostgreSQL: rows that are committed together with their place, and rows read as Arrow.

All of it goes through ADBC: rows are copied as Arrow, in the transaction that moves the place.
"""

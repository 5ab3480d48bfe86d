"""Journals: named, append-only, typed logs whose rows are read by offset.

`api` has the calls of users, `broker` the port of every broker. `core` is pure: it decides what
each request does to the book of a broker. `memory`, `embedded` and `kafka` differ in where rows are
stored; `book_reader`, `book_broker` and `group_commit` are what they share.
"""

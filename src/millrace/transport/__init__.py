"""Between hosts: agents serve a host's folder over Arrow Flight, clients fetch from them.

`agent` has a host's agent and its clients, `owner` the owner of journals and its clients, `members`
the members of coordinated reads, `streams` the live reads, and `flight` what all of them share.
Only this package imports `pyarrow.flight`.
"""

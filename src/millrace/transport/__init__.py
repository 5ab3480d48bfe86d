"""Between hosts: agents serve a host's folder over Arrow Flight, clients fetch from them.

`launch` starts a host's agent, `agent` is its process, `server` what it answers; `client` is the
other end. Only this package imports `pyarrow.flight`.
"""

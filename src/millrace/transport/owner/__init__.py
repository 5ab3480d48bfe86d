"""One owner serves the journals of a workspace; every other process joins it.

`journal_owner` opens the journals and `owner_server` serves them; `election` decides which process
does. `joined_broker` is the broker of every process, over `owner_calls` and `owner_links`.
`broker_calls` derives what travels from the contract.
"""

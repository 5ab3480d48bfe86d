"""Live reads: followers of one journal share one physical read of it, in the owner.

`ring` decides who reads and who waits, `sharing` cuts what was read into each one's rows, `asking`
and `labels` say which journals and rows a follower wants; all of them are pure. `rings` and
`following` carry it out.
"""

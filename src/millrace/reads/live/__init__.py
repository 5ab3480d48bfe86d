"""Live reads: followers of one journal share one physical read of it, in the owner.

`ring` decides which subscriber reads and which ones wait. `range_rows` cuts the rows of a read into
the rows of each subscriber. `follow_requests` says which journals and rows a follower wants. These
are pure. `live_reads` and `follower` do the work.
"""

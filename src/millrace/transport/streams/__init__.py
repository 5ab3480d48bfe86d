"""Live reads between processes: a follower's rows come over one Flight stream from the owner.

`messages` says what travels and is pure, `serving` is the owner's half, `following` the other's.
"""

"""Live reads between processes: a follower's rows come over one Flight stream from the owner.

`follow_messages` is pure, `follow_server` is the owner's half, `follow_client` the follower's.
"""

"""One owner serves the journals of a workspace, everyone else joins it.

`owner` holds a workspace's journals and serves them (`server`); `electing` decides who that is;
`joined` is the broker that everyone uses, over `calling` and `links`. What is said on the way is in
`calls` and `shapes`, both pure.
"""

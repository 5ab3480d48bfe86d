"""Workers: lease units, read ahead, call, and publish rows and progress in one transaction.

`worker` takes units, `shop` sets up what a turn needs, `cheap` and `expensive` are the two kinds of
turns, and `publishing` does the one thing that counts.
"""

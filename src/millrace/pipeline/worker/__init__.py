"""Workers: lease units, read ahead, call, and publish rows and progress in one transaction.

`worker` takes units, `turn_setup` prepares a turn, `cheap_turn` and `expensive_turn` are the two
kinds of turns, and `publisher` publishes their results.
"""

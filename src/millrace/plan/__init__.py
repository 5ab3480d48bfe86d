"""The plan of a dataset.

`nodes` are its operators, `builders` make them from the arguments of a user's call, and `planner`
cuts a plan into stages. Pure: nothing here reads, writes or runs.
"""

"""The operators of a plan, one in a file. Each is a value: its inputs and its arguments."""

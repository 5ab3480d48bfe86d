"""What a job remembers of each key: its rows in columns, their changes, and the work on them."""

"""How work and functions reach Spark's tasks, and the jobs that run them."""

"""What the user writes down: a job, its steps, their functions; and whether it changed."""

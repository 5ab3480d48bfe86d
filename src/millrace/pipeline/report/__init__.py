"""Reports of a job, from durable records: its counts, as text, JSON, a page and pictures."""

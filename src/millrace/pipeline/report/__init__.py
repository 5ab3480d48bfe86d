"""What a job did, from durable records: its counts, as text, JSON, a page and pictures."""

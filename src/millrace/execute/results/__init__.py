"""Results of queries: files in a folder or a bucket, and rows before the query is done."""

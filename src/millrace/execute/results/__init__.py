"""Results of queries as files in a folder or a bucket."""

"""DataFrames in and out: their rows into durable files, and durable rows as DataFrames."""

"""Programs as PySpark's tutorials write them. Only their first import changes for Millrace."""

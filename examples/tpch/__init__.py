"""The 22 TPC-H queries as Millrace datasets, beside the same queries as SQL."""

"""The functions, casts and operators of Spark SQL, as DuckDB calculates them."""

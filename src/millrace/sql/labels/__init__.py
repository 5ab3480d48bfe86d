"""The names that Spark gives to columns without AS."""

"""Functions of users as operators: calls in expressions, and over groups of rows."""

"""Functions that users made with PySpark: what they are, and how tasks call them."""

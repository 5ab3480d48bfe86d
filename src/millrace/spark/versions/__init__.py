"""The versions of PySpark that Millrace runs on: what each has, and errors for what it lacks."""

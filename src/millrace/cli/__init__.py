"""The command line: `millrace --help`."""

"""Functions of text, bytes and bits, by subject."""

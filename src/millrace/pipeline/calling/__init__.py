"""The user's function: made once in a process, called for each batch, checked by its schema."""

"""What a journal is and what each request to it does, as values and decisions. Pure."""

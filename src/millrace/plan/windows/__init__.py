"""Windows of calls: the functions, typed, and the frames that they run over."""

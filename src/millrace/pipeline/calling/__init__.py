"""The user's function: made once in a process, called for each batch, held to what it promises."""

"""Input files: which there are, how they are cut into map tasks, how a task reads its part."""

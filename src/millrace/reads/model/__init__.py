"""What a coordinated read is made of: checkpoints, frontier, order, routing. Pure."""

"""What paid calls cost, how fast they may come, and how they fail. Pure."""

"""From a plan to stages: pushes filters down, inserts exchanges, cuts stages and adapts them."""

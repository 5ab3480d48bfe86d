"""What stands before every Flight server: limits and the token, checked before Flight reads."""

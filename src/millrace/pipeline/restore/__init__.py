"""States of keys as they were published, restored from snapshots and changes."""

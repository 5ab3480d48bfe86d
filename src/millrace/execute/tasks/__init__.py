"""What is known of the map tasks of a stage: what they report, and which are finished."""

"""A job's journals: made, counted, set back and thinned out, by any process, without Spark."""

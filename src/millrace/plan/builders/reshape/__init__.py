"""Rows in another shape: grouping sets, pivots, unpivots, and values in place of others."""

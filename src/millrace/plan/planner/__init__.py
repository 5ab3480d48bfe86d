"""From a plan to stages.

Pushes filters down, prunes columns, inserts exchanges, cuts the plan into stages, and adapts stages
to measured sizes.
"""

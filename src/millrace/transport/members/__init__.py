"""Members of coordinated reads over Arrow Flight.

A member serves its slice to the session and its queue to every slice. See docs/reads-members.md.
"""

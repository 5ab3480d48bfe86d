"""What makes a user's function the same work: its code, the values it holds, the text it came from.

`docs/design/017-identity-of-functions.md` says what is covered, how, and what is outside.
"""

"""What makes work the same, so that its finished results can be reused.

Users' functions by the code and the values they reach (`functions`, with `code`, `value_identity`,
`reflection`, `libraries` and the text of modules in `sources`), map tasks by `fingerprint`, hosts
by `versions`, rows by `schemas`. `docs/design/017-identity-of-functions.md` says what is covered,
how, and what is not.
"""

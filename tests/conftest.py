"""What holds for all tests: none of them is judged by how long it takes."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("millrace", deadline=None)
settings.load_profile("millrace")

"""What holds for all tests: none of them is judged by how long it takes."""

from __future__ import annotations

from hypothesis import settings
from tests.laws import examples

settings.register_profile("millrace", deadline=None, max_examples=examples(100))
settings.load_profile("millrace")

"""Shows the examples of docstrings as code: the site's reader of docstrings knows `Examples:`."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Reads `Example:`, as our docstrings have it, as what it knows."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:  # noqa: ANN401 - griffe's
        """Change the heading of examples, once a docstring is read."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"(?m)^Example:$", "Examples:", obj.docstring.value)

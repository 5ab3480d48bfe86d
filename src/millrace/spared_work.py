"""Work that Spark's Python processes are spared: many of them live for a second.

Invariant: what is left out changes no answer. Garbage is collected, and pandas is there for whoever
asks for it.
"""

from __future__ import annotations

import gc
import sys
from importlib.machinery import ModuleSpec
from typing import Final

import pyarrow as pa

_loaded_modules: Final[dict[str, int]] = {}


def spare_collections() -> None:
    """At the start of a task: leave out of garbage collections what modules hold.

    Spark's workers collect after each task, and walk through all objects of our modules for it:
    40 ms of each task. Here the collection after the task before has just ended, so what is alive
    stays. Repeated only when modules were loaded since.
    """
    loaded = len(sys.modules)
    if loaded != _loaded_modules.get("frozen"):
        _loaded_modules["frozen"] = loaded
        gc.freeze()


def spare_pandas() -> None:
    """In a process that plans for Spark: keep pyarrow from loading pandas at the first list.

    It looks for pandas once, to tell lists from pandas' own objects, which takes 0.2 s. None of
    those come here; `to_pandas` looks again.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is None or not spec.name.startswith("pyspark.") or "pandas" in sys.modules:
        return
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(finder)


class _NoPandas:
    """Says that there is no pandas."""

    def find_spec(self, name: str, *_where: object) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        if name == "pandas":
            raise ModuleNotFoundError(name)
        return None

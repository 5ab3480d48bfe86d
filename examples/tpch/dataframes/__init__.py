"""TPC-H's queries as PySpark DataFrames, as people write them.

The programs know nothing of Millrace. `programs("millrace")` has the same text with other imports:
`from pyspark.sql import functions` becomes `from millrace import functions`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final

HERE: Final = Path(__file__).parent
IMPORT: Final = "from pyspark.sql import "


class Programs:
    """The queries by number, and the tables that they are written over."""

    def __init__(self, package: str) -> None:
        names: dict[str, Any] = {}
        for name in ("frames", "first_queries", "last_queries"):
            names |= vars(_module(name, package))
        self.frames = names["Frames"]
        self.queries = {number: names[f"q{number}"] for number in range(1, 23)}

    def query(self, number: int, spark: object, folder: Path) -> Any:  # noqa: ANN401 - of the package
        """A query over the files of a folder: a DataFrame of Spark, or a dataset."""
        return self.queries[number](self.frames(spark, folder))


@cache
def programs(package: str = "pyspark.sql") -> Programs:
    """The queries with their imports from a package."""
    return Programs(package)


def _module(name: str, package: str) -> ModuleType:
    text = (HERE / f"{name}.py").read_text(encoding="utf-8")
    assert IMPORT in text
    changed = text.replace(IMPORT, f"from {package} import ")
    if package == "millrace":
        changed = changed.replace("import DataFrame", "import Dataset as DataFrame")
    module = ModuleType(f"{name}_of_{package.replace('.', '_')}")
    exec(compile(changed, f"{name}.py", "exec"), module.__dict__)  # noqa: S102 - programs of ours
    return module

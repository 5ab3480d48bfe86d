"""The queries, by number. Each is a function from the tables to a dataset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from examples.tpch.queries.q01 import q1
from examples.tpch.queries.q02 import q2
from examples.tpch.queries.q03 import q3
from examples.tpch.queries.q04 import q4
from examples.tpch.queries.q05 import q5
from examples.tpch.queries.q06 import q6
from examples.tpch.queries.q07 import q7
from examples.tpch.queries.q08 import q8
from examples.tpch.queries.q09 import q9
from examples.tpch.queries.q10 import q10
from examples.tpch.queries.q11 import q11
from examples.tpch.queries.q12 import q12
from examples.tpch.queries.q13 import q13
from examples.tpch.queries.q14 import q14
from examples.tpch.queries.q15 import q15
from examples.tpch.queries.q16 import q16
from examples.tpch.queries.q17 import q17
from examples.tpch.queries.q18 import q18
from examples.tpch.queries.q19 import q19
from examples.tpch.queries.q20 import q20
from examples.tpch.queries.q21 import q21
from examples.tpch.queries.q22 import q22
from examples.tpch.tables import Tables

from millrace import Dataset

Query = Callable[[Tables], Dataset]

_ALL: Final = (
    *(q1, q2, q3, q4, q5, q6, q7, q8, q9, q10, q11),
    *(q12, q13, q14, q15, q16, q17, q18, q19, q20, q21, q22),
)
QUERIES: Final[dict[int, Query]] = {number + 1: query for number, query in enumerate(_ALL)}

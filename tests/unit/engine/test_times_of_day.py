"""A time of day without a date is another instant each day, so no saved row may depend on it."""

import pytest
from tests.unit.engine.memory_kit import of

from millrace.errors import MillraceError


@pytest.mark.parametrize("text", ["12:30", "T12:30:05", "12:30:05.5 Europe/Berlin"])
def test_a_time_of_day_is_not_cast_to_the_day_of_the_run(text: str) -> None:
    read = of(s=[text]).select("CAST(s AS TIMESTAMP) AS t")
    with pytest.raises(MillraceError, match="has no date"):
        read.to_arrow()


def test_a_time_with_its_date_is_cast() -> None:
    read = of(s=["2024-05-01 12:30"]).select("CAST(s AS TIMESTAMP) AS t")
    assert str(read.to_arrow()["t"][0].as_py()).startswith("2024-05-01 12:30")

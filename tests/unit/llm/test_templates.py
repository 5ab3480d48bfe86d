"""Templates of questions."""

from __future__ import annotations

import pytest

from millrace.errors import UserError
from millrace.llm.templates import template_of

COLUMNS = ("title", "n", "tags")


def test_a_template_shows_values_of_columns() -> None:
    template = template_of("prompt('p')", "template", "{title} {{n}} {n} {tags}", COLUMNS)

    assert template.columns == ("title", "n", "tags")
    row = {"title": "{n} is mine", "n": 7, "tags": ["a", "ü"]}
    assert template.of(row) == '{n} is mine {n} 7 ["a", "ü"]'
    assert template.of({"title": None, "n": True, "tags": None}) == " {n} true "


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{titel}", "shows {titel}, which is no column"),
        ("{title.__class__}", "is no column"),
        ("{title[0]}", "is no column"),
        ("{}", "is no column"),
        ("{n:03d}", "has a format behind column 'n'"),
        ("{n!r}", "found: !r"),
        ("{title", "is no template"),
        ("", "template is ''"),
    ],
)
def test_what_shows_no_column_is_refused(text: str, why: str) -> None:
    with pytest.raises(UserError) as refused:
        template_of("prompt('p')", "template", text, COLUMNS)
    assert why in str(refused.value)
    assert "to fix:" in str(refused.value)


def test_a_near_name_is_offered() -> None:
    with pytest.raises(UserError, match="did you mean title"):
        template_of("prompt('p')", "template", "{titel}", COLUMNS)

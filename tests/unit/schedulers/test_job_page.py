"""Links and commands that show a job."""

from __future__ import annotations

import shlex

import pytest

from millrace.errors import UserError
from millrace.schedulers.job_page import check_ui_url, page_of


def test_without_served_pages_the_command_saves_the_page_of_the_job() -> None:
    words = shlex.split(page_of("/my mill", "a job; rm", None))

    assert words == ["millrace", "ui", "export", "/my mill", "a job; rm"]


@pytest.mark.parametrize(
    "url", ["https://mill.example.com/pages", "https://mill.example.com/pages/"]
)
def test_a_link_goes_to_the_job_under_the_given_address(url: str) -> None:
    assert check_ui_url(url) == url
    assert page_of("/mill", "a/b c", url) == "https://mill.example.com/pages/jobs/a%2Fb%20c"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mill.example.com", "found: 'mill.example.com'"),
        ("file:///mill", "to fix: give a url"),
        ("https://mill.example.com/?token=abc", "which logs would show"),
        ("https://me:abc@mill.example.com", "which logs would show"),
    ],
)
def test_what_is_no_address_or_would_show_a_token_is_refused(url: str, said: str) -> None:
    with pytest.raises(UserError, match=said) as error:
        check_ui_url(url)

    assert "abc" not in str(error.value)

"""Addresses of databases: what they are understood as, and that their passwords are not shown."""

from __future__ import annotations

import pickle
from urllib.parse import parse_qs, urlsplit

import pytest

from millrace.errors import UserError
from millrace.storage.storage_options import apart, put_back
from millrace.tables.postgres.database_address import database_address

SECRET = "hunter2/@:%"  # noqa: S105 - of nobody


def given_to_libpq(url: str, password: object = None) -> dict[str, list[str]]:
    made = database_address("a test", url, password)  # type: ignore[arg-type]
    return parse_qs(urlsplit(made.for_libpq()).query)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:hunter2%2F%40%3A%25@h:5432/shop", "postgresql://me@h:5432/shop"),
        (
            "postgres://me@h/shop?password=hunter2/%40%3A%25&sslmode=require",
            "postgresql://me@h/shop?sslmode=require",
        ),
        (
            "postgresql://me:hunter2%2F%40%3A%25@a:1,b:2/x?target_session_attrs=read-write",
            "postgresql://me@a:1,b:2/x?target_session_attrs=read-write",
        ),
        ("postgresql://me:hunter2%2F%40%3A%25@[::1]:7/x", "postgresql://me@[::1]:7/x"),
    ],
)
def test_a_password_reaches_libpq_and_is_shown_nowhere(url: str, shown: str) -> None:
    made = database_address("a test", url, None)

    assert str(made) == made.url == shown
    assert "hunter2" not in repr(made) + made.without_secrets(f"failed: {SECRET}")
    assert given_to_libpq(url)["password"] == [SECRET]
    assert pickle.loads(pickle.dumps(made)).for_libpq() == made.for_libpq()


def test_an_address_without_a_password_leaves_it_to_libpq() -> None:
    assert "password" not in given_to_libpq("postgresql://me@h/shop")


def test_a_function_gives_the_password_of_each_connection() -> None:
    passwords = iter(["one", "two"])
    made = database_address("a test", "postgresql://me@h/shop", lambda: next(passwords))

    assert [parse_qs(urlsplit(made.for_libpq()).query)["password"] for _ in range(2)] == [
        ["one"],
        ["two"],
    ]


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("jdbc:postgresql://h/x", "one for JDBC"),
        ("mysql://me:hunter2@h/x", "not one of PostgreSQL"),
        ("host=h password=hunter2", "not one of PostgreSQL"),
        ("postgresql://me:hunter2/more@h/x", "cannot be read"),
        ("postgresql://me:hunter2?x@h/x", "cannot be read"),
        ("postgresql://me:1234/hunter2@h/x", "cannot be read"),
        ("", "the address is a str"),
    ],
)
def test_an_address_that_is_none_is_refused_without_showing_it(url: str, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint) as refused:
        database_address("a test", url, None)

    assert "hunter2" not in str(refused.value)


def test_a_password_is_not_in_what_spark_may_write_down() -> None:
    made = database_address("a test", "postgresql://me:hunter2@h/shop", None)

    with apart() as options:
        shipped = pickle.dumps(made)
    assert b"hunter2" not in shipped
    with put_back(options):
        again = pickle.loads(shipped)
    assert again.for_libpq() == made.for_libpq()

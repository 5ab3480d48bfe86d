"""Calls to stores end within a limit, and reads are made again after errors that may pass."""

from __future__ import annotations

import time

import pytest

from millrace.config import Config
from millrace.errors import S3Unreachable
from millrace.storage.limited_calls import LimitedCalls

CONFIG = Config(gone_after="5s", s3_tries_max=3)


class Answers:
    """Gives what it was made with, one a call; an error is raised."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)

    def __call__(self) -> object:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_read_is_made_again_after_an_answer_that_was_cut_off() -> None:
    answers = Answers(OSError("cut off"), OSError("cut off"), "all of it")

    assert LimitedCalls("s3://b", CONFIG).repeated(answers) == "all of it"


def test_a_read_that_fails_each_time_fails_with_the_last_error() -> None:
    answers = Answers(OSError("1"), OSError("2"), OSError("3"), "too late")

    with pytest.raises(OSError, match="3"):
        LimitedCalls("s3://b", CONFIG).repeated(answers)
    assert answers.answers == ["too late"]


@pytest.mark.parametrize("refusal", [FileNotFoundError("none"), PermissionError("no")])
def test_a_refusal_is_an_answer(refusal: OSError) -> None:
    answers = Answers(refusal, "not asked")

    with pytest.raises(type(refusal)):
        LimitedCalls("s3://b", CONFIG).repeated(answers)
    assert answers.answers == ["not asked"]


def test_a_write_is_made_once() -> None:
    answers = Answers(OSError("cut off"), "not asked")

    with pytest.raises(OSError, match="cut off"):
        LimitedCalls("s3://b", CONFIG)(answers)
    assert answers.answers == ["not asked"]


def test_a_read_that_hangs_is_made_again() -> None:
    calls = LimitedCalls("abfss://b", Config(gone_after="2s", s3_tries_max=3))
    waits = [10.0, 0.0]

    def read() -> str:
        time.sleep(waits.pop(0))
        return "all of it"

    assert calls.repeated(read) == "all of it"


def test_all_tries_together_end_within_the_limit() -> None:
    calls = LimitedCalls("s3://b", Config(gone_after="200ms", s3_tries_max=3))

    with pytest.raises(S3Unreachable, match="200 ms"):
        calls.repeated(lambda: time.sleep(2))

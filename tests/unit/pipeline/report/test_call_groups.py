"""What the calls of a step cost by model, and their errors by class and text."""

from __future__ import annotations

import json

from tests.unit.pipeline.played_kit import JOB, Played

from millrace.journal.memory import MemoryBroker
from millrace.pipeline.core import hops
from millrace.pipeline.core.job_events import JobEventKind
from millrace.pipeline.paid import charges
from millrace.pipeline.paid.call_records import Totals
from millrace.pipeline.paid.charges import CallCharge
from millrace.pipeline.paid.spend import NANO_USD, CallSpend, Spend
from millrace.pipeline.report.call_groups import GROUPS_MAX, CallGroup, merged
from millrace.pipeline.report.job_report import StepReport, dollars, spending_text
from millrace.pipeline.run.job_status import job_status, list_jobs

CHARGES = hops.charges_journal(JOB, "caption")


def charge(offset: int, error: str = "", message: str = "", model: str = "small") -> CallCharge:
    spend = Spend(tokens_in=100, tokens_cached=20, tokens_out=10, nano_usd=NANO_USD // 4)
    return CallCharge(
        at_us=1,
        run=1,
        journal="jobs/j/videos/out/0",
        offset=offset,
        attempt=1,
        noted=CallSpend(spend=spend, model=model),
        latency_us=1000,
        error=error,
        message=message,
    )


def charged(played: Played, *made: CallCharge) -> None:
    played.broker.create(CHARGES, charges.SCHEMA)
    played.broker.append(CHARGES, charges.to_rows(made))


def step_of(played: Played) -> StepReport:
    return job_status(played.broker, JOB).step("caption")


def test_costs_are_by_model_and_errors_by_class_and_text_with_a_row() -> None:
    played = Played.started(MemoryBroker())
    played.do("caption", "videos", 0, 2)
    played.record_calls(0, Totals(calls=5, tokens_in=500, tokens_cached=100, nano_usd=5 * NANO_USD))
    charged(
        played,
        charge(0),
        charge(1, "TimeoutError", "TimeoutError: no answer after 31 s\n  more", "large"),
        charge(2, "TimeoutError", "TimeoutError: no answer after 47 s"),
        charge(3, "TimeoutError", "TimeoutError: no answer after 5 s"),
        charge(4, "ValueError", "ValueError: no JSON"),
    )

    step = step_of(played)
    text = spending_text([step])

    assert [(g.model, g.attempts, g.usd) for g in step.models] == [
        ("small", 4, 1.0),
        ("large", 1, 0.25),
    ]
    assert [(g.error, g.attempts, g.offset) for g in step.failures] == [
        ("TimeoutError", 2, 2),
        ("TimeoutError", 1, 1),
        ("ValueError", 1, 4),
    ]
    assert (step.usd, step.usd_left) == (5.0, 20.0), "2 rows cost 5 dollars, 8 are left"
    cost, *rest = text
    assert cost.startswith("caption: $5.00 for 600 tokens in and 0 out, 17% of those in cached; ")
    assert cost.endswith("; about $20.00 for 8 rows left, $25.00 in all")
    assert rest == [
        "  small: 4 calls, $1.00",
        "  large: 1 calls, $0.25",
        "caption: 2 x TimeoutError: no answer after 47 s (such as row 2 of jobs/j/videos/out/0)",
        "caption: 1 x TimeoutError: no answer after 31 s (such as row 1 of jobs/j/videos/out/0)",
        "caption: 1 x ValueError: no JSON (such as row 4 of jobs/j/videos/out/0)",
    ]
    assert step.usd_in_doubt == 0.0
    assert "usd" in str(job_status(played.broker, JOB))
    found = json.loads(job_status(played.broker, JOB).to_json())["steps"][0]
    assert (found["usd"], found["groups"]["groups"][0]["attempts"]) == (5.0, 1)
    (listed,) = list_jobs(played.broker)
    assert listed.step("caption").groups is None, "a list of jobs reads no charges"


def test_a_report_reads_on_where_the_last_one_ended_and_anew_behind_a_reset() -> None:
    played = Played.started(MemoryBroker())
    charged(played, charge(0), charge(1, "ValueError", "ValueError: no"))
    first = json.loads(job_status(played.broker, JOB).to_json())
    played.tell(JobEventKind.ENDED, 1, state="finished", report=first)
    played.broker.truncate_before(CHARGES, played.broker.end_offset(CHARGES))
    charged(played, charge(2, "ValueError", "ValueError: no"))

    step = step_of(played)
    assert [(g.error, g.attempts, g.offset) for g in step.failures] == [("ValueError", 2, 1)]
    assert step.models[0].attempts == 3

    played.broker.delete(CHARGES)
    charged(played, charge(7))
    assert [group.attempts for group in step_of(played).models] == [1]


def test_errors_that_all_differ_are_one_group_beyond_a_limit() -> None:
    words = [chr(97 + n // 26) + chr(97 + n % 26) for n in range(3 * GROUPS_MAX)]
    groups = [CallGroup(model="m", error="E", message=word, attempts=1) for word in words]

    found = merged(groups)

    assert len(found) == GROUPS_MAX + 1
    assert sum(group.attempts for group in found) == len(words)


def test_small_amounts_keep_their_digits() -> None:
    assert [dollars(usd) for usd in (0.0, 0.00042, 0.5, 1234.567)] == [
        "0.00",
        "0.00042",
        "0.50",
        "1,234.57",
    ]

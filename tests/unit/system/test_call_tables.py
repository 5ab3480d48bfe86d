"""Tables of paid calls: sums are totals, charges are rows, dollars are found by step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.pipeline.played_kit import JOB, Played

import millrace as mr
from millrace.page.views.call_views import call_errors, calls_chart, latency
from millrace.pipeline.core import hops
from millrace.pipeline.paid import call_records, charges
from millrace.pipeline.paid.call_records import CallRecord, CallRecordKind, Totals
from millrace.pipeline.paid.charges import CallCharge
from millrace.pipeline.paid.spend import CallSpend, Spend
from millrace.system.call_tables import CHARGES, last_call_rows, last_charge_rows
from millrace.system.job_reading import seen_job
from millrace.system.questions import SystemTables
from millrace.system.resting_workspace import RestingWorkspace
from millrace.system.workspace_now import job_now
from millrace.workspace import runtime_of


@pytest.fixture
def played(tmp_path: Path) -> Iterator[Played]:
    with mr.open(tmp_path / "mill") as ws:
        yield Played.started(runtime_of(ws).joined_broker())


def record(second: int, calls: int, cents: int) -> CallRecord:
    """A record with these totals."""
    return CallRecord(
        at_us=second * 1_000_000,
        epoch=1,
        kind=CallRecordKind.INTENT,
        first=0,
        next=1,
        calls=3,
        totals=Totals(calls=calls, nano_usd=cents * 10_000_000),
    )


def keep_records(played: Played, partition: int, records: list[CallRecord]) -> str:
    info = played.broker.get(hops.output_journal(JOB, "videos", partition))
    name = hops.calls_journal(JOB, "caption", info.id)
    played.broker.create(name, call_records.SCHEMA)
    played.broker.append(name, call_records.to_rows(records))
    return name


def charge(second: int, *, cents: int = 0, seconds: float = 0.1, error: str = "") -> CallCharge:
    noted = CallSpend(spend=Spend(tokens_in=5, nano_usd=cents * 10_000_000), model="m")
    return CallCharge(
        at_us=second * 1_000_000,
        run=1,
        journal="j",
        offset=second,
        attempt=1,
        noted=noted,
        latency_us=round(seconds * 1_000_000),
        error=error,
        message=f"{error}: no" if error else "",
    )


def keep_charges(played: Played, rows: list[CallCharge]) -> None:
    name = hops.charges_journal(JOB, "caption")
    played.broker.create(name, charges.SCHEMA)
    played.broker.append(name, charges.to_rows(rows))


def ask(folder: Path, question: str) -> list[dict[str, object]]:
    with RestingWorkspace.at(str(folder / "mill")) as resting:
        found: list[dict[str, object]] = SystemTables(resting).ask(question).to_pylist()
        return found


def test_dollars_of_steps_are_asked_of_calls(tmp_path: Path, played: Played) -> None:
    keep_records(played, 0, [record(1, 2, 10), record(2, 5, 25)])
    keep_records(played, 1, [record(1, 4, 50)])
    question = "SELECT step, sum(usd) AS usd, sum(made) AS made FROM calls GROUP BY 1"

    assert ask(tmp_path, question) == [{"step": "caption", "usd": 0.75, "made": 9}]
    with RestingWorkspace.at(str(tmp_path / "mill")) as resting, seen_job(resting, JOB) as job:
        now = job_now(resting, job)
    assert {step.name: step.usd for step in now.status.steps if step.usd} == {"caption": 0.75}
    assert now.has_usd


def test_sums_of_calls_stay_the_totals_after_old_records_are_gone(
    tmp_path: Path, played: Played
) -> None:
    name = keep_records(played, 0, [record(n, n * 2, n) for n in range(1, 20)])

    played.broker.truncate_before(name, 15)

    assert ask(tmp_path, "SELECT sum(made) AS made, round(sum(usd), 9) AS usd FROM calls") == [
        {"made": 38, "usd": 0.19}
    ]


@pytest.mark.parametrize("limit", [1, 3, 7])
def test_the_last_records_say_the_same_as_all_of_them_where_they_know(
    tmp_path: Path, played: Played, limit: int
) -> None:
    for partition in range(2):
        keep_records(played, partition, [record(n * 2 + partition, n**2, n) for n in range(9)])
    with RestingWorkspace.at(str(tmp_path / "mill")) as resting:
        every = SystemTables(resting).table("calls")
        with seen_job(resting, JOB) as job:
            last = last_call_rows(job, None, limit)

    known = {(row["journal"], row["record"]): row for row in every.to_pylist()}

    assert last["at"].to_pylist() == sorted(every["at"].to_pylist(), reverse=True)[:limit]
    for row in last.to_pylist():
        whole = known[row["journal"], row["record"]]
        assert row["made"] in (whole["made"], None)
        assert row["usd"] in (whole["usd"], None)
    assert last["made"].null_count == 0, "the record in front of each of these was read"


def test_a_chart_counts_each_call_once(tmp_path: Path, played: Played) -> None:
    keep_records(played, 0, [record(n, n, 0) for n in range(61)])
    with RestingWorkspace.at(str(tmp_path / "mill")) as resting, seen_job(resting, JOB) as job:
        chart = calls_chart(last_call_rows(job, None, 100))

    assert '"data": [[' in chart
    assert '"calls a second"' in chart
    rates = [float(text) for text in chart.split("], [")[1].split("]]")[0].split(", ")]
    assert sum(rates) == pytest.approx(60, abs=0.1), "60 calls in 60 bins of a second"


def test_charges_have_dollars_latency_and_errors(tmp_path: Path, played: Played) -> None:
    keep_charges(
        played,
        [
            charge(1, cents=10, seconds=1.0),
            charge(2, cents=15, seconds=3.0),
            charge(3, error="ValueError"),
            charge(4, seconds=0.0, error="ProviderBusy"),
        ],
    )

    told = ask(tmp_path, "SELECT sum(usd) AS usd, sum(tokens_in) AS tokens FROM charges")
    with RestingWorkspace.at(str(tmp_path / "mill")) as resting, seen_job(resting, JOB) as job:
        last, youngest = last_charge_rows(job, None, 10), last_charge_rows(job, "caption", 1)

    assert told == [{"usd": 0.25, "tokens": 20}]
    took = latency(last)
    assert took is not None
    assert (took["calls"], took["figures"][0]) == (3, ("median", "1.0 s", ""))
    assert [(row["kind"], row["calls"]) for row in call_errors(last)] == [
        ("ProviderBusy", 1),
        ("ValueError", 1),
    ]
    assert youngest["offset"].to_pylist() == [4]
    assert latency(CHARGES.schema.empty_table()) is None


@given(st.lists(st.sampled_from(["", "A", "B"]), max_size=30))
def test_errors_of_calls_are_counted_whole(kinds: list[str]) -> None:
    columns = {
        "error": pa.array(kinds, pa.string()),
        "message": pa.array(kinds, pa.string()),
        "at": pa.array(range(len(kinds)), pa.timestamp("us", "UTC")),
    }

    counted = {row["kind"]: row["calls"] for row in call_errors(pa.table(columns))}

    assert counted == {kind: kinds.count(kind) for kind in set(kinds) - {""}}

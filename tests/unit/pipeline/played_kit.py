"""A job of a source, an expensive step, a cheap one and a sink, played by hand on a broker."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa

from millrace.journal.broker import Broker
from millrace.pipeline.core import dead_letters, hops, job_events
from millrace.pipeline.core.job_events import JobEvent, JobEventKind
from millrace.pipeline.core.job_record import RECORDED, JobPart, JobRecord
from millrace.pipeline.paid import call_records
from millrace.pipeline.paid.call_records import CallRecord, CallRecordKind, Totals
from millrace.pipeline.report.run_history import RunHistory

ROWS = pa.schema([("n", pa.int64())])
JOB = "captions"


def record(target: str = "") -> JobRecord:
    def reads(name: str) -> tuple[str, ...]:
        return (hops.output_prefix(JOB, name),)

    return JobRecord(
        JOB,
        (
            JobPart(name="videos", kind="source"),
            JobPart(
                name="caption",
                kind="map",
                inputs=("videos",),
                prefixes=reads("videos"),
                expensive=True,
                depth=1,
            ),
            JobPart(
                name="by_user",
                kind="key_by",
                inputs=("caption",),
                prefixes=reads("caption"),
                fused=("good",),
                depth=2,
            ),
            JobPart(
                name="out",
                kind="sink_journal",
                inputs=("by_user",),
                prefixes=reads("by_user"),
                depth=3,
                target=target or "acme/captions",
            ),
        ),
    )


def table(*values: int) -> pa.Table:
    return pa.table({"n": list(values)}, schema=ROWS)


@dataclass(slots=True)
class Played:
    """The job, its broker, and moves that workers would make."""

    broker: Broker
    record: JobRecord
    history: RunHistory

    @classmethod
    def started(cls, broker: Broker, *, rows: int = 10) -> Played:
        """A first run has begun and taken its source in, over two journals."""
        history = RunHistory.begin(broker, JOB)
        played = cls(broker, record(), history)
        for step in ("videos", "caption", "by_user"):
            for partition in range(2):
                broker.create(hops.output_journal(JOB, step, partition), ROWS)
        played.start(1)
        for partition in range(2):
            mine = table(*range(partition, rows, 2))
            broker.append(hops.output_journal(JOB, "videos", partition), mine)
        played.tell(JobEventKind.TAKEN_IN, 1, "videos", rows=rows)
        return played

    def start(self, run: int, **detail: object) -> None:
        self.tell(JobEventKind.STARTED, run, "", **{RECORDED: self.record.to_json()}, **detail)

    def tell(self, happened: JobEventKind, run: int, step: str = "", **detail: object) -> None:
        event = JobEvent(
            at_us=run * 1_000_000, run=run, happened=happened, step=step, detail=detail
        )
        self.history.add(event)
        self.history.look()

    def do(self, step: str, given: str, partition: int, rows: int, *, out: bool = True) -> None:
        """A worker takes so many rows of an input and passes them on."""
        journal = hops.output_journal(JOB, given, partition)
        group = hops.step_root(JOB, step)
        before = self.broker.committed(group, journal)
        found = self.broker.read(journal, before or 0, rows_max=rows)
        with self.broker.transaction() as t:
            if out:
                t.append(hops.output_journal(JOB, step, partition), found.rows())
            t.commit(group, journal, found.next_offset, expected=before)

    def record_calls(self, partition: int, totals: Totals) -> None:
        info = self.broker.get(hops.output_journal(JOB, "videos", partition))
        name = hops.calls_journal(JOB, "caption", info.id)
        self.broker.create(name, call_records.SCHEMA)
        first = CallRecord(
            at_us=1,
            epoch=1,
            kind=CallRecordKind.INTENT,
            first=0,
            next=1,
            calls=1,
            totals=Totals(calls=1),
        )
        self.broker.append(name, call_records.to_rows([first, replace(first, totals=totals)]))

    def dead_letter(self, step: str) -> None:
        name = hops.dead_letters(JOB, step)
        self.broker.create(name, dead_letters.SCHEMA)
        row = table(1).to_batches()[0]
        letter = dead_letters.Letter(
            at_us=1, run=1, journal="j", offset=0, key="k", error="[/e]", traceback="t", row=row
        )
        self.broker.append(name, dead_letters.to_rows([letter]))

    def rows_of(self, step: str) -> list[int]:
        return sorted(
            value
            for info in self.broker.list(hops.output_prefix(JOB, step))
            for value in self.broker.read(info.name, self.broker.start_offset(info.name))
            .rows()["n"]
            .to_pylist()
        )


def events_of(broker: Broker) -> list[JobEvent]:
    return job_events.from_rows(broker.read(hops.runs_journal(JOB), 0).rows())

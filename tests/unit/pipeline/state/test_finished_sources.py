"""Jobs over sources that are finished give what a query over all of their rows gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from tests.unit.pipeline.run.test_table_commits import ThreadRuntime
from tests.unit.pipeline.state.state_kit import journal_rows, net_of

import millrace as mr
from millrace.faults import VARIABLE
from millrace.journal.api import broker_of
from millrace.pipeline.define.steps import Step
from millrace.pipeline.report.job_report import JobReport
from millrace.pipeline.run.job_run import run_job
from millrace.workspace import runtime_of

CONFIG = mr.Config().with_options(job_idle_ms=2, job_watch_ms=2, journal_read_rows_max=60)
TIME = pa.timestamp("us", "UTC")
CLICKS = pa.schema([("k", pa.int64()), ("ts", TIME), ("v", pa.int64())])
BUYS = pa.schema([("bk", pa.int64()), ("bts", TIME), ("w", pa.int64())])
LATE_S = 120


def rows_of(schema: pa.Schema, count: int, seed: int) -> pa.Table:
    """A row each 10 seconds, disordered by less than they may be late; some twice, some no key."""
    chance = np.random.default_rng(seed)
    seconds = np.sort(chance.integers(0, count * 10, count)) + chance.integers(0, LATE_S, count)
    times = pa.array(seconds * 1_000_000, pa.int64()).cast(TIME)
    keys = pa.array(chance.integers(0, 6, count), mask=chance.random(count) < 0.04)
    rows = pa.table([keys, times, chance.integers(0, 50, count)], schema=schema)
    return pa.concat_tables([rows, rows.take(pa.array(chance.integers(0, count, count // 10)))])


class Shop:
    """A workspace with two streams."""

    def __init__(self, folder: Path, count: int = 150) -> None:
        self.ws = mr.open(folder / "mill", create=True, config=CONFIG)
        self.scratch = folder
        self.rows: dict[str, pa.Table] = {}
        for name, schema, seed in (("clicks", CLICKS, 1), ("buys", BUYS, 2)):
            table = rows_of(schema, count, seed)
            order = table.schema.names[1]
            late = pa.array(np.random.default_rng(seed).integers(0, LATE_S, table.num_rows))
            seconds = table[order].cast(pa.int64()).to_numpy() // 1_000_000 + late.to_numpy()
            table = table.take(pa.array(np.argsort(seconds, kind="stable")))
            self.rows[name] = table
            for part in (0, 1):
                journal = f"{name}/{part}"
                self.ws.journals.create(journal, schema)
                self.ws.journals.append(journal, table.take(pa.array(range(part, len(table), 2))))

    def define(self, define: Callable[[Step, Step], Step], *, finished: bool) -> mr.Job:
        job = self.ws.job("j")
        clicks = job.source("clicks", journals="clicks", finished=finished)
        buys = job.source("buys", journals="buys", finished=finished)
        define(clicks, buys).sink_journal("out")
        buys.sink_journal("also")
        return job

    def run(self, define: Callable[[Step, Step], Step], *, finished: bool = True) -> JobReport:
        broker = broker_of(self.ws.journals)
        job = self.define(define, finished=finished)
        return run_job(runtime_of(self.ws), job, lambda: ThreadRuntime(broker, self.scratch))

    def out(self) -> Counter[str]:
        """The rows that came out and were not taken back."""
        return net_of(journal_rows(broker_of(self.ws.journals), "out"))

    def judged(self, sql: str) -> Counter[str]:
        with duckdb.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            for name, table in self.rows.items():
                connection.register(name, table)
            found = connection.sql(sql).to_arrow_table()
        return Counter(map(str, found.to_pylist()))


def tumbling(clicks: Step, _: Step) -> Step:
    by_key = clicks.key_by("k", partitions=2)
    made = by_key.window("out", tumbling="5m", late="2m", emit="close", n="count(*)", m="max(v)")
    return made.select("k", "unix_micros(window_start) AS b", "n", "m")


TUMBLING = """SELECT k, epoch_us(ts) // 300000000 * 300000000 AS b, count(*) AS n, max(v) AS m
FROM clicks GROUP BY ALL"""


def sliding(clicks: Step, _: Step) -> Step:
    by_key = clicks.key_by("k", partitions=2)
    made = by_key.window("out", sliding=("6m", "2m"), late="2m", emit="close", n="count(*)")
    return made.select("k", "unix_micros(window_start) AS b", "n")


SLIDING = """SELECT k, epoch_us(ts) // 120000000 * 120000000 - i * 120000000 AS b, count(*) AS n
FROM clicks, range(3) r(i) GROUP BY ALL"""


def sessions(clicks: Step, _: Step) -> Step:
    by_key = clicks.key_by("k", partitions=2)
    made = by_key.window("out", session="90s", late="2m", emit="close", n="count(*)")
    return made.select("k", "unix_micros(window_start) AS b", "unix_micros(window_end) AS e", "n")


SESSIONS = """WITH s AS (SELECT k, epoch_us(ts) AS t FROM clicks),
p AS (SELECT *, coalesce(t - lag(t) OVER (PARTITION BY k ORDER BY t) > 90000000, false) AS is_new
      FROM s),
n AS (SELECT *, count_if(is_new) OVER (PARTITION BY k ORDER BY t) AS number FROM p)
SELECT k, min(t) AS b, max(t) + 90000000 AS e, count(*) AS n FROM n GROUP BY k, number"""


def two_windows(clicks: Step, _: Step) -> Step:
    by_key = clicks.key_by("k", partitions=1)
    minutes = by_key.window("m", tumbling="1m", late="2m", emit="close", n="count(*)")
    by_minutes = minutes.select("n", "window_start AS at").key_by("n", partitions=2)
    made = by_minutes.window("out", tumbling="10m", late="0s", emit="close", c="count(*)")
    return made.select("n", "unix_micros(window_start) AS b", "c")


TWO_WINDOWS = """WITH m AS (SELECT k, epoch_us(ts) // 60000000 * 60000000 AS t, count(*) AS n
FROM clicks GROUP BY ALL)
SELECT n, t // 600000000 * 600000000 AS b, count(*) AS c FROM m GROUP BY ALL"""


def joined(clicks: Step, buys: Step) -> Step:
    made = clicks.key_by("k", partitions=2).join(
        "out", buys.key_by("bk", name="b"), within="3m", time=("ts", "bts"), late="2m"
    )
    return made.select("k", "v", "w", "unix_micros(ts) AS t")


JOINED = """SELECT k, v, w, epoch_us(ts) AS t FROM clicks JOIN buys
ON k = bk AND abs(epoch_us(ts) - epoch_us(bts)) <= 180000000"""


def with_itself(clicks: Step, _: Step) -> Step:
    """Both sides read the same journals, each at its own pace."""
    others = clicks.select("k AS ok", "ts AS ots", "v AS w").key_by("ok", name="b")
    made = clicks.key_by("k", partitions=2).join(
        "out", others, within="3m", time=("ts", "ots"), late="2m"
    )
    return made.select("k", "v", "w", "unix_micros(ts) AS t")


WITH_ITSELF = """SELECT a.k, a.v, b.v AS w, epoch_us(a.ts) AS t FROM clicks a JOIN clicks b
ON a.k = b.k AND abs(epoch_us(a.ts) - epoch_us(b.ts)) <= 180000000"""


def totals(clicks: Step, _: Step) -> Step:
    return clicks.key_by("k", partitions=2).aggregate(
        "out", emit="retractions", n="count(*)", s="sum(v)", lo="min(v)", mean="avg(v)"
    )


TOTALS = """SELECT k, count(*) AS n, CAST(sum(v) AS BIGINT) AS s, min(v) AS lo, avg(v) AS mean
FROM clicks GROUP BY 1"""


def latest(clicks: Step, _: Step) -> Step:
    last = clicks.key_by("k", partitions=2).latest("out", by="ts", emit="retractions")
    return last.select("_mr_op", "k", "unix_micros(ts) AS t")


LATEST = "SELECT k, max(epoch_us(ts)) AS t FROM clicks GROUP BY 1"


def once(clicks: Step, _: Step) -> Step:
    return clicks.key_by("k", "ts", "v", partitions=2).dedupe("out").select("k", "v")


ONCE = "SELECT k, v FROM (SELECT DISTINCT k, ts, v FROM clicks)"


def over_changes(clicks: Step, buys: Step) -> Step:
    counts = clicks.key_by("k", partitions=2).aggregate("c", emit="retractions", n="count(*)")
    pairs = counts.key_by("k", partitions=2, name="by_k").join("out", buys.key_by("bk", name="b"))
    return pairs.select("_mr_op", "k", "n", "w")


OVER_CHANGES = """WITH c AS (SELECT k, count(*) AS n FROM clicks GROUP BY 1)
SELECT k, n, w FROM c JOIN buys ON k = bk"""


def looked_up(clicks: Step, buys: Step) -> Step:
    totals = buys.key_by("bk", partitions=2).aggregate("t", n="count(*)", w="sum(w)")
    return clicks.lookup("out", totals, on="k").select("k", "v", "n", "w")


LOOKED_UP = """SELECT k, v, n, w FROM clicks LEFT JOIN (
    SELECT bk, count(*) AS n, CAST(sum(w) AS BIGINT) AS w FROM buys GROUP BY 1) ON k = bk"""


def unseen(rows: pa.Table, states: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The keys that came for the first time."""
    known = set(states["k"].to_pylist())
    came = [*dict.fromkeys(rows["k"].to_pylist())]
    new = [key for key in came if key not in known]
    after = {"k": came, "seen": [True] * len(came)}
    return pa.table({"k": pa.array(new, pa.int64())}), pa.table(after, schema=states.schema)


def by_function(clicks: Step, _: Step) -> Step:
    by_key = clicks.key_by("k", partitions=2)
    return by_key.stateful("out", unseen, state="seen boolean", schema="k bigint", version="1")


BY_FUNCTION = "SELECT DISTINCT k FROM clicks"

LAWS: dict[Callable[[Step, Step], Step], str] = {
    tumbling: TUMBLING,
    sliding: SLIDING,
    sessions: SESSIONS,
    two_windows: TWO_WINDOWS,
    joined: JOINED,
    with_itself: WITH_ITSELF,
    totals: TOTALS,
    latest: LATEST,
    once: ONCE,
    over_changes: OVER_CHANGES,
    looked_up: LOOKED_UP,
    by_function: BY_FUNCTION,
}


@pytest.mark.parametrize("define", LAWS, ids=lambda define: define.__name__)
def test_a_job_over_finished_sources_gives_what_a_query_over_their_rows_gives(
    tmp_path: Path, define: Callable[[Step, Step], Step]
) -> None:
    shop = Shop(tmp_path)

    report = shop.run(define)

    assert report.state == "finished"
    assert all(step.skipped == 0 for step in report.steps)
    assert shop.out() == shop.judged(LAWS[define])


def test_windows_stay_open_while_sources_are_not_finished_and_close_once(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.run(tumbling, finished=False)
    early = shop.out()

    shop.run(tumbling)
    after = shop.out()
    again = shop.run(tumbling)

    assert not early - after
    assert early != after == shop.judged(TUMBLING) == shop.out()
    assert all(step.rows_per_s == 0 for step in again.steps), "nothing was done again"


def test_rows_that_come_behind_the_end_are_left_out_and_counted(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.run(tumbling)
    shop.ws.journals.append("clicks/0", shop.rows["clicks"].slice(0, 5))

    report = shop.run(tumbling)

    assert shop.out() == shop.judged(TUMBLING)
    assert report.step("out").skipped == 5


@pytest.mark.parametrize("point", ["job.sources.after_end", "job.run.before_ended"])
def test_a_run_that_breaks_off_at_the_end_closes_each_window_once(
    tmp_path: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(tmp_path)
    with monkeypatch.context() as patch:
        patch.setenv(VARIABLE, f"{point}:raise")
        with pytest.raises(OSError, match="No space left"):
            shop.run(tumbling)

    assert shop.run(tumbling).state == "finished"

    assert shop.out() == shop.judged(TUMBLING)

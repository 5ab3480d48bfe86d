"""Saves the DataFrames of a query: Spark calculates their rows once, into durable files.

Each of them is a run of the workspace of its own, and each partition a map task of that run.
Invariant: a query reads the same rows of a DataFrame wherever it names it. Rows that were saved
before are used again only under the same version and with the same columns.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql import DataFrame, SparkSession

from millrace.config import Config
from millrace.engine.run_values import RunMoment
from millrace.errors import MillraceError, UnsupportedType, UserError
from millrace.execute.lost_outputs import Lost
from millrace.execute.map_task import MapStage, Reuse
from millrace.execute.query_run import QueryRun
from millrace.execute.shuffle_run import STAGE, begin_run
from millrace.execute.shuffle_workspace import ShuffleWorkspace
from millrace.execute.stage_run import publish
from millrace.execute.tasks.task_results import Result
from millrace.faults import fault
from millrace.identity.schemas import check_names, plain_schema
from millrace.identity.versions import versions
from millrace.ids import QueryId, StageId
from millrace.keys import RoundRobinPartitioner
from millrace.plan.nodes.frame_scan import (
    FrameScan,
    Recognised,
    frames_of,
    read_saved_frame,
    with_frames,
)
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.on_spark import OnSpark
from millrace.plan.planner.column_pruning import prune
from millrace.shuffle import reuse, runs
from millrace.shuffle.catalog import run_catalog
from millrace.shuffle.handle import Shuffle
from millrace.shuffle.manifest import Manifest
from millrace.shuffle.reports import StageReport
from millrace.spark.frames.frame_rows import write_map_outputs
from millrace.spark.frames.spark_work_rows import frame_of_work, over_answers, recognise
from millrace.spark.session_settings import settings_of
from millrace.spark.spark_presence import call_spark
from millrace.spark.spark_tasks import SparkTaskRunner
from millrace.spark.versions.arrow_types import utc_schema

Batches = Iterator[pa.RecordBatch]


def frame_scan(
    frame: object,
    version: str | None,
    config: Config,
    reason: str = "",
    recognise: Callable[[], Recognised] | None = None,
) -> FrameScan:
    """A DataFrame as a source. Nothing of it is run."""
    if not isinstance(frame, DataFrame):
        raise UserError(
            f"from_spark() of a {type(frame).__name__}\n"
            "  to fix: give a Spark DataFrame; for Arrow tables there is from_arrow()"
        )
    given: object = version
    if given is not None and (not isinstance(given, str) or not given):
        raise UserError(f"from_spark(): version is {version!r}\n  to fix: give a text")
    types = call_spark(frame.sparkSession, config, lambda: frame.schema)
    try:
        schema = plain_schema(utc_schema(types))
    except PySparkTypeError as error:
        raise UnsupportedType(
            f"from_spark(): {error}\n  to fix: cast that column in Spark first"
        ) from error
    if not schema.names:
        raise UserError(
            "from_spark() of a DataFrame without columns\n  to fix: select at least one"
        )
    check_names(schema)
    return FrameScan(frame, schema, version, tuple(schema.names), reason, recognise)


def sketch_frames(
    plan: Node, config: Config, workspace: ShuffleWorkspace | None
) -> tuple[Node, dict[int, Shuffle]]:
    """The plan as if its DataFrames were saved, and those that are.

    A DataFrame that is not counts as larger than a task.
    """
    scans = [_whole_if_named(scan) for scan in frames_of(prune(plan))]
    if not scans:
        return plan, {}
    numbers = {id(scan.frame): (-1 - n, scan) for n, scan in enumerate(scans)}
    saved: dict[int, Shuffle] = {}
    for number, scan in numbers.values():
        if workspace is None or isinstance(scan, OnSpark):
            continue  # What Spark computes is recognised by its inputs' rows, when it runs.
        before = _saved_before(workspace, scan, _session_of(scan))
        if before is not None:
            saved[number] = _handle(workspace, before)

    def read_saved(scan: FrameScan) -> Node:
        number, whole = numbers[id(scan.frame)]
        unknown = max(config.one_task_bytes_max, config.broadcast_bytes_max) + 1
        size = saved[number].bytes if number in saved else unknown
        return read_saved_frame(scan, number, whole.schema, size)

    return with_frames(prune(plan), read_saved), saved


@dataclass(frozen=True, slots=True)
class _SavedFrame:
    """Saved rows; if Spark computed them, also the runs of its inputs."""

    scan: FrameScan
    shuffle: Shuffle
    inputs: tuple[QueryRun, ...] = ()

    def reports(self, number: int) -> Iterator[StageReport]:
        """What the inputs did, then what Spark did."""
        if not isinstance(self.scan, OnSpark):
            yield replace(self.shuffle.report, name=f"DataFrame {number}")
            return
        for (name, _), run in zip(self.scan.work.inputs, self.inputs, strict=True):
            for stage in run.report.stages:
                yield replace(stage, name=f"{name} of Spark {number}, {stage.name}")
        report = self.shuffle.report
        notes = (*report.notes, self.scan.describe())
        yield replace(report, name=f"on Spark {number}", notes=notes)


class QueryFrames:
    """The DataFrames of a query, saved as shuffles. `plan` reads those."""

    def __init__(
        self,
        spark: SparkSession,
        workspace: ShuffleWorkspace,
        plan: Node,
        reuse: Reuse,
        run_input: Callable[[Node], QueryRun],
        moment: RunMoment,
    ) -> None:
        """`run_input` runs the plans over which Spark computes, `moment` is that of the run."""
        self._spark, self._run_input, self._moment = spark, run_input, moment
        self._workspace, self._reuse = workspace, reuse
        self._saved: dict[int, _SavedFrame] = {}
        pruned = prune(plan)
        scans = [_whole_if_named(scan) for scan in frames_of(pruned)]
        _check_versions(scans, workspace.config)
        numbers = {id(scan.frame): -1 - n for n, scan in enumerate(scans)}
        for scan in scans:
            self._saved[numbers[id(scan.frame)]] = self._save(scan, fresh=False)

        def read_saved(scan: FrameScan) -> Node:
            number = numbers[id(scan.frame)]
            known = self._saved[number]
            return read_saved_frame(scan, number, known.scan.schema, known.shuffle.bytes)

        self.plan = with_frames(pruned, read_saved) if scans else plan

    @property
    def shuffles(self) -> dict[int, Shuffle]:
        """The saved rows, by number."""
        return {number: saved.shuffle for number, saved in self._saved.items()}

    @property
    def reports(self) -> tuple[StageReport, ...]:
        """For each DataFrame, which rows were read and which were reused."""
        return tuple(
            report
            for number, saved in enumerate(self._saved.values())
            for report in saved.reports(number)
        )

    def rely(self, query_id: QueryId, stage_id: StageId) -> None:
        """Keep the saved rows from being removed as long as this run is there."""
        if self._saved:
            chosen = [c for done in self.shuffles.values() for c in done.manifest.chosen]
            relied = [choice.attempt for choice in chosen if choice.folder is None]
            runs.rely_on(self._workspace.store, query_id, stage_id, relied)

    def save_again(self, lost: Sequence[Lost]) -> None:
        """Save every DataFrame again of which an output was lost."""
        gone = {loss.attempt for loss in lost}
        for number, saved in self._saved.items():
            if gone & {choice.attempt for choice in saved.shuffle.manifest.chosen}:
                self._saved[number] = self._save(saved.scan, fresh=True, inputs=saved.inputs)

    def _save(
        self, scan: FrameScan, *, fresh: bool, inputs: tuple[QueryRun, ...] | None = None
    ) -> _SavedFrame:
        """Save a DataFrame; what Spark computes is saved after its inputs have run."""
        if not isinstance(scan, OnSpark):
            frame = scan.frame
            assert isinstance(frame, DataFrame), "checked when the source was made"
            if scan.version is None and scan.recognise is not None:
                return self._save_recognised(scan, frame, scan.recognise, fresh=fresh)
            return _SavedFrame(scan, self._save_rows(scan, nullcontext(frame), fresh=fresh))
        if inputs is None:
            inputs = tuple(self._run_input(plan) for _, plan in scan.work.inputs)
        fault("on_spark.driver.after_inputs")

        def save(answers: tuple[Shuffle, ...]) -> Shuffle:
            version, why = recognise(self._spark, self._workspace.config, scan, answers)
            columns = scan.columns if version is None else tuple(scan.whole.names)
            named = replace(scan, version=version, columns=columns)
            frame = frame_of_work(self._spark, self._workspace, scan, answers, self._moment)
            return self._save_rows(named, frame, fresh=fresh, why=why)

        shuffle = over_answers(inputs, save)
        schema = shuffle.schema.names
        return _SavedFrame(replace(scan, columns=tuple(schema)), shuffle, inputs)

    def _save_recognised(
        self,
        scan: FrameScan,
        frame: DataFrame,
        recognise: Callable[[], Recognised],
        *,
        fresh: bool,
    ) -> _SavedFrame:
        """Save rows that are recognised by what Spark reads, if that stays the same meanwhile."""
        version, why = recognise()
        if version is not None:
            whole = replace(scan, version=version, columns=tuple(scan.whole.names))

            def check() -> None:
                if recognise()[0] != version:
                    raise _Changed

            try:
                shuffle = self._save_rows(whole, nullcontext(frame), fresh=fresh, check=check)
                return _SavedFrame(whole, shuffle)
            except _Changed:
                why = "a file changed while Spark read it"
        return _SavedFrame(scan, self._save_rows(scan, nullcontext(frame), fresh=fresh, why=why))

    def _save_rows(
        self,
        scan: FrameScan,
        frames: AbstractContextManager[DataFrame],
        *,
        fresh: bool,
        why: str | None = None,
        check: Callable[[], None] | None = None,
    ) -> Shuffle:
        """`why` says why rows have no version. `check` raises if new ones must not count."""
        workspace, started = self._workspace, time.monotonic()
        spark = self._spark if isinstance(scan, OnSpark) else _session_of(scan)
        before = None if fresh or not self._reuse else _saved_before(workspace, scan, spark)
        named = None if scan.version is None else _fingerprint(scan, spark, workspace.config)
        about = {"map_tasks": None, "frame": named}
        runner = SparkTaskRunner(spark, workspace.config)
        run = begin_run(workspace.store, runner.about(), scan.describe(), about)
        with runs.heartbeat(workspace.store, run.query_id, workspace.config) as heart:
            stage = _stage(workspace, run.query_id, scan.schema)
            results = self._finished(stage, before) if before is not None else None
            reasons: dict[int, str] = {}
            if results is None:
                title = f"DataFrame of query {run.query_id}"
                with frames as frame:
                    rows = _narrowed(frame, scan)
                    results = write_map_outputs(
                        workspace, stage, rows, title=title, watch=heart.check
                    )
                if check is not None:
                    check()
                reason = why or _why(scan, fresh=fresh, before=before)
                reasons = {result.map_task: reason for result in results}
            report = StageReport(
                map_tasks=len(results),
                reused=len(results) - len(reasons),
                seconds=time.monotonic() - started,
                reasons=reasons,
            )
            return publish(workspace, stage, results, report, choices={})

    def _finished(self, stage: MapStage, before: Manifest) -> list[Result] | None:
        """What an earlier run saved, kept for this one; None if it is no longer all there."""
        workspace = self._workspace
        local = [choice.attempt for choice in before.chosen if choice.folder is None]
        runs.rely_on(workspace.store, stage.query_id, stage.stage_id, local)
        saved = _handle(workspace, before)
        try:
            indexes = list(saved.indexes())
            whole = self._reuse != "verified" or saved.verify().ok
        except MillraceError:
            return None
        for choice, index in zip(before.chosen, indexes, strict=True):
            if choice.folder is None and not reuse.is_whole(workspace.store, index):
                whole = False
        return (
            [
                Result(map_task=c.map_task, folder=c.folder, agent=None, ran=False, index=index)
                for c, index in zip(before.chosen, indexes, strict=True)
            ]
            if whole
            else None
        )


class _Changed(Exception):
    """What identifies rows changed while they were saved."""


def _whole_if_named(scan: FrameScan) -> FrameScan:
    """Under a version all columns are saved, for later queries."""
    if scan.version is None:
        return scan
    return replace(scan, columns=tuple(scan.whole.names))


def _check_versions(scans: Sequence[FrameScan], config: Config) -> None:
    seen: set[str] = set()
    for scan in scans:
        if scan.version is None:
            continue
        fingerprint = _fingerprint(scan, _session_of(scan), config)
        if fingerprint in seen:
            raise UserError(
                f"two DataFrames with the same columns have version {scan.version!r}\n"
                "  to fix: give each a version of its own, as 'customers 2024-05-01'"
            )
        seen.add(fingerprint)


def _session_of(scan: FrameScan) -> SparkSession:
    assert isinstance(scan.frame, DataFrame), "checked when the source was made"
    return scan.frame.sparkSession


def _fingerprint(scan: FrameScan, spark: SparkSession, config: Config) -> str:
    columns = [[field.name, str(field.type)] for field in scan.whole]
    settings = settings_of(spark, config)
    text = json.dumps([scan.version, columns, versions(), settings], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _saved_before(
    workspace: ShuffleWorkspace, scan: FrameScan, spark: SparkSession
) -> Manifest | None:
    """The newest manifest of the same rows, if they have a name."""
    if scan.version is None:
        return None
    named = _fingerprint(scan, spark, workspace.config)
    for run in reversed(run_catalog.all_runs(workspace.store)):
        if run.about.get("frame") == named:
            manifest = runs.find_manifest(workspace.store, run.query_id, STAGE)
            if manifest is not None and manifest.schema.equals(scan.schema):
                return manifest
    return None


def _handle(workspace: ShuffleWorkspace, manifest: Manifest) -> Shuffle:
    return Shuffle(manifest=manifest, stores={None: workspace.store}, remote=workspace.agents)


def _why(scan: FrameScan, *, fresh: bool, before: Manifest | None) -> str:
    if fresh:
        return "map outputs were lost"
    if scan.version is None:
        return "rows of a DataFrame are recognised by version= alone"
    if before is not None:
        return f"run {before.query_id} took it in, and not all of that is there any more"
    return "not done before"


def _stage(workspace: ShuffleWorkspace, query_id: QueryId, schema: pa.Schema) -> MapStage:
    return MapStage(
        query_id=query_id,
        stage_id=STAGE,
        schema=schema,
        partitioner=RoundRobinPartitioner(1),
        config=workspace.config,
        folders=workspace.folders,
        versions=versions(),
    )


def _narrowed(frame: DataFrame, scan: FrameScan) -> DataFrame:
    if scan.columns == tuple(scan.whole.names):
        return frame
    return frame.select(*("`" + name.replace("`", "``") + "`" for name in scan.columns))

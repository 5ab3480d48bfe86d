"""Commits to a Delta table: a version is a file of the log that nobody else has made.

Invariant: the application's place, what the files need, and the version that is made are decided
from one state of the table. If another commit takes the version first, everything is looked at
again. On disks the file is made here; in stores by delta-rs, which knows each store's condition.
"""

from __future__ import annotations

import contextlib
import json
import logging
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from millrace.config import Config
from millrace.errors import DataLost, SchemaMismatch, StorageError, UserError
from millrace.extras import import_for
from millrace.faults import fault
from millrace.storage.storage_options import StorageOptions
from millrace.tables.delta.delta_log import (
    Action,
    TableState,
    advanced,
    commit_name,
    read_files,
    read_state,
    to_lines,
)
from millrace.tables.delta.delta_types import shown_type
from millrace.tables.delta.log_folder import TableFolder, table_folder
from millrace.tables.delta.store_options import delta_options
from millrace.tables.delta.table_features import check_writable
from millrace.tables.table_port import TableCommit, TableFile
from millrace.version import __version__

CHECKPOINT_EVERY: Final = 100
"""A checkpoint comes after so many versions, unless the table's properties say otherwise."""
_TRIES_MAX: Final = 200
_WAIT_S: Final = 0.02
_LOG: Final = logging.getLogger(__name__)


class DeltaCommits:
    """See `TableCommits`."""

    def __init__(
        self, uri: str, options: StorageOptions, application: str, config: Config, *, who: str
    ) -> None:
        """Does not read the table yet."""
        self._folder: TableFolder = table_folder(uri, options, config)
        self._options, self._application, self._who = options, application, who
        self._state: TableState | None = None
        self._fitting: tuple[Any, set[str]] = (None, set())

    def place(self) -> int | None:
        """See `TableCommits.place`."""
        return self._look().places.get(self._application)

    def commit(
        self, files: Sequence[TableFile], *, before: int | None, place: int
    ) -> TableCommit | None:
        """See `TableCommits.commit`."""
        missing = self._folder.missing([file.path for file in files])
        if missing:
            raise DataLost(
                f"{self._who}: a file of {self._folder.uri} is gone that no commit has yet\n"
                f"  found: no {missing[0]}, nor {len(missing) - 1} others\n"
                "  why: VACUUM removes files that wait for a commit longer than it retains files\n"
                "  to fix: reset the sink"
            )
        abouts = [json.loads(file.about) for file in files]
        adds: list[Action] = [{"add": about["add"]} for about in abouts]
        columns = {json.dumps(about["columns"], sort_keys=True) for about in abouts}
        rows, size = sum(file.rows for file in files), sum(file.bytes for file in files)
        metrics = {"numFiles": str(len(files)), "numOutputRows": str(rows)}
        metrics["numOutputBytes"] = str(size)

        def actions(state: TableState) -> list[Action] | None:
            if state.places.get(self._application) != before:
                return None
            self._check(state, columns)
            return adds

        parameters = {"mode": "Append", "partitionBy": "[]"}
        info = {"operation": "WRITE", "operationParameters": parameters, "isBlindAppend": True}
        info["operationMetrics"] = metrics
        return self.commit_actions(actions, info, place=place)

    def overwrite(
        self, files: Sequence[TableFile], *, before: int | None, place: int
    ) -> TableCommit | None:
        """Commit files in place of all that the table has then; see `commit`."""
        added = [json.loads(file.about) for file in files]
        columns = {json.dumps(about["columns"], sort_keys=True) for about in added}

        def actions(state: TableState) -> list[Action] | None:
            if state.places.get(self._application) != before:
                return None
            self._check(state, columns)
            if state.metadata.configuration.get("delta.appendOnly", "").lower() == "true":
                raise UserError(
                    f"{self._who}: the rows of {self._folder.uri} cannot be replaced\n"
                    "  found: delta.appendOnly is true\n  to fix: append, or change that property"
                )
            now_ms = time.time_ns() // 1_000_000
            there = read_files(self._folder, state.version)
            removed: list[Action] = [{"remove": _removal(add, now_ms)} for add in there]
            return [*removed, *({"add": about["add"]} for about in added)]

        info = {"operation": "WRITE", "operationParameters": {"mode": "Overwrite"}}
        return self.commit_actions(actions, info, place=place)

    def commit_actions(
        self,
        actions: Callable[[TableState], list[Action] | None],
        info: Action,
        *,
        place: int,
    ) -> TableCommit | None:
        """Commit what `actions` makes of the table's state, with the application's place.

        It is asked again for each state. If it has None, nothing is committed.
        """
        for tries in range(1, _TRIES_MAX + 1):
            state = self._look()
            chosen = actions(state)
            if chosen is None:
                return None
            now_ms = time.time_ns() // 1_000_000
            first: Action = {
                "timestamp": now_ms,
                "engineInfo": f"millrace/{__version__}",
                "readVersion": state.version,
                "isolationLevel": "Serializable",
                **info,
            }
            txn = {"appId": self._application, "version": place, "lastUpdated": now_ms}
            lines = [{"commitInfo": first}, {"txn": txn}, *chosen]
            if self._put(state, lines):
                self._checkpoint_if_due(state.version + 1)
                return TableCommit(version=state.version + 1, tries=tries)
            fault("delta.commit.after_refusal")
            time.sleep(random.uniform(0, min(1.0, _WAIT_S * tries)))  # noqa: S311 - no secret
        raise StorageError(
            f"{self._who}: no commit to {self._folder.uri} came through\n"
            f"  found: others were quicker {_TRIES_MAX} times\n"
            "  to fix: run it again when fewer processes write to the table"
        )

    def _look(self) -> TableState:
        """The table as it is now."""
        if self._state is not None:
            self._state = advanced(self._folder, self._state)
            return self._state
        state = read_state(self._folder)
        if state is None:
            raise UserError(
                f"{self._who}: there is no Delta table at {self._folder.uri} any more\n"
                "  to fix: restore it, or run again, which makes a new one"
            )
        self._state = state
        return state

    def _check(self, state: TableState, columns: set[str]) -> None:
        """See that files which were written earlier fit the table as it is now."""
        known, fitting = self._fitting
        if known is not state.metadata:
            check_writable(state, who=self._who, where=self._folder.uri)
            self._fitting = (state.metadata, fitting := set())
        table = {field["name"]: shown_type(field["type"]) for field in state.metadata.fields}
        for text in columns - fitting:
            for name, kind in json.loads(text).items():
                if table.get(name) != kind:
                    raise SchemaMismatch(
                        f"{self._who}: files that were written no longer fit {self._folder.uri}\n"
                        f"  found: column {name!r} was {kind} and is {table.get(name, 'gone')}\n"
                        "  to fix: give the table its columns back, or reset the sink"
                    )
            fitting.add(text)

    def _put(self, state: TableState, lines: list[Action]) -> bool:
        """Make the next version; False if somebody else has made it."""
        version = state.version + 1
        if self._folder.remote is None:
            return self._folder.create(commit_name(version), to_lines(lines))
        return self._put_in_store(state, lines)

    def _put_in_store(self, state: TableState, lines: list[Action]) -> bool:
        from deltalake import CommitProperties, DeltaTable, Transaction  # noqa: PLC0415
        from deltalake.exceptions import CommitFailedError  # noqa: PLC0415
        from deltalake.transaction import (  # noqa: PLC0415
            AddAction,
            PostCommitHookProperties,
            RemoveAction,
        )

        options = delta_options(self._folder, self._options)
        table = DeltaTable(self._folder.uri, version=state.version, storage_options=options)
        chosen: list[AddAction | RemoveAction] = [
            AddAction(**_for_delta_rs(line["add"])) for line in lines if "add" in line
        ]
        removed = [line["remove"] for line in lines if "remove" in line]
        self._check_removals(removed)
        chosen += [RemoveAction(**_removed_by_delta_rs(remove)) for remove in removed]
        txn = next(line["txn"] for line in lines if "txn" in line)
        properties = CommitProperties(
            max_commit_retries=0, app_transactions=[Transaction(txn["appId"], txn["version"])]
        )
        hooks = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
        fault("delta.commit.before_put")
        try:
            table.create_write_transaction(
                chosen,
                "append",  # With "overwrite" delta-rs would choose what to remove.
                table.schema(),
                list(state.metadata.partition_columns) or None,
                commit_properties=properties,
                post_commithook_properties=hooks,
            )
        except CommitFailedError as error:
            if self._folder.read(commit_name(state.version + 1)) is not None:
                return False
            raise StorageError(
                f"{self._who}: a commit to {self._folder.uri} failed\n  found: {error}\n"
                "  to fix: see that the store can be reached, with rights to write"
            ) from error
        fault("delta.commit.after_put")
        return True

    def _check_removals(self, removed: Sequence[Action]) -> None:
        """Refuse what delta-rs cannot say: that a file goes together with its deletion vector."""
        deleted_in = [remove["path"] for remove in removed if "deletionVector" in remove]
        if deleted_in:
            raise UserError(
                f"{self._who}: files with deletion vectors cannot be replaced in a store\n"
                f"  found: {self._folder.uri}/{deleted_in[0]}, and {len(deleted_in) - 1} others\n"
                "  to fix: REORG TABLE ... APPLY (PURGE) in Spark first, or overwrite with Spark"
            )

    def _checkpoint_if_due(self, version: int) -> None:
        """Sum up the log now and then; a table without checkpoints is slow, and right."""
        assert self._state is not None
        given = self._state.metadata.configuration.get("delta.checkpointInterval")
        every = int(given) if given and given.isdigit() else CHECKPOINT_EVERY
        if version % every:
            return
        module = import_for("deltalake", "delta", "a Delta table")
        options = delta_options(self._folder, self._options)
        fault("delta.commit.before_checkpoint")
        try:
            module.DeltaTable(
                self._folder.uri, version=version, storage_options=options
            ).create_checkpoint()
        except Exception as error:  # noqa: BLE001 - of a library; the commit is made
            _LOG.warning("no checkpoint of %s at %d: %s", self._folder.uri, version, error)
        with contextlib.suppress(StorageError):
            self._folder.remove_drafts(self._folder.log_names())


def _removal(add: Action, now_ms: int) -> Action:
    """The action that removes a file."""
    kept = ("path", "partitionValues", "size", "tags", "deletionVector")
    there = {name: add[name] for name in kept if add.get(name) is not None}
    more = {"deletionTimestamp": now_ms, "dataChange": True, "extendedFileMetadata": True}
    return {**there, **more}


def _removed_by_delta_rs(remove: Action) -> Action:
    """The arguments of a remove action of delta-rs."""
    return {
        "path": remove["path"],
        "data_change": True,
        "deletion_timestamp": remove["deletionTimestamp"],
        "size": remove.get("size"),
        "partition_values": remove.get("partitionValues"),
    }


def _for_delta_rs(add: Action) -> Action:
    """The arguments of an add action of delta-rs."""
    return {
        "path": add["path"],
        "size": add["size"],
        "partition_values": add["partitionValues"],
        "modification_time": add["modificationTime"],
        "data_change": True,
        "stats": add["stats"],
    }

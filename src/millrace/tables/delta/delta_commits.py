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
import secrets
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
    removal,
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
        self.folder: TableFolder = table_folder(uri, options, config)
        self.options, self._application, self.who = options, application, who
        self._state: TableState | None = None
        self._fitting: tuple[Any, set[str]] = (None, set())

    def place(self) -> int | None:
        """See `TableCommits.place`."""
        return self.look().places.get(self._application)

    def commit(
        self, files: Sequence[TableFile], *, before: int | None, place: int
    ) -> TableCommit | None:
        """See `TableCommits.commit`."""
        self.check_there(files)
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

        def all_files(state: TableState) -> list[Action]:
            now_ms = time.time_ns() // 1_000_000
            there = read_files(self.folder, state.version)
            return [{"remove": removal(add, now_ms)} for add in there]

        info = {"operation": "WRITE", "operationParameters": {"mode": "Overwrite"}}
        return self.exchange(files, all_files, info, before=before, place=place)

    def exchange(
        self,
        files: Sequence[TableFile],
        changes: Callable[[TableState], list[Action]],
        info: Action,
        *,
        before: int | None,
        place: int,
    ) -> TableCommit | None:
        """Commit files, and what `changes` makes of what the table has then; see `commit`."""
        self.check_there(files)
        added = [json.loads(file.about) for file in files]
        columns = {json.dumps(about["columns"], sort_keys=True) for about in added}

        def actions(state: TableState) -> list[Action] | None:
            if state.places.get(self._application) != before:
                return None
            self._check(state, columns)
            if state.metadata.configuration.get("delta.appendOnly", "").lower() == "true":
                raise UserError(
                    f"{self.who}: the rows of {self.folder.uri} cannot be replaced\n"
                    "  found: delta.appendOnly is true\n  to fix: append, or change that property"
                )
            return [*changes(state), *({"add": about["add"]} for about in added)]

        return self.commit_actions(actions, info, place=place)

    def commit_actions(
        self,
        actions: Callable[[TableState], list[Action] | None],
        info: Action,
        *,
        place: int | None,
    ) -> TableCommit | None:
        """Commit what `actions` makes of the table's state, with the application's place if given.

        It is asked again for each state. If it has None, nothing is committed.
        """
        for tries in range(1, _TRIES_MAX + 1):
            state = self.look()
            chosen = actions(state)
            if chosen is None:
                return None
            now_ms = time.time_ns() // 1_000_000
            first: Action = {
                "timestamp": now_ms,
                "engineInfo": f"millrace/{__version__}",
                "readVersion": state.version,
                "isolationLevel": "Serializable",
                "txnId": secrets.token_hex(16),
                **info,
            }
            txn = {"appId": self._application, "version": place, "lastUpdated": now_ms}
            placed: list[Action] = [] if place is None else [{"txn": txn}]
            lines = [{"commitInfo": first}, *placed, *chosen]
            if self._put(state, lines) or self._is_made(state.version + 1, first["txnId"]):
                self._checkpoint_if_due(state.version + 1)
                return TableCommit(version=state.version + 1, tries=tries)
            fault("delta.commit.after_refusal")
            time.sleep(random.uniform(0, min(1.0, _WAIT_S * tries)))  # noqa: S311 - no secret
        raise StorageError(
            f"{self.who}: no commit to {self.folder.uri} came through\n"
            f"  found: others were quicker {_TRIES_MAX} times\n"
            "  to fix: run it again when fewer processes write to the table"
        )

    def look(self) -> TableState:
        """The table as it is now."""
        known = self._state
        state = read_state(self.folder) if known is None else advanced(self.folder, known)
        if state is None:
            raise UserError(
                f"{self.who}: there is no Delta table at {self.folder.uri} any more\n"
                "  to fix: restore it, or run again, which makes a new one"
            )
        self._state = state
        return state

    def check_there(self, files: Sequence[TableFile]) -> None:
        """Raise if a file is gone that is to be committed."""
        missing = self.folder.missing([file.path for file in files])
        if missing:
            raise DataLost(
                f"{self.who}: a file of {self.folder.uri} is gone that no commit has yet\n"
                f"  found: no {missing[0]}, nor {len(missing) - 1} others\n"
                "  why: VACUUM removes files that wait for a commit longer than it retains files\n"
                "  to fix: reset the sink"
            )

    def _check(self, state: TableState, columns: set[str]) -> None:
        """See that files which were written earlier fit the table as it is now."""
        known, fitting = self._fitting
        if known is not state.metadata:
            check_writable(state, who=self.who, where=self.folder.uri)
            self._fitting = (state.metadata, fitting := set())
        table = {field["name"]: shown_type(field["type"]) for field in state.metadata.fields}
        for text in columns - fitting:
            for name, kind in json.loads(text).items():
                if table.get(name) != kind:
                    raise SchemaMismatch(
                        f"{self.who}: files that were written no longer fit {self.folder.uri}\n"
                        f"  found: column {name!r} was {kind} and is {table.get(name, 'gone')}\n"
                        "  to fix: give the table its columns back, or reset the sink"
                    )
            fitting.add(text)

    def _put(self, state: TableState, lines: list[Action]) -> bool:
        """Make the next version; False if somebody else has made it."""
        version = state.version + 1
        if self.folder.remote is None:
            return self.folder.create(commit_name(version), to_lines(lines))
        return self._put_in_store(state, lines)

    def _is_made(self, version: int, commit_id: str) -> bool:
        """Whether a refused version is this commit: its answer was lost, and a client repeated it.

        Else the files of a commit that was made would be taken for those of one that was not.
        """
        data = self.folder.read(commit_name(version))
        return data is not None and commit_id.encode() in data

    def _put_in_store(self, state: TableState, lines: list[Action]) -> bool:
        from deltalake import CommitProperties, DeltaTable, Transaction  # noqa: PLC0415
        from deltalake.exceptions import CommitFailedError  # noqa: PLC0415
        from deltalake.transaction import (  # noqa: PLC0415
            AddAction,
            PostCommitHookProperties,
            RemoveAction,
        )

        options = delta_options(self.folder, self.options)
        table = DeltaTable(self.folder.uri, version=state.version, storage_options=options)
        chosen: list[AddAction | RemoveAction] = [
            AddAction(**_for_delta_rs(line["add"])) for line in lines if "add" in line
        ]
        removed = [line["remove"] for line in lines if "remove" in line]
        self._check_removals(removed)
        chosen += [RemoveAction(**_removed_by_delta_rs(remove)) for remove in removed]
        places = [line["txn"] for line in lines if "txn" in line]
        properties = CommitProperties(
            custom_metadata={"txnId": lines[0]["commitInfo"]["txnId"]},
            max_commit_retries=0,
            app_transactions=[Transaction(txn["appId"], txn["version"]) for txn in places],
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
            if self.folder.read(commit_name(state.version + 1)) is not None:
                return False
            raise StorageError(
                f"{self.who}: a commit to {self.folder.uri} failed\n  found: {error}\n"
                "  to fix: see that the store can be reached, with rights to write"
            ) from error
        fault("delta.commit.after_put")
        return True

    def _check_removals(self, removed: Sequence[Action]) -> None:
        """Refuse what delta-rs cannot say: that a file goes together with its deletion vector."""
        deleted_in = [remove["path"] for remove in removed if "deletionVector" in remove]
        if deleted_in:
            raise UserError(
                f"{self.who}: files with deletion vectors cannot be replaced in a store\n"
                f"  found: {self.folder.uri}/{deleted_in[0]}, and {len(deleted_in) - 1} others\n"
                "  to fix: REORG TABLE ... APPLY (PURGE) in Spark first, or overwrite with Spark"
            )

    def _checkpoint_if_due(self, version: int) -> None:
        """Sum up the log now and then; a table without checkpoints is slow, and right."""
        assert self._state is not None
        given = self._state.metadata.configuration.get("delta.checkpointInterval")
        every = int(given) if given and given.isdecimal() else 0
        every = every or CHECKPOINT_EVERY
        if version % every:
            return
        module = import_for("deltalake", "delta", "a Delta table")
        options = delta_options(self.folder, self.options)
        fault("delta.commit.before_checkpoint")
        try:
            module.DeltaTable(
                self.folder.uri, version=version, storage_options=options
            ).create_checkpoint()
        except Exception as error:  # noqa: BLE001 - of a library; the commit is made
            _LOG.warning("no checkpoint of %s at %d: %s", self.folder.uri, version, error)
        with contextlib.suppress(StorageError):
            self.folder.remove_drafts(self.folder.log_names())


def _removed_by_delta_rs(remove: Action) -> Action:
    """The arguments of a remove action of delta-rs."""
    return {
        "path": remove["path"],
        "data_change": remove["dataChange"],
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
        "data_change": add["dataChange"],
        "stats": add["stats"],
    }

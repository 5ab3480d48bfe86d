"""The sinks of a step, while defining a job. `Step` is one of these.

Invariant: a call refuses its own wrong arguments, before anything runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from millrace.errors import UserError
from millrace.identity.schemas import plain_schema
from millrace.journal.kafka.sink.kafka_target import (
    PLACES,
    KafkaTarget,
    check_columns,
    kafka_target,
)
from millrace.names import path_text, shown
from millrace.pipeline.core import job_model
from millrace.pipeline.define.job_graph import JobGraph
from millrace.pipeline.define.keyed.change_sinks import marked_deletes
from millrace.pipeline.define.step_checks import (
    check_calling,
    check_compaction,
    check_delta_sink,
    check_journal,
    check_sink_options,
    sink_target,
)
from millrace.pipeline.define.step_options import options_of
from millrace.pipeline.define.user_functions import calling_of
from millrace.pipeline.large.large_values import loaded_schema
from millrace.scan.partition_paths import check_partition_by
from millrace.storage.file_systems import is_remote
from millrace.storage.storage_options import storage_options as storage_options_of
from millrace.tables.delta.delta_target import DeltaTarget
from millrace.tables.delta.log_folder import local_table
from millrace.tables.postgres.database_address import Password, database_address
from millrace.tables.postgres.names_in_sql import table_name
from millrace.tables.postgres.postgres_table import PostgresTable
from millrace.tables.postgres.target_table import TargetTable

Function = Callable[..., Any]


class StepSinks:
    """Writes rows of a source or a step of a job to what is outside of the job."""

    __slots__ = ("_graph", "_node")

    def __init__(self, graph: JobGraph, node: job_model.Anything) -> None:
        """A step of a job."""
        self._graph, self._node = graph, node

    @property
    def schema(self) -> pa.Schema:
        """Columns and types of its rows, known without running anything.

        Example:
            >>> texts.schema.field("size").type
            DataType(int64)
        """
        return self._node.schema

    def sink_parquet(
        self,
        path: str | os.PathLike[str],
        name: str | None = None,
        *,
        partition_by: str | Sequence[str] = (),
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        """Write the rows as Parquet files into a folder or a part of a bucket, each row into one.

        With `partition_by` there is a folder for the values of these columns, named as Spark does:
        `day=2024-05-01/`. They are whole numbers, texts, dates or booleans.
        `storage_options` say how to reach the bucket, where the environment does not.

        Example:
            >>> texts.sink_parquet("listing/")
        """
        call, full, options = sink_target(path, storage_options)
        by = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
        check_partition_by(call, loaded_schema(plain_schema(self.schema)), by)
        self._graph.take_target(full, call)
        self._graph.add(
            job_model.ParquetSink(
                name=self._graph.take_name(name, call, "sink_parquet"),
                inputs=(self._node,),
                schema=self.schema,
                path=full,
                options=options,
                partition_by=by,
            )
        )

    def sink_delta(
        self,
        uri: str | os.PathLike[str],
        name: str | None = None,
        *,
        mode: str | None = None,
        partition_by: str | Sequence[str] | None = None,
        keys: str | Sequence[str] = (),
        delete_column: str | None = None,
        compact_after: int | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        """Commit the rows to a Delta table, each row exactly once. It is made if there is none.

        With `keys`, a row takes the place of the rows with its keys. Of rows with one key the last
        one in the order of its journal counts: put `key_by` with the same keys in front of a sink
        of several partitions.

        Args:
            uri: the table: a folder on a disk that all hosts share, or an address at s3://, gs://,
                abfss:// or az://.
            name: of the sink in the job.
            mode: "append", or "upsert" with `keys`; it need not be said.
            partition_by: the partition columns of a table that is made. A table that is there keeps
                its own.
            keys: columns by which rows replace others.
            delete_column: with `keys`: a column of booleans that is not written; where it is true,
                the rows with these keys go. Rows with `_mr_op` in front need none.
            compact_after: put small files of the table together whenever there are so many, as
                `ws.optimize_delta` does; not at all by default.
            storage_options: how a bucket is reached if the environment does not say, under the
                names of delta-rs and Polars. They are sent to tasks and written nowhere.

        Example:
            >>> texts.sink_delta("tables/listing", partition_by="modified")
        """
        text = path_text(uri, "sink_delta")
        call = f"sink_delta({text!r})"
        chosen = (keys,) if isinstance(keys, str) else tuple(keys)
        check_delta_sink(call, mode, chosen, delete_column, plain_schema(self.schema))
        own = self._graph.take_name(name, call, "sink_delta")
        rows, deletes = marked_deletes(
            self._graph, self._node, own, call, keys=chosen, delete_column=delete_column
        )
        check_compaction(call, compact_after)
        options = storage_options_of(storage_options)
        where = text if is_remote(text) else local_table(text)
        by = (partition_by,) if isinstance(partition_by, str) else partition_by
        self._graph.take_target(where, call)
        self._graph.add(
            job_model.TableSink(
                name=own,
                inputs=(rows,),
                schema=rows.schema,
                target=DeltaTarget(
                    uri=where,
                    partition_by=None if by is None else tuple(by),
                    options=options,
                    keys=chosen,
                    delete_column=deletes,
                    later_wins=True,
                    compact_after=compact_after,
                ),
            )
        )

    def sink_iceberg(
        self,
        table: str,
        name: str | None = None,
        *,
        catalog: object = None,
        mode: str = "append",
        keep_snapshots: int | None = None,
    ) -> None:
        """Append the rows to an Iceberg table, each exactly once. Needs the extra `iceberg`.

        Workers write files, and the driver commits them by size and time (`Config.job_commit_bytes`
        and `job_commit_wait`). The table is made if there is none.

        Args:
            table: `"db.table"`.
            name: the name of the sink.
            catalog: as in `ws.read_iceberg`.
            mode: only "append".
            keep_snapshots: how many of the table's snapshots its commits leave; all by default.

        Example:
            >>> sink = texts.sink_iceberg  # sink("shop.listing", catalog="prod")
        """
        from millrace.tables.iceberg.iceberg_target import target_of  # noqa: PLC0415 - an extra

        call = f"sink_iceberg({table!r})"
        if mode != "append":
            raise UserError(
                f"{call}: mode {mode!r} is not for sinks of jobs\n  found: known is 'append'\n"
                "  to fix: leave mode= out, or use write_iceberg of a dataset"
            )
        target = target_of(table, catalog, call=call, keep_snapshots=keep_snapshots)
        self._graph.take_target(target.where, call)
        self._graph.add(
            job_model.TableSink(
                name=self._graph.take_name(name, call, "sink_iceberg"),
                inputs=(self._node,),
                schema=self.schema,
                target=target,
            )
        )

    def sink_journal(
        self,
        journal: str,
        name: str | None = None,
        *,
        workspace: job_model.OtherWorkspace | None = None,
    ) -> None:
        """Append the rows to a journal, which is made if there is none.

        `workspace` is another open workspace, whose broker keeps the journal; by default the job's.

        Example:
            >>> texts.sink_journal("acme/listing")
        """
        call = f"sink_journal({journal!r})"
        check_journal(call, journal, workspace)
        target = journal if workspace is None else f"{journal} in {workspace.path}"
        self._graph.take_target(target, call)
        self._graph.add(
            job_model.JournalSink(
                name=self._graph.take_name(name, call, "sink_journal"),
                inputs=(self._node,),
                schema=self.schema,
                journal=journal,
                workspace=workspace,
            )
        )

    def sink(
        self,
        name: str,
        function: Function,
        *,
        batch: bool | None = None,
        **options: Any,  # noqa: ANN401
    ) -> None:
        """Hand the rows to a function, each call recorded before it is made.

        The function gets rows or batches as that of `map` does, and what it returns is not looked
        at. A call can be made twice only if a worker dies in it: `context.key` is the same then.
        Options are those of `map` but for partitions, durable, large and expensive.

        Example:
            >>> def tell(row: dict, context: mr.Context) -> None:
            ...     print("to be sent once:", context.key, row["path"])
            >>> texts.sink("tell", tell, retries=5)
        """
        call = f"sink({name!r})"
        check_sink_options(call, options)
        made = options_of(call, options, expensive=True)
        calling = calling_of(call, function, batch=batch, version=made.version)
        check_calling(call, calling, made, self.schema, expensive=True)
        self._graph.add(
            job_model.FunctionSink(
                name=self._graph.take_name(name, call),
                inputs=(self._node,),
                schema=self.schema,
                calling=calling,
                options=made,
            )
        )

    def sink_postgres(
        self,
        url: str,
        table: str,
        name: str | None = None,
        *,
        mode: str = "append",
        keys: str | Sequence[str] = (),
        delete_column: str | None = None,
        create: bool = True,
        password: Password | None = None,
    ) -> None:
        """Commit the rows to a table of PostgreSQL, each row once: rows and place in a transaction.

        Args:
            url: `postgresql://user@host:5432/database`. It is kept without its password.
            table: `"orders"` or `"shop.orders"`; letters count as they are given.
            name: of the sink in the job.
            mode: "append", or "upsert" with `keys`.
            keys: columns with a unique index; a row replaces the row with the same keys.
            delete_column: as in `sink_delta`.
            create: make the table if there is none.
            password: or a function that gives the current one; kept in memory alone. By default
                libpq looks for it: PGPASSWORD, `~/.pgpass`, a service file.

        Example:
            >>> texts.sink_postgres("postgresql://me@db.example/shop", "listing", keys="path")
        """
        call = f"sink_postgres({table!r})"
        address = database_address(call, url, password)
        chosen = (keys,) if isinstance(keys, str) else tuple(keys)
        by_key = mode == "upsert" or delete_column is not None
        if mode not in ("append", "upsert") or (by_key and not chosen):
            raise UserError(
                f"{call}: mode is {shown(mode)} with {len(chosen)} keys\n"
                "  to fix: give mode='append', or keys=[...] to replace rows"
            )
        own = self._graph.take_name(name, call, "sink_postgres")
        rows, deletes = marked_deletes(
            self._graph, self._node, own, call, keys=chosen, delete_column=delete_column
        )
        target = PostgresTable(
            address=address,
            name=table_name(call, table),
            keys=chosen,
            delete_column=deletes,
            create=create,
        )
        self._graph.take_target(f"{target.name} at {address}", call)
        sink = job_model.PostgresSink(
            name=own,
            inputs=(rows,),
            schema=rows.schema,
            target=target,
        )
        who = f"sink {sink.name!r} of job {self._graph.job!r}"
        written = loaded_schema(plain_schema(rows.schema))
        TargetTable.of(target, written, who).check_values()
        self._graph.add(sink)

    def sink_kafka(
        self,
        topic: str,
        name: str | None = None,
        *,
        bootstrap: str,
        value: str | None = None,
        key: str | None = None,
        headers: str | None = None,
        partition: str | None = None,
        places: str = PLACES,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Commit the rows to a topic of Kafka, each row once: rows and place in a transaction.

        Readers see each row once if they read committed messages alone.

        Args:
            topic: an existing topic.
            name: of the sink in the job.
            bootstrap: `host:9092`, more hosts after commas.
            value: the column with a message's value, binary or text. By default the whole row is
                the value, as a JSON object.
            key: the column with its key, binary or text.
            headers: the column with its headers: an array of structs of key and value, or a map.
            partition: the column with its partition. By default the key decides, as in Kafka.
            places: the topic that has the progress of sinks; made if there is none.
            settings: of Kafka's client, as to log in; kept in memory alone. Those in the file that
                MILLRACE_KAFKA_SETTINGS names hold, too.

        Example:
            >>> texts.sink_kafka("listing", bootstrap="kafka.example:9092", key="path")
        """
        call = f"sink_kafka({topic!r})"
        given = KafkaTarget(
            topic=topic,
            servers=bootstrap,
            value=value,
            key=key,
            headers=headers,
            partition=partition,
            places=places,
        )
        target = kafka_target(call, given, settings)
        check_columns(call, loaded_schema(plain_schema(self.schema)), target)
        self._graph.take_target(target.where, call)
        self._graph.add(
            job_model.KafkaSink(
                name=self._graph.take_name(name, call, "sink_kafka"),
                inputs=(self._node,),
                schema=self.schema,
                target=target,
            )
        )

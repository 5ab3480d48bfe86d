"""The paths of a shuffle's files. Pure: names in, names out.

    shuffle/{query_id}/query.json
    shuffle/{query_id}/alive
    shuffle/{query_id}/{stage_id}/manifest.json, entries.bin
    shuffle/{query_id}/{stage_id}/reusing.json
    shuffle/{query_id}/{stage_id}/{map_task}/{attempt}/data.ipc (before: part-{reduce}.ipc)
    shuffle/{query_id}/{stage_id}/{map_task}/{attempt}/index.json, index.bin
    merged/{digest}.ipc
    inputs/{digest}.arrow, inputs/{digest}.used
    fingerprints/{family}/{fingerprint}/{query_id}-{stage_id}-{map_task}-{attempt}
    fingerprints/{family}/newest

Invariant: every path is relative to the workspace, uses `/`, and contains no part that came from
a user or the network except numbers and hexadecimal digits.
"""

from __future__ import annotations

import re
from typing import Final

from millrace.errors import UserError
from millrace.ids import (
    ID_MAX,
    AttemptId,
    Fingerprint,
    MapTaskId,
    QueryId,
    ReducePartition,
    StageId,
)

WORKSPACE_FILE: Final = "workspace.json"
SHUFFLE: Final = "shuffle"
FINGERPRINTS: Final = "fingerprints"
NEWEST: Final = "newest"
INPUTS: Final = "inputs"
MERGED: Final = "merged"
TRASH: Final = "trash"
SPILL: Final = "spill"
TABLE_WRITES: Final = "table-writes"
QUERY_FILE: Final = "query.json"
ALIVE_FILE: Final = "alive"
MANIFEST_FILE: Final = "manifest.json"
REUSING_FILE: Final = "reusing.json"
ENTRIES_FILE: Final = "entries.bin"
INDEX_BIN: Final = "index.bin"
INDEX_JSON: Final = "index.json"
DATA_FILE: Final = "data.ipc"
REMOVING_FILE: Final = "removing"

_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,19}")
_HEX: Final = re.compile(r"[0-9a-f]{16,64}")


def query_folder(query_id: QueryId) -> str:
    """Folder of one run."""
    return f"{SHUFFLE}/{_checked(query_id)}"


def query_path(query_id: QueryId) -> str:
    """File that says what the run is."""
    return f"{query_folder(query_id)}/{QUERY_FILE}"


def alive_path(query_id: QueryId) -> str:
    """File whose time of change shows that the run lives."""
    return f"{query_folder(query_id)}/{ALIVE_FILE}"


def stage_folder(query_id: QueryId, stage_id: StageId) -> str:
    """Folder of one stage of a run."""
    return f"{query_folder(query_id)}/{_checked(stage_id)}"


def manifest_path(query_id: QueryId, stage_id: StageId) -> str:
    """File that says which attempts count."""
    return f"{stage_folder(query_id, stage_id)}/{MANIFEST_FILE}"


def entries_path(query_id: QueryId, stage_id: StageId) -> str:
    """File with the entries of all map outputs that count, partition by partition."""
    return f"{stage_folder(query_id, stage_id)}/{ENTRIES_FILE}"


def merged_name(digest: str) -> str:
    """Name of an object that has several map outputs."""
    return f"{_hex(digest)}.ipc"


def reusing_path(query_id: QueryId, stage_id: StageId) -> str:
    """File that names the older attempts a running stage relies on."""
    return f"{stage_folder(query_id, stage_id)}/{REUSING_FILE}"


def task_folder(task: MapTaskId) -> str:
    """Folder of one map task."""
    return f"{stage_folder(task.query_id, task.stage_id)}/{_checked(task.map_task)}"


def attempt_folder(attempt: AttemptId) -> str:
    """Folder of one attempt."""
    return f"{task_folder(attempt.task)}/{_checked(attempt.attempt)}"


def part_file(reduce_partition: ReducePartition) -> str:
    """File of one partition, within its attempt's folder."""
    return f"part-{_checked(reduce_partition)}.ipc"


def family_folder(family: str) -> str:
    """Folder of all fingerprints that the same inputs ever had."""
    return f"{FINGERPRINTS}/{_hex(family)}"


def newest_path(family: str) -> str:
    """File that names the attempt that was noted last for the same inputs."""
    return f"{family_folder(family)}/{NEWEST}"


def fingerprint_folder(family: str, fingerprint: Fingerprint) -> str:
    """Folder of all attempts with one fingerprint."""
    return f"{family_folder(family)}/{_hex(fingerprint)}"


def reference_name(attempt: AttemptId) -> str:
    """Name of the empty file that leads from a fingerprint to an attempt."""
    return str(attempt).replace("/", "-")


def parse_reference(name: str) -> AttemptId | None:
    """Undo `reference_name`; None for a name that is not one."""
    parts = [number(part) for part in name.split("-")]
    match parts:
        case [int(query_id), int(stage_id), int(map_task), int(attempt)]:
            return AttemptId.of(query_id, stage_id, map_task, attempt)
        case _:
            return None


def number(name: str) -> int | None:
    """Read a folder name that is a number written the canonical way; None for any other name."""
    if not _NUMBER.fullmatch(name):
        return None
    value = int(name)
    return value if value <= ID_MAX else None


def removal_mark(attempt: AttemptId, cleaner: str) -> str:
    """File by which one clean-up says that it is about to remove an attempt."""
    return f"{attempt_folder(attempt)}/{REMOVING_FILE}-{_hex(cleaner)}"


def is_removal_mark(name: str) -> bool:
    """Whether a file in an attempt's folder is a mark of a clean-up."""
    return name.startswith(REMOVING_FILE)


def is_payload_name(name: str) -> bool:
    """Whether an index may name this file: the only names a reader follows."""
    if name == DATA_FILE:
        return True
    middle = name.removeprefix("part-").removesuffix(".ipc")
    return name == f"part-{middle}.ipc" and number(middle) is not None


def is_folder_id(text: str) -> bool:
    """Whether a text can be the id of a host's folder."""
    return _HEX.fullmatch(text) is not None


def _checked(value: int) -> int:
    given: object = value
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= value <= ID_MAX:
        raise UserError(f"not an id: {value!r}\n  to fix: give a whole number from 0 to 2**64 - 1")
    return value


def _hex(value: str) -> str:
    if not _HEX.fullmatch(value):
        raise UserError(f"not a fingerprint: {value!r}\n  to fix: give 16 to 64 hexadecimal digits")
    return value

"""What is particular about a bucket: opening it, servers that fail, and what is left behind."""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.s3.s3_kit import (
    BUCKET,
    SECRET,
    Proxy,
    Server,
    child_writes,
    client_of,
    keys,
    make_bucket,
    on_all,
    slowly_on_all,
    start,
    store_at,
)
from tests.unit.shuffle.shuffle_kit import HOUR_MS, KILLED, decide, in_child, now_ms

import millrace as mr
from millrace.cli.main import cli
from millrace.config import Config
from millrace.errors import S3Unreachable, StorageError, UserError, WorkspaceUnknown
from millrace.ids import AttemptId
from millrace.shuffle import cleanup, reader, runs
from millrace.shuffle.handle import Shuffle
from millrace.shuffle.writer import begin_attempt
from millrace.storage import layout
from millrace.storage.objects.object_store import REMOVED, ObjectStore

IMPATIENT = Config().with_options(s3_tries_max=2, s3_connect_ms_max=500, s3_answer_ms_max=500)
ATTEMPT = AttemptId.of(1, 0, 0, 1)


@on_all
def test_opening_leaves_nothing_but_the_workspaces_name(bucket: ObjectStore, url: str) -> None:
    ws = mr.open(url, create=True)
    assert keys(bucket) == {"workspace.json", "place.json"}
    assert mr.open(url).id == ws.id
    assert SECRET not in ws.path
    assert json.loads(bucket.read("workspace.json") or b"")["id"] == ws.id


def test_a_server_that_ignores_conditions_is_refused(server: Server, tmp_path: Path) -> None:
    del server  # Its credentials are looked at by nobody here.
    careless = start(tmp_path, signed=False)
    try:
        with Proxy(careless.port, drop_header="If-None-Match").running() as proxy:
            make_bucket(proxy.endpoint)
            place = f"s3://{BUCKET}/{secrets.token_hex(4)}?endpoint_override={proxy.endpoint}"

            with pytest.raises(
                StorageError, match="If-None-Match: \\* replaced an object"
            ) as found:
                mr.open(place, create=True)

            assert proxy.endpoint in str(found.value)
            assert "to fix: use a server with conditional writes" in str(found.value)
            assert keys(store_at(place)) == set()
            # The same server, asked without the proxy, is fine.
            direct = place.replace(proxy.endpoint, careless.endpoint)
            assert mr.open(direct, create=True).runs() == []
    finally:
        careless.process.stop()


def test_a_put_whose_answer_was_lost_is_known_as_ones_own(server: Server, url: str) -> None:
    with Proxy(server.port, swallow="/mine").running() as proxy:
        store = store_at(f"{url}?endpoint_override={proxy.endpoint}")

        assert store.create("mine", b"first")
        assert not store.create("mine", b"second")

        assert proxy.seen["PUT"] == 3
        assert store.read("mine") == b"first"


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (f"s3://key:{SECRET}@bucket/mill", "credentials in it"),
        (f"abfss://box:{SECRET}@account.dfs.core.windows.net/mill", "credentials in it"),
        (f"abfss://box@account.dfs.core.windows.net/mill?sig={SECRET}", "sig in it"),
        (f"gs://{SECRET}@bucket/mill", "credentials in it"),
        ("az://box/mill", "names no account"),
        (f"s3://bucket/mill?secret_key={SECRET}", "secret_key in it"),
        ("s3://bucket/mill?regoin=x", "did you mean region?"),
        ("s3:///mill", "names no bucket"),
        ("hdfs://host/mill", "give a local or shared path, or s3://bucket/prefix"),
        ("s3://bucket/../mill", "outside the workspace"),
    ],
)
def test_urls_that_cannot_be_are_refused_without_showing_secrets(place: str, said: str) -> None:
    with pytest.raises(UserError) as found:
        mr.open(place, create=True)
    assert said in str(found.value)
    assert SECRET not in str(found.value)


def test_refusals_name_bucket_and_key_and_what_to_do(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StorageError, match="s3://no-such-bucket/mill/probe/.*") as missing:
        mr.open("s3://no-such-bucket/mill", create=True)
    assert "make the bucket first" in str(missing.value)

    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(StorageError, match=f"s3://{BUCKET}/") as refused:
        store_at(url).read("workspace.json")
    assert "give this process credentials" in str(refused.value)


@pytest.mark.slow
def test_a_server_that_is_down_is_an_error_and_not_a_wait(url: str) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        place = f"{url}?endpoint_override=http://127.0.0.1:{silent.getsockname()[1]}"
        tries: list[Callable[[ObjectStore], object]] = [
            lambda store: store.create("a", b""),
            lambda store: store.load("a", 0, 1),
        ]
        for listening in (False, True):
            if listening:
                silent.listen()
            for ask in tries:
                with pytest.raises(S3Unreachable, match="no answer of http://127") as found:
                    ask(store_at(place, IMPATIENT))
                assert "Config.s3_tries_max" in str(found.value)


@pytest.mark.parametrize(
    ("point", "left"),
    [
        ("shuffle.write.before_keep", "nothing"),
        ("shuffle.write.before_index", "nothing"),
        ("shuffle.write.after_index", "a whole attempt"),
    ],
)
@slowly_on_all
def test_a_killed_writer_leaves_nothing_or_a_whole_attempt(
    bucket: ObjectStore, url: str, point: str, left: str, own_folder: Path
) -> None:
    where = (1, 0, 0, 1)
    assert in_child(child_writes, dict(os.environ), url, where, fault=point) == KILLED

    index = reader.find_index(bucket, ATTEMPT)
    assert (index is None) == (left == "nothing")
    if index is not None:
        rows = list(reader.map_partitions(bucket, [(index.id, m) for m in index.partitions]))
        assert sum(m.rows for m in index.partitions) == 500
        assert len(rows) == 3
    with bucket.payload_folder("any") as mine:
        # What the killed one had on this host's disk is gone with the next one's coming.
        assert [p.parent for p in own_folder.rglob("lock")] == [Path(mine)]


@on_all
def test_an_attempt_discarded_unfinished_is_forgotten_after_a_while(
    bucket: ObjectStore, url: str
) -> None:
    begin_attempt(bucket, ATTEMPT)
    folder = layout.attempt_folder(ATTEMPT)
    bucket.create(f"{folder}/data.ipc", b"half")

    assert bucket.discard(folder)
    assert keys(bucket) == {f"{folder}/index.bin"}
    assert bucket.calls.get(f"{folder}/index.bin") == REMOVED
    bucket.empty_trash()
    assert keys(bucket) == {f"{folder}/index.bin"}

    # A late writer's data goes with it; its index is refused as long as that can be.
    bucket.replace(f"{folder}/data.ipc", b"late")
    assert not bucket.create(f"{folder}/index.bin", b"an index")
    bucket.create("probe/of-a-killed-process", b"first")
    soon = store_at(url, Config().with_options(unfinished_grace=0.001))
    while keys(bucket):
        soon.empty_trash()
        time.sleep(0.1)


def test_a_half_done_upload_is_no_object_and_cleanup_ends_it(bucket: ObjectStore) -> None:
    client, key = client_of(bucket), bucket.address.key("shuffle/1/0/0/1/data.ipc")
    run = runs.begin_run(bucket, plan="p", about={}, now_ms=1)
    bucket.remove_file(layout.alive_path(run.query_id))
    upload = client.create_multipart_upload(Bucket=BUCKET, Key=key)
    client.upload_part(
        Bucket=BUCKET, Key=key, UploadId=upload["UploadId"], PartNumber=1, Body=b"half"
    )

    def under_way() -> list[str]:
        found = client.list_multipart_uploads(Bucket=BUCKET, Prefix=key).get("Uploads", [])
        return [one["Key"] for one in found]

    assert bucket.names("shuffle/1/0/0/1") == []
    cleanup.remove_expired(bucket, ttl_ms=1, now_ms=now_ms(), config=Config())
    assert under_way() == [key]
    late = now_ms() + 2 * HOUR_MS
    cleanup.remove_expired(bucket, ttl_ms=1, now_ms=late, config=Config())
    assert under_way() == []


@on_all
def test_the_command_line_looks_at_a_bucket(bucket: ObjectStore, url: str) -> None:
    looked = CliRunner().invoke(cli, ["shuffle", "gc", url])
    assert isinstance(looked.exception, WorkspaceUnknown)
    assert [found.name for found in bucket.calls.list("")] == []
    mr.open(url, create=True).close()
    run = runs.begin_run(bucket, plan="a plan", about={"map_tasks": 1}, now_ms=now_ms())
    child_writes({}, url, (run.query_id, 0, 0, 1))
    index = reader.find_index(bucket, AttemptId.of(run.query_id, 0, 0, 1))
    assert index is not None
    decide(bucket, run.query_id, [index])  # type: ignore[arg-type]

    listed = CliRunner().invoke(cli, ["shuffle", "ls", url, "--json"], catch_exceptions=False)
    shown = CliRunner().invoke(cli, ["shuffle", "show", url, "1"], catch_exceptions=False)
    checked = CliRunner().invoke(cli, ["shuffle", "verify", url, "1"], catch_exceptions=False)
    assert json.loads(listed.output)[0]["rows"] == 500
    assert "500 rows" in shown.output
    assert (checked.exit_code, "problem" in checked.output) == (0, False)

    bucket.remove_file("shuffle/1/0/0/1/data.ipc")
    broken = CliRunner().invoke(cli, ["shuffle", "verify", url, "1"], catch_exceptions=False)
    assert broken.exit_code == 1
    assert "is gone" in broken.output


def test_requests_are_as_few_as_the_docs_say(server: Server, url: str) -> None:
    with Proxy(server.port).running() as proxy:
        place = f"{url}?endpoint_override={proxy.endpoint}"
        store = store_at(place)

        child_writes({}, place, (1, 0, 0, 1))
        written = dict(proxy.seen)
        index = reader.find_index(store, ATTEMPT)
        assert index is not None
        shuffle = Shuffle(manifest=decide(store, 1, [index]), stores={None: store})  # type: ignore[arg-type]
        proxy.seen.clear()
        assert sum(shuffle.read(n).num_rows for n in range(3)) == 500

    # A claim, the data, two words of it, the index; whatever the number of partitions.
    assert written == {"PUT": 5, "LIST": 1}
    # The index, and a range of it for each partition.
    assert dict(proxy.seen) == {"GET": 4}

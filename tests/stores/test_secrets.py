"""Values of `storage_options=` are in no file: not of the workspace, and not of Spark."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.stores.secret_app import CONTROL
from tests.stores.servers import StoreServer

from millrace.storage.file_systems import remote_path
from millrace.storage.storage_options import apart, put_back, storage_options

pytestmark = pytest.mark.spark


def files_with(text: str, folder: Path) -> Iterator[str]:
    """Files below a folder that have a text in them or in their name."""
    for path in folder.rglob("*"):
        if text in str(path) or (path.is_file() and text.encode() in path.read_bytes()):
            yield str(path.relative_to(folder))


@pytest.mark.parametrize("running", ["moto"], indirect=True)
@pytest.mark.parametrize("mode", ["classic", pytest.param("connect", marks=pytest.mark.slow)])
def test_a_secret_rests_in_no_file_of_a_workspace_or_of_spark(
    store: StoreServer, mode: str, tmp_path: Path
) -> None:
    options = storage_options(store.options)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"k": [0, 1] * 5, "v": list(range(10))}), sink)
    remote_path(f"{store.url}/in/a.parquet", options).put(sink.getvalue())
    secret = store.options["aws_secret_access_key"]
    environment = dict(os.environ, TMPDIR=str(tmp_path), MILLRACE_FOLDER=str(tmp_path / "own"))
    environment |= {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_DIRS": str(tmp_path / "local")}
    environment["JDK_JAVA_OPTIONS"] = f"-Djava.io.tmpdir={tmp_path}"
    about = json.dumps([store.url, store.options])
    log = tmp_path / "spark.log"
    with (
        log.open("wb") as out,
        subprocess.Popen(
            [sys.executable, "-m", "tests.stores.secret_app", mode, str(tmp_path), about],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=Path(__file__).parents[2],
        ) as app,
    ):
        try:
            until = time.monotonic() + 180
            while not (tmp_path / "done").exists():
                assert app.poll() is None, log.read_text()[-3000:]
                assert time.monotonic() < until, log.read_text()[-3000:]
                time.sleep(0.1)
            while_it_runs = list(files_with(secret, tmp_path))
            large_functions = list(files_with(CONTROL, tmp_path / "local"))
            assert app.stdin is not None
            app.stdin.close()
            app.wait(60)
        finally:
            app.kill()

    assert while_it_runs == []
    assert list(files_with(secret, tmp_path)) == []
    assert list(files_with("MapInArrow", tmp_path / "events")), "events are searched as plain text"
    if mode == "classic":
        assert large_functions, "Spark wrote a large function to its local folder, in plain bytes"


def test_options_are_put_back_where_they_were() -> None:
    first, second = (storage_options({"aws_secret_access_key": text}) for text in ("one", "two"))
    with apart() as options:
        pickled = pickle.dumps([first, second, storage_options({}), first])
    assert b"one" not in pickled
    assert options == [first, second]
    with put_back(options):
        assert pickle.loads(pickled) == [first, second, storage_options({}), first]
    assert pickle.loads(pickle.dumps(first)) == first

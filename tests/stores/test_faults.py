"""Stores that fail: what is read and written is right, or there is an error within the limits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import pyarrow as pa
import pytest
from tests.proxy import CuttingProxy
from tests.stores.faulty_proxy import FAULTS, FaultyProxy
from tests.stores.servers import StoreServer
from tests.stores.test_results import Target
from tests.stores.test_users_files import opened, put_parquet, rows_of

from millrace.config import Config
from millrace.errors import Conflict, MillraceError, S3Unreachable, StorageError
from millrace.storage.file_systems import remote_path
from millrace.storage.remote_paths import RemotePath
from millrace.storage.storage_options import storage_options

SHORT = Config(gone_after="3s")


def through(store: StoreServer, endpoint: str) -> StoreServer:
    name = next(name for name in store.options if name.endswith("endpoint_url"))
    return replace(store, options={**store.options, name: endpoint})


def port_of(store: StoreServer) -> int:
    found = next(v for name, v in store.options.items() if name.endswith("endpoint_url"))
    return int(found.rpartition(":")[2])


@pytest.fixture
def proxy(store: StoreServer) -> Iterator[FaultyProxy]:
    with FaultyProxy(port_of(store)).running() as running:
        yield running


@pytest.fixture
def silent(store: StoreServer) -> Iterator[CuttingProxy]:
    proxy = CuttingProxy(f"http://127.0.0.1:{port_of(store)}", [None])
    yield proxy
    proxy.flowing.set()
    proxy.cut_all()
    proxy.close()


@pytest.mark.slow  # 20 s to 40 s of waiting.
def test_each_call_to_a_silent_store_ends_within_its_limit(
    store: StoreServer, silent: CuttingProxy
) -> None:
    put_parquet(store, "a.parquet", range(1000))
    there = through(store, f"http://127.0.0.1:{silent.address.rpartition(':')[2]}")
    file = remote_path(f"{there.url}/a.parquet", storage_options(there.options), SHORT)
    data = file.read()
    assert data is not None
    reading = file.open_file()
    silent.flowing.clear()

    calls: list[Callable[[RemotePath], object]] = [
        lambda at: at.version(),
        lambda at: at.list(),
        lambda at: at.read(),
        lambda at: at.remove(),
        lambda at: at.put(b"x"),
        lambda at: at.copy(at.below("copy")),
        lambda at: at.open_stream(unpacked=True),
        lambda _: reading.read(10),
    ]
    for call in calls:
        with pytest.raises((StorageError, S3Unreachable, OSError)):
            call(file)

    silent.cut_all()
    silent.flowing.set()


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("running", ["moto"], indirect=True)
def test_input_is_read_right_through_faults(
    store: StoreServer, proxy: FaultyProxy, fault: str
) -> None:
    for number in range(2):
        put_parquet(store, f"in/{number}.parquet", range(number * 200, number * 200 + 200), 100)
    proxy.share, proxy.faults = 0.4, (fault,)

    source = opened(through(store, proxy.endpoint), "in")

    assert sorted(int(str(row["v"])) for row in rows_of(source)) == list(range(400))
    assert proxy.met[fault]


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("running", ["azurite", "google"], indirect=True)
def test_input_of_other_makes_is_read_right_or_not_at_all(
    store: StoreServer, proxy: FaultyProxy, fault: str
) -> None:
    for number in range(2):
        put_parquet(store, f"in/{number}.parquet", range(number * 100, number * 100 + 100), 50)
    proxy.share, proxy.faults = 0.2, (fault,)
    try:
        rows = rows_of(opened(through(store, proxy.endpoint), "in"))
    except (MillraceError, OSError, pa.ArrowException):
        assert store.name != "google", "our own client tries often enough"
        return
    assert sorted(int(str(row["v"])) for row in rows) == list(range(200))


@pytest.mark.parametrize("running", ["moto"], indirect=True)
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def test_a_result_is_whole_or_marked_through_faults(
    store: StoreServer, proxy: FaultyProxy, seed: int
) -> None:
    options = storage_options(store.options)
    plain = Target(remote_path(f"{store.url}/out", options), options)
    plain.write(0)
    there = through(store, proxy.endpoint)
    faulty_options = storage_options(there.options)
    faulty = Target(remote_path(f"{there.url}/out", faulty_options), faulty_options)
    proxy.share, proxy.seed = 0.3, seed
    written = 0
    for first in (10, 20, 30):
        try:
            faulty.write(first)
        except (MillraceError, OSError):
            assert not plain.is_whole() or plain.seen() in (
                [written, written + 1, written + 2],
                [first, first + 1, first + 2],
            )
        else:
            written = first
            assert plain.seen() == [first, first + 1, first + 2]
            assert plain.is_whole()
    assert sum(proxy.met.values())


@pytest.mark.parametrize("running", ["moto"], indirect=True)
def test_a_listing_that_lacks_the_newest_objects_publishes_no_part_of_a_result(
    store: StoreServer, proxy: FaultyProxy
) -> None:
    options = storage_options(store.options)
    plain = Target(remote_path(f"{store.url}/out", options), options)
    plain.write(0)
    there = through(store, proxy.endpoint)
    faulty_options = storage_options(there.options)
    faulty = Target(remote_path(f"{there.url}/out", faulty_options), faulty_options)
    proxy.hide = re.compile(rb"<Contents><Key>[^<]*/2-try</Key>.*?</Contents>", re.DOTALL)
    with pytest.raises(Conflict, match="2-try"):
        faulty.write(10)
    assert (plain.seen(), plain.is_whole()) == ([0, 1, 2], True)
    proxy.hide = None
    faulty.write(20)
    assert plain.seen() == [20, 21, 22]

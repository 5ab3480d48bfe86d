"""Journals that are left to `millrace serve`: others join it, wait for it, and never stand in."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from pyspark.sql import SparkSession
from tests.unit.transport.owner_kit import QUICK, SCHEMA, all_values, column

import millrace as mr
from millrace.errors import Corrupt, OwnerUnreachable, UserError
from millrace.spark.session import is_local, is_reachable
from millrace.transport.owner import broker_address, owner_endpoint
from millrace.transport.owner.election import own_or_join
from millrace.transport.owner.joined_broker import JoinedBroker
from millrace.transport.owner.journal_owner import Owner
from millrace.transport.owner.local_link import LocalLink
from millrace.workspace import Workspace, runtime_of

IMPATIENT = QUICK.with_options(owner_start_ms_max=50, owner_retries_max=1)


def serve(ws: Workspace) -> Owner:
    place = broker_address.owned_workspace(
        ws.path,
        workspace_id=ws.id,
        token=runtime_of(ws).token,
        kind=broker_address.EMBEDDED,
        config=QUICK,
    )
    owner = Owner.open(place)
    owner_endpoint.keep_for(owner_endpoint.store_of(ws.path), owner.endpoint.address)
    return owner


def test_nobody_takes_the_place_of_an_owner_that_stays(tmp_path: Path) -> None:
    ws = mr.open(tmp_path, create=True, config=QUICK)
    first = serve(ws)
    ws.journals.create("a", SCHEMA)
    first.close()
    impatient = mr.open(tmp_path, create=True, config=IMPATIENT)
    with pytest.raises(
        OwnerUnreachable, match=r"(?s)left to `millrace serve`.*remove .*served\.json"
    ):
        impatient.journals.list()
    begun: list[Owner] = []
    later = threading.Timer(0.3, lambda: begun.append(serve(ws)))
    later.start()
    ws.journals.append("a", column(1))
    later.join()

    assert all_values(runtime_of(impatient).joined_broker(), "a") == [1]
    assert not isinstance(runtime_of(ws).joined_broker()._caller.link(), LocalLink)
    assert runtime_of(ws).joined_broker().epoch > first.epoch
    for each in (impatient, ws):
        each.close()
    begun[0].close()


def test_journals_are_anybodys_again_when_that_is_said(tmp_path: Path) -> None:
    ws = mr.open(tmp_path, create=True, config=IMPATIENT)
    serve(ws).close()
    owner_endpoint.keep_for(owner_endpoint.store_of(ws.path), None)

    assert owner_endpoint.kept_for(owner_endpoint.store_of(ws.path)) is None
    assert ws.journals.list() == ()
    assert isinstance(runtime_of(ws).joined_broker()._caller.link(), LocalLink)
    ws.close()


def test_a_mark_that_cannot_be_read_still_keeps_others_away(tmp_path: Path) -> None:
    ws = mr.open(tmp_path, create=True, config=IMPATIENT)
    (tmp_path / "served.json").write_text("torn")
    with pytest.raises(Corrupt, match=r"served\.json cannot be read"):
        ws.journals.list()
    ws.close()


def joiner(ws: Workspace) -> JoinedBroker:
    place = broker_address.owned_workspace(
        ws.path,
        workspace_id=ws.id,
        token=runtime_of(ws).token,
        kind=broker_address.EMBEDDED,
        config=IMPATIENT,
        joins_only=True,
    )
    return own_or_join(place)


def test_a_client_that_nobody_reaches_joins_or_says_what_to_run(tmp_path: Path) -> None:
    ws = mr.open(tmp_path, create=True, config=QUICK)
    client = joiner(ws)
    with pytest.raises(UserError, match="millrace serve"):
        client.list()
    assert not (tmp_path / "owner.json").exists()
    ws.journals.create("a", SCHEMA)

    assert [each.name for each in client.list()] == ["a"]
    client.close()
    ws.close()


class _Connect:
    """What a session of Spark Connect shows of itself."""

    __module__ = "pyspark.sql.connect.session"

    def __init__(self, host: str, master: str) -> None:
        self.client = SimpleNamespace(host=host)
        self.conf = SimpleNamespace(get=lambda _name, _default=None: master)


class _Classic(_Connect):
    __module__ = "pyspark.sql.session"


@pytest.mark.parametrize(
    ("kind", "host", "master", "local", "reachable"),
    [
        (_Connect, "localhost", "local[2]", True, True),
        (_Connect, "127.0.0.1", "spark://127.0.0.1:7077", True, True),
        (_Connect, "spark.example", "local[2]", False, False),
        (_Connect, "localhost", "spark://10.0.0.1:7077", False, False),
        (_Connect, "spark.example", "k8s://https://10.0.0.1", False, False),
        (_Classic, "", "yarn", False, True),
        (_Classic, "", "local[2]", True, True),
    ],
)
def test_a_client_of_connect_is_not_reached_unless_all_is_here(
    kind: type[_Connect], host: str, master: str, *, local: bool, reachable: bool
) -> None:
    spark = cast("SparkSession", kind(host, master))

    assert is_local(spark, QUICK) is local
    assert is_reachable(spark, QUICK, {}) is reachable
    assert is_reachable(spark, QUICK, {"MILLRACE_AGENT_HOST": "10.0.0.9"})


def test_a_far_client_of_connect_never_listens(tmp_path: Path) -> None:
    far = cast("SparkSession", _Connect("spark.example", "yarn"))
    ws = mr.open(tmp_path, far, create=True, config=IMPATIENT)
    with pytest.raises(UserError, match="MILLRACE_AGENT_HOST"):
        ws.journals.list()
    ws.close()

"""A server has done what first pages need before its address is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

import millrace as mr
from millrace.page import templating
from millrace.page.page_app import PageSource, page_app
from millrace.page.page_server import PageServer
from millrace.page.warm_up import warm_up
from millrace.system.resting_workspace import RestingWorkspace


@pytest.mark.parametrize("token", [None, "secret"])
def test_the_first_page_is_made_before_somebody_asks(tmp_path: Path, token: str | None) -> None:
    mr.open(tmp_path / "mill", create=True).close()
    with RestingWorkspace.at(str(tmp_path / "mill")) as resting:
        app, sent = page_app(PageSource(resting), token), []

        async def listening(scope: Scope, receive: Receive, send: Send) -> None:
            async def told(message: Any) -> None:  # noqa: ANN401 - a message
                sent.append(message)
                await send(message)

            await app(scope, receive, told)

        warm_up(listening, token)

    assert [message.get("status") for message in sent] == [200, None]


def test_all_templates_are_compiled_when_the_address_is_known(tmp_path: Path) -> None:
    mr.open(tmp_path / "mill", create=True).close()
    templating._environment.cache_clear()

    server = PageServer(PageSource(RestingWorkspace.at(str(tmp_path / "mill"))))

    environment = templating._environment()
    server.close()
    assert environment.cache is not None
    compiled = {name for _, name in environment.cache.keys()}  # noqa: SIM118 - not a mapping
    assert compiled >= {name for name in environment.list_templates() if name.endswith(".html")}

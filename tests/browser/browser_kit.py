"""A headless Chromium, driven by its own chromedriver: pages, clicks, the console, the network.

python -m tests.browser.browser_kit    says whether there is one, and how to get it
"""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from tests.browser.npm_files import axe_script

NAMES: Final = ("chromium", "chromedriver")
ARGUMENTS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
)
_START_S: Final = 60.0
_WAIT_S: Final = 30.0


def missing() -> str:
    """What of a browser is not on this machine, in words; empty if all is there."""
    lacks = [name for name in NAMES if shutil.which(name) is None]
    if not lacks:
        return ""
    return (
        f"no {' and no '.join(lacks)} on this machine\n"
        "to fix: apt-get install chromium chromium-driver (Debian), or scripts/from-debian browser"
    )


class BrowserError(Exception):
    """A call that the browser refused."""


TAB, ENTER = "\ue004", "\ue007"
"""Keys, as WebDriver names them."""


@dataclass(frozen=True, slots=True)
class Browser:
    """One window of a browser. Everything that it asked for is remembered."""

    session: str

    def call(self, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401 - JSON
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(  # noqa: S310 - chromedriver on this host
            f"{self.session}{path}", data, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310 - as above
                return json.loads(answer.read())["value"]
        except urllib.error.HTTPError as error:
            raise BrowserError(error.read().decode()[:1000]) from error

    def open(self, url: str) -> None:
        self.call("POST", "/url", {"url": url})

    def run(self, script: str, *values: object) -> Any:  # noqa: ANN401 - what the script returns
        return self.call("POST", "/execute/sync", {"script": script, "args": list(values)})

    def run_later(self, script: str, *values: object) -> Any:  # noqa: ANN401 - as above
        """A script that calls its last argument when it is done."""
        return self.call("POST", "/execute/async", {"script": script, "args": list(values)})

    def text(self, selector: str = "main") -> str:
        return str(self.run("return document.querySelector(arguments[0]).innerText", selector))

    def texts(self, selector: str) -> list[str]:
        script = "return [...document.querySelectorAll(arguments[0])].map(e => e.innerText)"
        return list(self.run(script, selector))

    def click(self, selector: str) -> None:
        script = "document.querySelector(arguments[0]).click()"
        self.run(script, selector)

    def press(self, *keys: str) -> None:
        """Press keys, one after the other, as a user does."""
        for key in keys:
            pair = [{"type": kind, "value": key} for kind in ("keyDown", "keyUp")]
            moves = {"actions": [{"type": "key", "id": "keyboard", "actions": pair}]}
            self.call("POST", "/actions", moves)

    def table(self, label: str) -> list[dict[str, str]]:
        """The rows of the table in the region of this name, by the heads of its columns."""
        script = """
        const table = document.querySelector(`[aria-label="${arguments[0]}"] table`);
        const cells = (row) => [...row.children].map((c) => c.innerText.trim());
        return [cells(table.tHead.rows[0]), ...[...table.tBodies[0].rows].map(cells)]
        """
        self.wait_for(f"document.querySelector(`[aria-label='{label}'] table`)")
        heads, *rows = self.run(script, label)
        return [dict(zip(heads, row, strict=True)) for row in rows]

    def wait_for(self, script: str, *values: object) -> None:
        """Wait until a script returns something true."""
        until = time.monotonic() + _WAIT_S
        while not self._is_true(script, *values):
            assert time.monotonic() < until, f"never true: {script}\n{self.text('body')}"
            time.sleep(0.1)

    def _is_true(self, script: str, *values: object) -> bool:
        try:
            return bool(self.run(f"return Boolean({script})", *values))
        except BrowserError:
            return False  # The page is being left.

    def resize(self, width: int, height: int) -> None:
        """Give the page this size, also one that no window of a desktop has."""
        self.call(
            "POST",
            "/goog/cdp/execute",
            {
                "cmd": "Emulation.setDeviceMetricsOverride",
                "params": {
                    "width": width,
                    "height": height,
                    "deviceScaleFactor": 1,
                    "mobile": False,
                },
            },
        )

    def colours(self, scheme: str) -> None:
        """Light or dark."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        body = {"cmd": "Emulation.setEmulatedMedia", "params": {"features": features}}
        self.call("POST", "/goog/cdp/execute", body)

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Save what the page looks like."""
        params = {"format": "png", "captureBeyondViewport": whole}
        if whole:
            height = self.run("return document.documentElement.scrollHeight")
            width = self.run("return innerWidth")
            params["clip"] = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        body = {"cmd": "Page.captureScreenshot", "params": params}
        path.write_bytes(base64.b64decode(self.call("POST", "/goog/cdp/execute", body)["data"]))

    def complaints(self) -> list[str]:
        """Errors and warnings of the console since the last call."""
        entries = self.call("POST", "/se/log", {"type": "browser"})
        return [f"{entry['level']}: {entry['message']}" for entry in entries]

    def asked(self) -> list[str]:
        """The addresses of all requests since the last call."""
        found = []
        for entry in self.call("POST", "/se/log", {"type": "performance"}):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                found.append(message["params"]["request"]["url"])
        return found

    def faults(self) -> list[str]:
        """What axe-core finds that keeps people out: serious and critical faults."""
        self.run(axe_script())
        result = self.run_later(
            "const done = arguments[arguments.length - 1];"
            "axe.run(document, {resultTypes: ['violations']}).then(done, e => done(String(e)))"
        )
        assert isinstance(result, dict), result
        return [
            f"{found['id']}: {found['help']}: {node['html'][:160]}"
            for found in result["violations"]
            if found["impact"] in ("serious", "critical")
            for node in found["nodes"]
        ]


def beyond(urls: list[str]) -> list[str]:
    """Addresses that are not of this machine."""
    return [
        url
        for url in urls
        if urlsplit(url).scheme not in ("data", "about", "blob", "chrome")
        and urlsplit(url).hostname not in ("127.0.0.1", "localhost")
    ]


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser with an empty profile."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="mr-browser-") as folder:
        driver = subprocess.Popen(
            [shutil.which("chromedriver") or "chromedriver", f"--port={port}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            session = _session(f"http://127.0.0.1:{port}", f"{folder}/profile")
            opened = Browser(session)
            try:
                yield opened
            finally:
                opened.call("DELETE", "")
        finally:
            driver.terminate()
            driver.wait(30)


def _session(driver: str, profile: str) -> str:
    wanted = {
        "browserName": "chrome",
        "goog:chromeOptions": {
            "binary": shutil.which("chromium"),
            "args": [*ARGUMENTS, f"--user-data-dir={profile}"],
        },
        "goog:loggingPrefs": {"browser": "WARNING", "performance": "ALL"},
    }
    body = json.dumps({"capabilities": {"alwaysMatch": wanted}}).encode()
    until = time.monotonic() + _START_S
    while True:
        try:
            request = urllib.request.Request(f"{driver}/session", body, method="POST")  # noqa: S310 - this host
            with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310 - this host
                made = json.loads(answer.read())["value"]
                return f"{driver}/session/{made['sessionId']}"
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from error
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


if __name__ == "__main__":
    if why := missing():
        sys.exit(why)
    axe_script()

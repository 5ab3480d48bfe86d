"""Hosts with a network of their own, and a switch between them that delays and loses packets.

Each is a network namespace of Linux with one device, whose other end the switch holds. This needs
root and /dev/net/tun; `missing` says what of it is not there.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import os
import random
import select
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Final

_TUN: Final = "/dev/net/tun"
_TUNSETIFF: Final = 0x400454CA
_IFF_TUN_NO_PI: Final = 0x1001
_MTU: Final = 9000
_QUEUED_MAX: Final = 4096
"""Packets on their way; more are lost, as in any switch."""


def missing() -> str | None:
    """Why hosts cannot have a network of their own here; None if they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "no `ip` (iproute2) on the PATH"
    if not os.path.exists(_TUN):
        return f"no {_TUN}"
    name = f"mrprobe{os.getpid()}"
    tried = _ip("netns", "add", name, check=False)
    if tried.returncode:
        return f"`ip netns add` failed: {tried.stderr.strip()}"
    _ip("netns", "del", name)
    return None


class Network:
    """Some hosts and the switch between them. The first is this process's own namespace."""

    def __init__(self, hosts: int, *, delay_s: float, loss: float, seed: int) -> None:
        self.delay_s, self.loss = delay_s, loss
        self.cut_off: set[str] = set()
        """Addresses that nothing reaches, and from which nothing comes."""
        self.passed = self.lost = 0
        self._random = random.Random(seed)  # noqa: S311 - a seed replays it
        number = os.getpid()
        subnet = f"10.{200 + number % 50}.{number // 50 % 250}"
        self.names = [f"millrace-{number}-{host}" for host in range(1, hosts)]
        self.addresses = [f"{subnet}.{1 + host}" for host in range(hosts)]
        self._devices: dict[bytes, int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._switch, name="switch", daemon=True)
        try:
            for host, address in enumerate(self.addresses):
                self._plug(f"mr{number}-{host}", address, self.names[host - 1] if host else None)
        except BaseException:
            self._unplug()
            raise
        self._thread.start()

    @property
    def prefixes(self) -> list[tuple[str, ...]]:
        """What a command of each host begins with; nothing for the first."""
        return [(), *(("ip", "netns", "exec", name) for name in self.names)]

    def close(self) -> None:
        """Take it all down again."""
        self._stop.set()
        self._thread.join()
        self._unplug()

    def _plug(self, device: str, address: str, namespace: str | None) -> None:
        handle = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._devices[bytes(map(int, address.split(".")))] = handle
        fcntl.ioctl(handle, _TUNSETIFF, struct.pack("16sH", device.encode(), _IFF_TUN_NO_PI))
        inside: Sequence[str] = ()
        if namespace is not None:
            _ip("netns", "add", namespace)
            _ip("link", "set", device, "netns", namespace)
            inside = ("-n", namespace)
            _ip(*inside, "link", "set", "lo", "up")
        _ip(*inside, "addr", "add", f"{address}/24", "dev", device)
        _ip(*inside, "link", "set", device, "mtu", str(_MTU), "up")

    def _unplug(self) -> None:
        for handle in self._devices.values():
            os.close(handle)
        for name in self.names:
            _ip("netns", "del", name, check=False)

    def _switch(self) -> None:
        poll = select.epoll()
        for handle in self._devices.values():
            poll.register(handle, select.EPOLLIN)
        waiting: list[tuple[float, int, int, bytes]] = []
        while not self._stop.is_set():
            now = time.monotonic()
            pause_s = min(0.1, max(0.0, waiting[0][0] - now)) if waiting else 0.1
            for handle, _ in poll.poll(pause_s):
                for packet in _packets(handle):
                    self._take(packet, waiting)
            now = time.monotonic()
            while waiting and waiting[0][0] <= now:
                _, _, handle, packet = heapq.heappop(waiting)
                with contextlib.suppress(OSError):
                    os.write(handle, packet)
        poll.close()

    def _take(self, packet: bytes, waiting: list[tuple[float, int, int, bytes]]) -> None:
        """A packet that came: lost, or on its way."""
        source, target = packet[12:16], packet[16:20]
        handle = self._devices.get(target)
        if packet[0] >> 4 != 4 or handle is None:
            return  # No other than IPv4 between hosts.
        off = {bytes(map(int, address.split("."))) for address in self.cut_off}
        is_full = len(waiting) >= _QUEUED_MAX
        if is_full or off & {source, target} or self._random.random() < self.loss:
            self.lost += 1
            return
        self.passed += 1
        # In order: what is delayed more than what follows would only look lost.
        heapq.heappush(waiting, (time.monotonic() + self.delay_s, self.passed, handle, packet))


@contextlib.contextmanager
def network(hosts: int, *, delay_s: float, loss: float, seed: int) -> Iterator[Network]:
    """So many hosts beside this one."""
    made = Network(hosts + 1, delay_s=delay_s, loss=loss, seed=seed)
    try:
        yield made
    finally:
        made.close()


def _packets(handle: int) -> Iterator[bytes]:
    """What came in over a device, some of it at a time."""
    for _ in range(64):
        try:
            yield os.read(handle, 65536)
        except OSError:
            return


def _ip(*args: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *args], check=check, capture_output=True, text=True)

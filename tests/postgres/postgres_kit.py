"""A real PostgreSQL on a socket, as long as tests run: `python -m tests.postgres.postgres_kit`."""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

PORT = 54321


def program(name: str) -> str:
    """A program of PostgreSQL's, from the path or from Debian's package."""
    found = shutil.which(name) or next(
        iter(sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{name}"), reverse=True)), None
    )
    assert found is not None, f"no {name} here\n  to fix: apt install postgresql"
    return os.path.realpath(found)


def _as_user() -> list[str]:
    """PostgreSQL does not run as root."""
    if os.getuid() != 0:
        return []
    user = "postgres" if _has_user("postgres") else "nobody"
    return ["setpriv", f"--reuid={user}", f"--regid={_group(user)}", "--clear-groups"]


def _has_user(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def _group(user: str) -> str:
    return str(pwd.getpwnam(user).pw_gid)


@dataclass
class Postgres:
    """A server with its data in a folder."""

    folder: Path

    @classmethod
    def start(cls) -> Postgres:
        # The path of a socket is short.
        made = cls(Path(tempfile.mkdtemp(prefix="mr-pg-")))
        if os.getuid() == 0:
            user = pwd.getpwnam("postgres" if _has_user("postgres") else "nobody")
            os.chown(made.folder, user.pw_uid, user.pw_gid)
        try:
            made.run("initdb", "-D", made.data, "-A", "trust", "-U", "millrace", "--no-sync")
            made.again()
        except BaseException:
            shutil.rmtree(made.folder, ignore_errors=True)
            raise
        return made

    @property
    def data(self) -> str:
        return str(self.folder / "data")

    @property
    def url(self) -> str:
        return f"postgresql://millrace@/postgres?host={self.folder}&port={PORT}"

    def again(self) -> None:
        options = f"-k {self.folder} -p {PORT} -c listen_addresses='' -c max_connections=20"
        log = str(self.folder / "log")
        self.run("pg_ctl", "-D", self.data, "-l", log, "-w", "-t", "60", "-o", options, "start")

    def stop(self, mode: str = "immediate") -> None:
        self.run("pg_ctl", "-D", self.data, "-m", mode, "-w", "-t", "60", "stop")

    def end(self) -> None:
        try:
            if (self.folder / "data" / "postmaster.pid").exists():
                self.stop()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, name: str, *args: str) -> None:
        done = subprocess.run(
            [*_as_user(), program(name), *args],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=120,
            check=False,
            text=True,
        )
        assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    try:
        print(program("initdb"), program("pg_ctl"))  # noqa: T201 - what it is for
    except AssertionError as error:
        sys.exit(str(error))

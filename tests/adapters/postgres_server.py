"""A private PostgreSQL server: a cluster of its own in a temporary folder, gone when it is stopped.

It is made from Debian's binaries, listens on a socket in its folder and on a free port of the
loopback device, and syncs to disk as a real one does. No cluster of the system is looked at.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psycopg
import pytest

_START_SECONDS_MAX = 30
_STOP_SECONDS_MAX = 15


def binaries() -> Path | None:
    """The folder of the newest server installed, on Debian or on PATH."""
    folders = [
        path.parent
        for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")
        if (path.parent / "postgres").exists()
    ]
    if folders:
        return max(folders, key=lambda folder: float(folder.parent.name))
    found = shutil.which("initdb")
    return Path(found).resolve().parent if found else None


class PostgresServer:
    def __init__(self, programs: Path, *, settings: Mapping[str, str] | None = None) -> None:
        self._settings = dict(settings or {})
        # Not pytest's temporary folder: that is root's alone, and too long a path for a socket.
        self._home = Path(tempfile.mkdtemp(prefix="emberflow-postgres-"))
        self._as_user: list[str] = []
        if os.getuid() == 0:  # which initdb refuses
            user = _unprivileged_user()
            os.chown(self._home, user.pw_uid, user.pw_gid)
            self._as_user = [
                *("setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups")
            ]
        self._programs = programs
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    @property
    def dsn(self) -> str:
        return f"host=127.0.0.1 port={self.port} user=emberflow dbname=postgres"

    @property
    def socket_dsn(self) -> str:
        return f"host={self._home} port={self.port} user=emberflow dbname=postgres"

    def start(self) -> None:
        data = self._home / "data"
        made = subprocess.run(
            [
                *(*self._as_user, self._programs / "initdb", "-D", data, "-U", "emberflow"),
                *("--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"),
            ],
            cwd=self._home,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if made.returncode != 0:
            raise RuntimeError(f"initdb failed:\n{made.stdout}{made.stderr}")
        self._run()

    def kill(self) -> None:
        """As a machine that loses its power: every process of the server at once."""
        assert self._process is not None
        # Each of them has a group of its own, and one that outlives the others holds the shared memory.
        children = _children_of(self._process.pid)
        os.killpg(self._process.pid, signal.SIGKILL)
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        self._process.wait(_STOP_SECONDS_MAX)
        self._process = None
        deadline = time.monotonic() + _STOP_SECONDS_MAX
        while any(map(_is_running, children)):
            assert time.monotonic() < deadline, "a killed server goes on"
            time.sleep(0.01)

    def start_again(self) -> None:
        """After a kill: the server recovers by its own log."""
        with contextlib.suppress(FileNotFoundError):
            (self._home / "data" / "postmaster.pid").unlink()
        self._run()

    def _run(self) -> None:
        data = self._home / "data"
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": self._home,
            "fsync": "on",
            "shared_buffers": "16MB",
            **self._settings,
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        if shutil.which("setpriv"):
            # Should pytest be killed, the server shuts down too.
            prefix = [*(self._as_user or ["setpriv"]), "--pdeathsig=INT"]
        else:
            prefix = self._as_user
        with open(self._home / "log", "wb") as log:
            self._process = subprocess.Popen(
                [*prefix, self._programs / "postgres", "-D", data, *options],
                cwd=self._home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a group of its own, to be killed as a whole
            )
        self._wait_until_ready()

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)  # a fast shutdown
            try:
                self._process.wait(_STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                self._process.send_signal(signal.SIGQUIT)  # an immediate one
                self._process.wait(_STOP_SECONDS_MAX)
            self._process = None
        shutil.rmtree(self._home, ignore_errors=True)

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _START_SECONDS_MAX
        while time.monotonic() < deadline and self._process.poll() is None:
            with (
                contextlib.suppress(psycopg.OperationalError),
                psycopg.connect(self.dsn, connect_timeout=2),
            ):
                return
            time.sleep(0.05)
        log = (self._home / "log").read_text(errors="replace")
        self.stop()
        raise RuntimeError(f"the private PostgreSQL server did not start:\n{log}")


@contextlib.contextmanager
def running_server() -> Iterator[PostgresServer]:
    """A server for as long as this lasts; skips the test where there can be none."""
    programs = binaries()
    if programs is None:
        pytest.skip("PostgreSQL's server programs are not installed (Debian: postgresql)")
    server = PostgresServer(programs)
    try:
        server.start()
        yield server
    finally:
        server.stop()


def _children_of(parent: int) -> list[int]:
    found: list[int] = []
    for thread in Path(f"/proc/{parent}/task").iterdir():
        found += map(int, (thread / "children").read_text().split())
    return found


def _is_running(pid: int) -> bool:
    """Whether there is such a process that has not ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def _unprivileged_user() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

"""A private server that runs in a JVM, with a temporary folder: gone when it is stopped."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

_STOP_SECONDS_MAX = 20


def java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return f"{home}/bin/java" if home else shutil.which("java")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class JavaServer:
    """Its process, which can be killed and started again."""

    def __init__(self, name: str) -> None:
        self.home = Path(tempfile.mkdtemp(prefix=f"emberflow-{name}-"))
        self._process: subprocess.Popen[bytes] | None = None

    def _run(self, arguments: Iterable[str | Path]) -> subprocess.Popen[bytes]:
        """Start it with the arguments of the JVM. It writes to the file ``log`` in its folder."""
        program = java()
        assert program is not None
        # Should pytest be killed, the server ends too.
        prefix = ["setpriv", "--pdeathsig=KILL"] if shutil.which("setpriv") else []
        with open(self.home / "log", "ab") as log:
            self._process = subprocess.Popen(
                [*prefix, program, *arguments],
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return self._process

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def _logged(self) -> str:
        """The end of what it wrote."""
        return (self.home / "log").read_text(errors="replace")[-5_000:]

    def kill(self) -> None:
        """As a crash would."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait(_STOP_SECONDS_MAX)
        self._process = None

    def stop(self) -> None:
        if self._process is not None:
            self.kill()  # nobody will read what it would put in order
        shutil.rmtree(self.home, ignore_errors=True)

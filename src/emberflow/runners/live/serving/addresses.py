"""The addresses of live queries by name, for processes of the same user on the driver's host.

A query with a bridge writes its address into a file that only its owner can read, in a folder that only
its owner can enter: ``/tmp/emberflow-<user id>``, or that of ``EMBERFLOW_RUNTIME_DIR``. It removes the
file when it ends. A query that was killed cannot; so the file names its process, and a reader that
finds the process gone knows that the query is gone, too.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from emberflow.errors import EmberflowError, InputError
from emberflow.runners.live.serving.bridge import Address, BridgeAwayError

_VARIABLE = "EMBERFLOW_RUNTIME_DIR"
_NAME_LENGTH_MAX = 200
_LOOK_SECONDS = 0.2


class UnknownQueryError(EmberflowError):
    """No live query of this name is known on this machine."""


class Announcement:
    """The file with the address of a query, until the query ends."""

    def __init__(
        self,
        name: str,
        address: Address,
        run: str,
        *,
        checkpoint: str | None = None,
        succeeds: bool = False,
    ) -> None:
        """For ``checkpoint`` and ``succeeds`` see `check_free`."""
        self._path = _path(name, _folder(make=True))
        self._run = run
        check_free(name, checkpoint=checkpoint, succeeds=succeeds)
        content = {
            "name": name,
            "run": run,
            "endpoint": address.endpoint,
            "token": address.token,
            "pid": os.getpid(),
            "started": _started(os.getpid()),
            "checkpoint": checkpoint,
        }
        temporary = self._path.with_name(f".{uuid.uuid4().hex}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(content, file)
        os.rename(temporary, self._path)

    def close(self) -> None:
        """Remove the file, unless it belongs to another query by now."""
        announced = _read(self._path)
        if announced is not None and announced["run"] == self._run:
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()


def check_free(name: str, *, checkpoint: str | None = None, succeeds: bool = False) -> None:
    """Raises `InputError` if a live query of this name runs on this machine.

    One that ``succeeds`` another driver of the query of this checkpoint takes its name, too: that driver
    may be there still, suspended or cut off.
    """
    announced = _read(_path(name, _folder()))
    if succeeds and announced is not None and announced.get("checkpoint") == checkpoint:
        return
    if announced is not None and _is_alive(announced):
        raise InputError(
            f"a live query of the name {name!r} runs already, in process {announced['pid']}. Stop it, "
            f"or give this one another name: .queryName(...)."
        )


def address_of(name: str, *, seconds: float = 0.0) -> Address:
    """The address of the live query of this name.

    If its process has died, it may be restarting: wait for it at most so many seconds.
    """
    deadline = time.monotonic() + seconds
    while True:
        announced = _read(_path(name, _folder()))
        if announced is None:
            raise UnknownQueryError(
                f"there is no live query of the name {name!r} on this machine{_others()}. Start it "
                f"with .queryName({name!r}), as the same user; on "
                f"another machine, give .option('endpoint', ...) and .option('token', ...), which "
                f"query.bridge has."
            )
        if _is_alive(announced):
            return Address(announced["endpoint"], announced["token"])
        if time.monotonic() >= deadline:
            raise BridgeAwayError(
                f"the live query {name!r} is gone: process {announced['pid']}, which ran it, has died. "
                f"Start it again with the same checkpointLocation; nothing that it had acknowledged "
                f"is lost."
            )
        time.sleep(_LOOK_SECONDS)


def _others() -> str:
    """The names of the running queries, in case one was mistyped."""
    with contextlib.suppress(OSError):
        found = [_read(path) for path in sorted(_folder().glob("*.json"))[:20]]
        names = [
            repr(announced["name"])
            for announced in found
            if announced is not None and _is_alive(announced)
        ]
        if names:
            return f"; there are {', '.join(names)}"
    return ""


def _folder(*, make: bool = False) -> Path:
    chosen = os.environ.get(_VARIABLE)
    folder = Path(chosen) if chosen else Path(tempfile.gettempdir()) / f"emberflow-{os.getuid()}"
    if make:
        folder.mkdir(mode=0o700, parents=bool(chosen), exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        found = os.lstat(folder)
        if (
            not stat.S_ISDIR(found.st_mode)
            or found.st_uid != os.getuid()
            or stat.S_IMODE(found.st_mode) & 0o077
        ):
            raise InputError(
                f"{folder} has to be a folder that only user {os.getuid()} can enter, since tokens "
                f"are kept there, and it is not (mode {stat.filemode(found.st_mode)}, owner "
                f"{found.st_uid}). Remove it, or set {_VARIABLE} to another folder."
            )
    return folder


def _path(name: str, folder: Path) -> Path:
    encoded = quote(name, safe="")
    if not encoded or len(encoded) > _NAME_LENGTH_MAX:
        raise InputError(f"a live query that Spark is to find needs a shorter name than {name!r}.")
    return folder / f"{encoded}.json"


def _read(path: Path) -> Mapping[str, Any] | None:
    try:
        announced: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return announced


def _is_alive(announced: Mapping[str, Any]) -> bool:
    pid = int(announced["pid"])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return False  # the process id belongs to another user's process by now
    return bool(_started(pid) == announced["started"])


def _started(pid: int) -> str:
    """When a process began, if the system tells: process ids are reused."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]

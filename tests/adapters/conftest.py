"""One private PostgreSQL server for all tests that want one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest

from tests.adapters.postgres_server import PostgresServer, running_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with running_server() as server:
        yield server


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes a module look as if it were not installed."""

    def hide(module: str) -> None:
        monkeypatch.setitem(sys.modules, module, None)

    return hide

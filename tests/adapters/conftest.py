"""One private PostgreSQL server for all tests that want one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest

from tests.adapters.postgres_server import PostgresServer, running_server


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # With `--dist loadgroup` all of these run in one process, and so with one server.
    for item in items:
        for server in ("postgres", "kafka"):
            grouped = item.get_closest_marker("xdist_group") is not None
            if server in getattr(item, "fixturenames", ()) and not grouped:
                item.add_marker(pytest.mark.xdist_group(server))


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

"""One private HDFS for all tests that want one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hadoop.minicluster import Hdfs, running_hdfs


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # With `--dist loadgroup` all of these run in one process, and so with one name node.
    for item in items:
        if "hdfs" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("hdfs"))


@pytest.fixture(scope="session")
def hdfs() -> Iterator[Hdfs]:
    with running_hdfs() as running:
        yield running

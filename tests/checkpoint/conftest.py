"""The S3 server, for tests that are parametrized by "objects"."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _s3_for_objects(request: pytest.FixtureRequest) -> None:
    callspec = getattr(request.node, "callspec", None)
    if callspec is not None and "objects" in callspec.params.values():
        request.getfixturevalue("s3")

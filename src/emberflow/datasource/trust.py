"""Which checkpoints are unpickled.

The rows of a checkpoint are pickled, and unpickling runs whatever code they hold. Whoever writes the
OPTIONS of a read chooses the checkpoint, and need not be the user who runs Spark. So that user, or the
administrator, decides what is trusted, and no option of a read can change it:

- The environment variable ``EMBERFLOW_TRUSTED_CHECKPOINTS`` of Spark's driver names locations, with
  commas between them. Then what is in or below one of them is trusted, and nothing else is.
- Without it, a local file is trusted if it belongs to the user who runs Spark, or to root, and no other
  user can change it. Emberflow writes its files so. A location that is not local has to be named.

Lists of states and cuts unpickle nothing, and are allowed everywhere. So is a live query: its answers
are JSON and Arrow.
"""

from __future__ import annotations

import os
import posixpath
from urllib.parse import urlsplit

from emberflow.checkpoint.files import LocalLocation, location_of
from emberflow.errors import InputError

VARIABLE = "EMBERFLOW_TRUSTED_CHECKPOINTS"
HOW_TO_TRUST = (
    f"If you trust all who can write there, name the location in the environment variable {VARIABLE} "
    f"of Spark's driver."
)


def is_named(location: str) -> bool:
    """Whether the user has named a location as trusted. Raises `InputError` if it cannot be trusted."""
    named = os.environ.get(VARIABLE)
    if named is None:
        if not _is_local(location):
            raise InputError(
                f"{location} is not on a local disk, so nothing tells who has written it, and "
                f"reading a state unpickles it. {HOW_TO_TRUST}"
            )
        return False
    wanted = _normal(location)
    for one in named.split(","):
        if one.strip():
            trusted = _normal(one.strip())
            if wanted == trusted or wanted.startswith(trusted.rstrip("/") + "/"):
                return True
    raise InputError(
        f"reading a state unpickles it, and {VARIABLE} does not name {location}. {HOW_TO_TRUST}"
    )


def _is_local(location: str) -> bool:
    return "://" not in location or location.startswith("file:")


def _normal(location: str) -> str:
    """A location without links and dots."""
    if _is_local(location):
        local = location_of(location)
        assert isinstance(local, LocalLocation)
        return os.path.realpath(local.root)
    url = urlsplit(location)
    return f"{url.scheme.lower()}://{url.netloc}{posixpath.normpath(url.path or '/')}"

"""Who may ask what of the web server.

Two kinds of clients:

- *Programs* send the token of a query with each request: ``Authorization: Bearer <token>``. They may read
  the states of that query, and the metrics of the process.
- *Browsers* have a session. ``query.ui`` is an address with a token that works once, and not after
  `ENTRANCE_SECONDS`. Who opens it gets a cookie for the session (``HttpOnly``, ``SameSite=Strict``), and
  may look at the page of all queries of the process. Nobody who finds the address later, in a log or in
  the history of a browser, can use it.

Secrets are looked up by their digest, so the time that a refusal takes tells nothing about them. All of
them have 256 bits, or were checked (`tokens.checked_token`). How many there are is bounded: the oldest
entrances and sessions are forgotten.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from emberflow.errors import InputError
from emberflow.runners.live.serving.tokens import new_token

ENTRANCE_SECONDS = 600.0
_ENTRANCES_MAX = 64
_SESSIONS_MAX = 64

T = TypeVar("T")


class Access(Generic[T]):
    """The tokens, entrances and sessions of one server. Any thread may call it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._clock = clock
        self._bearers: dict[bytes, T] = {}
        #: When each was made.
        self._entrances: OrderedDict[bytes, float] = OrderedDict()
        self._sessions: OrderedDict[bytes, None] = OrderedDict()

    def add(self, token: str, of: T) -> None:
        with self._lock:
            if _digest(token) in self._bearers:
                raise InputError(
                    "another query of this process has this httpToken: give each its own."
                )
            self._bearers[_digest(token)] = of

    def remove(self, token: str) -> None:
        with self._lock:
            self._bearers.pop(_digest(token), None)

    def bearer(self, authorization: str) -> T | None:
        """Whose token a header shows."""
        kind, _, token = authorization.partition(" ")
        if kind.lower() != "bearer":
            return None
        with self._lock:
            return self._bearers.get(_digest(token.strip()))

    def entrance(self) -> str:
        """A token that opens a session, once."""
        token = new_token()
        with self._lock:
            self._entrances[_digest(token)] = self._clock()
            while len(self._entrances) > _ENTRANCES_MAX:
                self._entrances.popitem(last=False)
        return token

    def session(self, entrance: str) -> str | None:
        """Use an entrance up, and open a session; None if it is unknown, used or too old.

        >>> access = Access()
        >>> entrance = access.entrance()
        >>> session = access.session(entrance)
        >>> access.has_session(session), access.session(entrance)
        (True, None)
        """
        with self._lock:
            made_at = self._entrances.pop(_digest(entrance), None)
            if made_at is None or self._clock() - made_at > ENTRANCE_SECONDS:
                return None
            session = new_token()
            self._sessions[_digest(session)] = None
            while len(self._sessions) > _SESSIONS_MAX:
                self._sessions.popitem(last=False)
            return session

    def has_session(self, session: str) -> bool:
        with self._lock:
            return _digest(session) in self._sessions


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()

"""The web server of a process: one for each address, shared by all queries that ask for it.

``.option("uiPort", 0)`` and ``.option("httpPort", 0)`` of all queries of a process share one server, on a free
port; a port that is given is shared by those that give the same. The token of a request says which query it
asks; the page shows all queries with ``uiPort``.

A server ends with the last query that uses it, unless it has served a page: the page stays until the
process ends, because people look at a query also when it is over. The `ENDED_MAX` last ones are kept.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from emberflow.runners.live.serving.tokens import new_token
from emberflow.runners.live.web.access import Access
from emberflow.runners.live.web.application import Application, Shown
from emberflow.runners.live.web.connections import Listener
from emberflow.runners.live.web.overview import (
    ROW_NAMES,
    Overview,
    aside_json,
    cuts_json,
    events_json,
    rows_json,
)
from emberflow.runners.live.web.state_reads import StateReads

#: Queries that have ended and are still to be seen.
ENDED_MAX = 10


class Endpoint(NamedTuple):
    """The URL of a query and its token. Send ``headers`` with each request."""

    url: str
    token: str

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def __repr__(self) -> str:
        return f"Endpoint({self.url!r}, token=...)"  # a token does not belong in a log


class WatchedQuery:
    """A query that runs in this process, as the page sees it. All is set when the query starts."""

    def __init__(self) -> None:
        self.id = ""
        self.overview: Overview | None = None
        self.reads: StateReads | None = None
        self.is_over = False

    def summary(self) -> dict[str, Any]:
        assert self.overview is not None
        return self.overview.summary()

    def message(self, since: dict[str, Any]) -> dict[str, Any]:
        """What is new for a viewer, who has what ``since`` says."""
        assert self.overview is not None
        if since.get("query") != self.id:
            since.clear()
            since["query"] = self.id
        made, history = self.overview.made(), self.overview.history
        message: dict[str, Any] = {"query": self.id, "overview": made}
        if since.get("version") != made["version"]:
            message["shape"] = self.overview.shape().to_json()
            message["names"] = ROW_NAMES
            message["states"] = [] if self.reads is None else list(self.reads.states)
        rows = history.rows(since.get("row", 0))
        cuts = [cut for cut in history.cuts() if cut.number > since.get("cut", -1)]
        events = self.overview.chronicle.events()
        new = [event for event in events if event.at_ms > since.get("event", 0)]
        aside = history.aside()
        if aside != since.get("aside"):
            message["aside"] = aside_json(aside)
        message |= {"rows": rows_json(rows), "cuts": cuts_json(cuts), "events": events_json(new)}
        since |= {
            "version": made["version"],
            "row": rows[-1].at_ms if rows else since.get("row", 0),
            "cut": cuts[-1].number if cuts else since.get("cut", -1),
            "event": new[-1].at_ms if new else since.get("event", 0),
            "aside": aside,
        }
        return message


class WebServer:
    """One address. It serves from the first `start` on."""

    def __init__(self, host: str, port: int, options: str) -> None:
        self._listener = Listener(host, port, options)
        self._access: Access[Shown] = Access()
        self._application = Application(self._access, _pages_shown, self._listener.port)
        self.users = 0
        self.has_page = False

    @property
    def url(self) -> str:
        return self._listener.url

    def start(self) -> None:
        self._listener.start(self._application)

    def close(self) -> None:
        self._application.close()
        self._listener.close()

    def add(self, token: str, query: Shown) -> None:
        self._access.add(token, query)

    def remove(self, token: str) -> None:
        self._access.remove(token)

    def entrance(self) -> str:
        """The address of the page, which works once."""
        return f"{self.url}/enter?token={self._access.entrance()}"


#: All servers and pages of this process.
_lock = threading.RLock()
_servers: dict[tuple[str, int], WebServer] = {}
_pages: list[Shown] = []


def _pages_shown() -> Sequence[Shown]:
    with _lock:
        return list(_pages)


def show(query: Shown) -> None:
    """Have a query on the page."""
    with _lock:
        _pages.append(query)
        over = [one for one in _pages if isinstance(one, WatchedQuery) and one.is_over]
        for old in over[:-ENDED_MAX]:
            _pages.remove(old)


def opened(host: str, port: int, options: str) -> WebServer:
    """The server of an address, which listens. `released` says that it is not needed any more."""
    with _lock:
        server = _servers.get((host, port))
        if server is None:
            server = _servers[host, port] = WebServer(host, port, options)
        server.users += 1
        return server


def released(server: WebServer) -> None:
    with _lock:
        server.users -= 1
        if server.users or server.has_page:
            return
        _forget(server)
    server.close()


def close_all() -> None:
    """End all servers of this process and forget all pages: for tests, and for a process that ends."""
    with _lock:
        servers = list(_servers.values())
        _servers.clear()
        _pages.clear()
    for server in servers:
        server.close()


def _forget(server: WebServer) -> None:
    for address, known in list(_servers.items()):
        if known is server:
            del _servers[address]


class Web:
    """What one query has of the web servers. Listens as soon as it is made."""

    def __init__(
        self, host: str, *, http_port: int | None, ui_port: int | None, token: str | None = None
    ) -> None:
        """``token`` is that of programs; by default a new one."""
        self._token = token or new_token()
        self._query = WatchedQuery()
        self._is_closed = False
        where = "and 'httpHost' to an address of this machine"
        self._ui: WebServer | None = None
        if ui_port is not None:
            self._ui = opened(
                host, ui_port, f".option('uiPort', ...) to a port that is free, {where}"
            )
        try:
            self._http = (
                self._ui
                if http_port is None and self._ui is not None
                else opened(
                    host,
                    http_port or 0,
                    f".option('httpPort', ...) to a port that is free, {where}",
                )
            )
        except BaseException:
            if self._ui is not None:
                released(self._ui)
            raise
        try:
            self._http.add(self._token, self._query)
        except BaseException:
            self._release()
            raise
        self.endpoint = Endpoint(self._http.url, self._token)

    @property
    def ui(self) -> str | None:
        """An address of the page; another one each time, because each works once."""
        return None if self._ui is None else self._ui.entrance()

    def start(self, id: str, overview: Overview, reads: StateReads | None) -> None:
        """Serve a query."""
        query = self._query
        query.id, query.overview, query.reads = id, overview, reads
        self._http.start()
        if self._ui is not None:
            self._ui.has_page = True
            self._ui.start()
            show(self._query)

    def close(self) -> None:
        """The query is over. Closing again does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        self._http.remove(self._token)
        self._query.is_over = True
        self._release()

    def _release(self) -> None:
        released(self._http)
        if self._ui is not None and self._ui is not self._http:
            released(self._ui)

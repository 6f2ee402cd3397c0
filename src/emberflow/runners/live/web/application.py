"""The application behind the web server: who asks is found out first, then what is asked.

::

    GET  /enter?token=...                    opens a session in a browser, once
    GET  /                                   the page, and /assets/... of it
    GET  /api/stream?query=ID                server-sent events: the overview of a query, every second
    GET  /api/queries/ID/states...           reads of state for the page, as below
    GET  /states..., POST /read              reads of state for programs (`state_reads`)
    GET  /metrics                            for Prometheus (`metrics`)

What is guaranteed: **nothing but the request line and the headers of a request is looked at before its
token or session is found right.** A stranger gets the answer 401. No request changes anything in a query.
A known client is bounded too: `READS_MAX` reads and `STREAMS_MAX` streams at once, `BODY_SECONDS_MAX` for
a body, `_SEND_SECONDS_MAX` for each piece of an answer.

The page may run its own script and style, and load nothing from elsewhere (Content-Security-Policy). No
other site can frame it or ask in its name: the cookie is ``SameSite=Strict``. A browser does not send such
a cookie with a redirection that another site began (a notebook, say), so the entrance answers with a small
page that goes on to the page by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from importlib import resources
from typing import Any, Protocol

from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from emberflow.runners.live.web.access import Access
from emberflow.runners.live.web.metrics import METRICS_TYPE, metrics_text
from emberflow.runners.live.web.overview import Overview
from emberflow.runners.live.web.state_reads import (
    BODY_BYTES_MAX,
    Answered,
    Asked,
    StateReads,
    answered,
    problem,
)

READS_MAX = 16
STREAMS_MAX = 32
BODY_SECONDS_MAX = 10.0
_SEND_SECONDS_MAX = 30.0
#: What is read of the body of a refused request, so that the client hears the answer.
_PASSED_OVER_MAX = 8 << 20
STREAM_SECONDS = 1.0

_log = logging.getLogger("emberflow")

_ASSETS = {
    "page.js": "text/javascript; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Cache-Control": "no-store",
    "Connection": "close",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": _POLICY,
}
_GO_ON = """<!doctype html><html lang="en"><meta charset="utf-8">
<meta http-equiv="refresh" content="0; url=/"><title>Emberflow</title>
<p><a href="/">Go on to the page</a></p></html>"""
_NO_ENTRANCE = """<!doctype html><html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><title>Emberflow: no entrance</title>
<h1>This address does not open the page</h1><p>{why}</p>
<p>Get a new one from the program that runs the query: <code>print(query.ui)</code>. Each works
once.</p></html>"""


class Shown(Protocol):
    """A query that can be looked at: one that runs, or the checkpoint of one that has ended."""

    id: str
    overview: Overview | None

    @property
    def reads(self) -> StateReads | None: ...

    def summary(self) -> dict[str, Any]: ...

    def message(self, since: dict[str, Any]) -> dict[str, Any]:
        """What is new for a viewer. ``since`` is empty at first, and notes what the viewer has."""


class Application:
    """An ASGI application. ``queries`` are those to be seen on the page, ``port`` names the cookie."""

    def __init__(
        self, access: Access[Shown], queries: Callable[[], Sequence[Shown]], port: int
    ) -> None:
        self._access = access
        self._queries = queries
        #: Cookies belong to a host, whatever the port.
        self._cookie = f"emberflow-{port}"
        self._threads = ThreadPoolExecutor(READS_MAX, thread_name_prefix="emberflow http request")
        self._reading = 0
        self._streams = 0
        self._is_closed = False

    def close(self) -> None:
        """End the streams; reads in progress are answered."""
        self._is_closed = True
        self._threads.shutdown(wait=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
        except (ClientDisconnect, TimeoutError):
            scope["state"]["connection"].transport.abort()
            return
        except Exception as error:
            _log.exception("the web server could not answer %s", request.url.path)
            response = _json(
                problem(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__qualname__}: {error}")
            )
        await response(scope, receive, _patient(send, scope["state"]["connection"].transport))

    async def _answer(self, request: Request) -> Response:
        query = self._access.bearer(request.headers.get("authorization", ""))
        if query is None and request.url.path == "/enter" and request.method == "GET":
            return self._entered(request)
        has_session = self._access.has_session(request.cookies.get(self._cookie, ""))
        if query is None and not has_session:
            return _Refusal(_stranger(request))
        request.scope["state"]["connection"].is_known()
        if query is None:
            return await self._to_browser(request)
        if (request.method, request.url.path) == ("GET", "/metrics"):
            text = await self._in_thread(lambda: metrics_text(self._queries_of(query)))
            if isinstance(text, bytes):
                return Response(text, headers={**_HEADERS, "Content-Type": METRICS_TYPE})
            return _json(text)
        return await self._read(request, query.reads, request.scope["raw_path"].decode("latin-1"))

    def _queries_of(self, own: Shown) -> list[Shown]:
        """All queries of the process, and the one whose token was shown."""
        known = list(self._queries())
        return known if any(query is own for query in known) else [*known, own]

    # Browsers.

    def _entered(self, request: Request) -> Response:
        session = self._access.session(request.query_params.get("token", ""))
        if session is None:
            why = "Its token was used before, is too old, or is not of this run."
            return _Refusal(_html(_NO_ENTRANCE.format(why=why), HTTPStatus.UNAUTHORIZED))
        response = _html(_GO_ON)
        response.set_cookie(self._cookie, session, httponly=True, samesite="strict", path="/")
        return response

    async def _to_browser(self, request: Request) -> Response:
        path = request.url.path
        if request.method != "GET":
            return _json(problem(HTTPStatus.METHOD_NOT_ALLOWED, "the page only reads."))
        if path == "/":
            return _html(_asset("page.html").decode())
        if path.startswith("/assets/") and path.removeprefix("/assets/") in _ASSETS:
            name = path.removeprefix("/assets/")
            return Response(_asset(name), headers={**_HEADERS, "Content-Type": _ASSETS[name]})
        if path == "/api/stream":
            return self._stream(request)
        found = re.fullmatch(r"/api/queries/([^/]+)(/states(?:/.*)?)", _raw_path(request))
        query = self._known(found[1]) if found else None
        if found is None or query is None:
            return _json(problem(HTTPStatus.NOT_FOUND, f"there is no {path}."))
        return await self._read(request, query.reads, found[2])

    def _known(self, id: str) -> Shown | None:
        return next((query for query in self._queries() if query.id == id), None)

    def _stream(self, request: Request) -> Response:
        if self._streams >= STREAMS_MAX:
            return _busy(f"{STREAMS_MAX} viewers are connected")
        wanted = request.query_params.get("query", "")
        return StreamingResponse(
            self._events(wanted), headers={**_HEADERS, "Content-Type": "text/event-stream"}
        )

    async def _events(self, wanted: str) -> AsyncIterator[bytes]:
        self._streams += 1
        since: dict[str, Any] = {}
        try:
            while not self._is_closed:
                queries = list(self._queries())
                query = self._known(wanted) or (queries[-1] if queries else None)
                message: dict[str, Any] = {"queries": [one.summary() for one in queries]}
                if query is not None:
                    message |= query.message(since)
                yield b"data: " + _encoded(message) + b"\n\n"
                await asyncio.sleep(STREAM_SECONDS)
        finally:
            self._streams -= 1

    # Reads of state.

    async def _read(self, request: Request, reads: StateReads | None, path: str) -> Response:
        if reads is None:
            text = "this query has no states that can be read: it orders items by arrival."
            return _Refusal(_json(problem(HTTPStatus.NOT_FOUND, text)))
        body = b""
        if request.method == "POST" and path == "/read":
            given = await _body(request)
            if isinstance(given, Answered):
                return _Refusal(_json(given))
            body = given
        asked = Asked(request.method, path, request.scope["query_string"].decode("latin-1"), body)
        return _json(await self._in_thread(lambda: answered(reads, asked)))

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        if self._reading >= READS_MAX:
            return problem(
                HTTPStatus.SERVICE_UNAVAILABLE, "all threads of the server are busy: try again"
            )
        self._reading += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self._reading -= 1


class _Refusal(Response):
    """An answer to one who may still be sending: it goes out first, then the rest is passed over.

    A connection that is closed with bytes unread may lose the answer. A stranger's connection is closed
    after a few seconds in any case (`connections`).
    """

    def __init__(self, response: Response) -> None:
        self._response = response

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = self._response
        start = {
            "type": "http.response.start",
            "status": response.status_code,
            "headers": response.raw_headers,
        }
        await send(start)
        await send({"type": "http.response.body", "body": response.body, "more_body": True})
        passed = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BODY_SECONDS_MAX):
                more = True
                while more and passed < _PASSED_OVER_MAX:
                    message = await receive()
                    passed += len(message.get("body", b""))
                    more = message.get("more_body", False)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _patient(send: Send, transport: Any) -> Send:
    """Send on, with a limit to the time that a client takes for each piece."""

    async def sent(message: Message) -> None:
        try:
            async with asyncio.timeout(_SEND_SECONDS_MAX):
                await send(message)
        except TimeoutError:
            transport.abort()

    return sent


async def _body(request: Request) -> bytes | Answered:
    """The body of a request, or what is wrong with it."""
    length = request.headers.get("content-length", "").strip()
    if not re.fullmatch(r"[0-9]+", length):
        return problem(HTTPStatus.LENGTH_REQUIRED, "a POST says its length: 'Content-Length: ...'.")
    if int(length[:20]) > BODY_BYTES_MAX:
        return problem(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"a body has at most {BODY_BYTES_MAX:,} bytes, this one {int(length[:20]):,}.",
        )
    async with asyncio.timeout(BODY_SECONDS_MAX):
        return await request.body()


def _raw_path(request: Request) -> str:
    return str(request.scope["raw_path"].decode("latin-1"))


def _asset(name: str) -> bytes:
    return resources.files(__package__).joinpath("page", name).read_bytes()


def _stranger(request: Request) -> Response:
    if "text/html" in request.headers.get("accept", ""):
        why = "The page is for browsers that came in by the address of a query."
        return _html(_NO_ENTRANCE.format(why=why), HTTPStatus.UNAUTHORIZED)
    refused = _json(
        problem(
            HTTPStatus.UNAUTHORIZED,
            "a request carries the token of the run: 'Authorization: Bearer <token>'. The handle "
            "of the query has it, as query.endpoint.token.",
        )
    )
    refused.headers["WWW-Authenticate"] = "Bearer"
    return refused


def _html(text: str, status: HTTPStatus = HTTPStatus.OK) -> HTMLResponse:
    return HTMLResponse(text, status, headers=_HEADERS)


def _busy(why: str) -> Response:
    refused = _json(problem(HTTPStatus.SERVICE_UNAVAILABLE, f"{why}: try again"))
    refused.headers["Retry-After"] = "1"
    return refused


def _json(told: Answered) -> Response:
    headers = {**_HEADERS, "Content-Type": "application/json"}
    if told.status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers["Retry-After"] = "1"
    return Response(_encoded(told.body), told.status, headers=headers)


def _encoded(body: Any) -> bytes:
    return json.dumps(body, allow_nan=False, separators=(",", ":")).encode()

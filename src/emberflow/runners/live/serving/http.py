"""Reads of state over HTTP: small, read-only, and for clients with the run's token.

::

    GET  /states                                       the names of the states
    GET  /states/accounts?key=ada&key=bob              some keys
    GET  /states/accounts?low=a&high=c&limit=100       a range of keys, in their order
    POST /read   {"states": {"accounts": ["ada"], "limits": {"low": 1, "high": 5}}}

All take ``as_of``, ``ordered`` and ``timeout``, those with keys ``default``; in the query of a GET,
in the object of a POST. An answer contains the time that it is as of. An error is a JSON object with
``error``, and a fitting status.

What is guaranteed: **the server checks the token before it looks at the rest of a request**, and
compares it in constant time. The token is made for the run, and the handle of the query has it. No
request can change anything. By default the server listens on this machine alone. Connections are not
encrypted: for clients on other machines, put a proxy in front that encrypts.

Bounds: the number of concurrent requests (a request beyond it gets the answer to retry); the bytes of a
request and the rows of an answer; a time limit on every read from a socket and on every answer. A
connection serves one request. The threads belong to the server, and end with it.

`runners.json_values` converts between JSON and Python's values.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import threading
import time
from collections.abc import Iterable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import SHUT_RDWR, socket
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from emberflow.errors import (
    EmberflowError,
    InputError,
    NotKeptError,
    ReadTimeoutError,
)
from emberflow.runners.json_values import from_json, key_of_text, to_json
from emberflow.runners.live.serving.reads import KEYS_SECONDS, Reads, TooManyRowsError
from emberflow.runners.questions import Scan, Wanted
from emberflow.values.item import GlobalTime

REQUESTS_MAX = 16
BODY_BYTES_MAX = 1_000_000
#: How much of a body that is too long the server reads, so that the client gets the answer.
_PASSED_OVER_MAX = 8_000_000
ROWS_MAX = 10_000
ROWS_WITHOUT_LIMIT = 1_000
_SOCKET_SECONDS = 10.0
_TIMEOUT_SECONDS_MAX = 60.0
_JOIN_SECONDS = 5.0


class Endpoint(NamedTuple):
    """The URL of a query and its token. Send ``headers`` with each request."""

    url: str
    token: str

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def __repr__(self) -> str:
        return f"Endpoint({self.url!r}, token=...)"  # a token does not belong in a log


class HttpServer:
    """Listens as soon as it is made; serves the reads of a query from `start` until `close`."""

    def __init__(self, host: str, port: int) -> None:
        try:
            self._server = _Server((host, port), _Handler)
        except OSError as error:
            raise InputError(
                f"the query cannot listen on {host}, port {port or 'any'}: {error}. Set "
                f".option('httpPort', ...) to a port that is free, and 'httpHost' to an address of "
                f"this machine."
            ) from error
        self._server.token = secrets.token_urlsafe(32)
        bound = self._server.server_address
        shown = f"[{host}]" if ":" in host else host
        self.endpoint = Endpoint(f"http://{shown}:{bound[1]}", self._server.token)
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": 0.1},
            name="emberflow http",
            daemon=True,
        )

    def start(self, reads: Reads) -> None:
        self._server.reads = reads
        self._thread.start()

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join(_JOIN_SECONDS)
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # each has its own time limit
    allow_reuse_address = True
    request_queue_size = 32
    reads: Reads
    token: str

    def __init__(self, address: tuple[str, int], handler: Any) -> None:
        self._free = threading.BoundedSemaphore(REQUESTS_MAX)
        #: The deadline of each connection to show its token, by the monotonic clock.
        self.unknown: dict[socket, float] = {}
        super().__init__(address, handler)

    def service_actions(self) -> None:
        """End slow connections: those that send every byte in time, and the whole request never."""
        now = time.monotonic()
        for connection, deadline in list(self.unknown.items()):
            if now > deadline:
                self.unknown.pop(connection, None)
                with contextlib.suppress(OSError):
                    connection.shutdown(SHUT_RDWR)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            _tell_busy(request)
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do not log clients that have gone away."""


def _tell_busy(request: socket) -> None:
    body = b'{"error": "all threads of the server are busy: try again"}'
    try:
        request.settimeout(1.0)
        request.sendall(
            b"HTTP/1.0 503 Service Unavailable\r\nContent-Type: application/json\r\n"
            b"Retry-After: 1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        )
    except OSError:
        pass


class _RefusedError(Exception):
    def __init__(self, status: HTTPStatus, problem: str) -> None:
        super().__init__(problem)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _SOCKET_SECONDS
    server_version = "emberflow"
    sys_version = ""

    def do_GET(self) -> None:
        self._answer(self._got)

    def do_POST(self) -> None:
        self._answer(self._posted)

    def _answer(self, make: Any) -> None:
        status, headers = HTTPStatus.OK, {}
        try:
            self._check_token()
            body: Any = make()
        except _RefusedError as error:
            status, body = error.status, {"error": str(error)}
            if status == HTTPStatus.UNAUTHORIZED:
                headers["WWW-Authenticate"] = "Bearer"
        except TooManyRowsError as error:
            status, body = HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {"error": str(error)}
        except NotKeptError as error:
            status, body = HTTPStatus.GONE, {"error": str(error)}
        except InputError as error:
            status, body = HTTPStatus.BAD_REQUEST, {"error": str(error)}
        except ReadTimeoutError as error:
            status, body = HTTPStatus.GATEWAY_TIMEOUT, {"error": str(error)}
        except EmberflowError as error:
            status, body = HTTPStatus.SERVICE_UNAVAILABLE, {"error": str(error)}
        except OSError:
            return  # the client has gone
        except Exception as error:
            status = HTTPStatus.INTERNAL_SERVER_ERROR
            body = {"error": f"{type(error).__qualname__}: {error}"}
        self._send(status, headers, body)

    def _send(self, status: HTTPStatus, headers: dict[str, str], body: Any) -> None:
        content = json.dumps(body, allow_nan=False).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def _check_token(self) -> None:
        header = self.headers.get("Authorization", "")
        kind, _, token = header.partition(" ")
        # Bytes, because a header may hold anything.
        right = hmac.compare_digest(token.strip().encode(), self.server.token.encode())
        if kind.lower() != "bearer" or not right:
            raise _RefusedError(
                HTTPStatus.UNAUTHORIZED,
                "a request carries the token of the run: 'Authorization: Bearer <token>'. The handle "
                "of the query has it, as query.endpoint.token.",
            )
        self.server.unknown.pop(self.connection, None)

    # Requests.

    def _got(self) -> Any:
        url = urlsplit(self.path)
        try:
            parameters = parse_qs(url.query, keep_blank_values=True, max_num_fields=10_000)
        except ValueError as error:
            raise _RefusedError(HTTPStatus.BAD_REQUEST, f"the query: {error}") from None
        steps = [unquote(step) for step in url.path.strip("/").split("/")]
        if steps == ["states"]:
            return self._listed()
        if len(steps) == 2 and steps[0] == "states":
            return self._one(steps[1], parameters)
        raise self._no_such_path()

    def _no_such_path(self) -> _RefusedError:
        return _RefusedError(
            HTTPStatus.NOT_FOUND,
            f"there is no {self.command} {urlsplit(self.path).path}. There are GET /states, "
            f"GET /states/<name> and POST /read.",
        )

    def _listed(self) -> Any:
        states = []
        for info in self.server.reads.states.values():
            state = {"name": info.name, "kind": info.kind}
            if info.has_default:
                state["default"] = to_json(info.default)
            states.append(state)
        return {"states": states}

    def _one(self, name: str, parameters: dict[str, list[str]]) -> Any:
        self._check_state(name)
        known = {"key", "low", "high", "limit", "as_of", "ordered", "timeout", "default"}
        _check_names(parameters, known)
        single = {key: values[-1] for key, values in parameters.items() if key != "key"}
        options: dict[str, Any] = {
            key: key_of_text(single[key])
            for key in ("as_of", "ordered", "timeout", "default", "limit")
            if key in single
        }
        wanted: Wanted
        if "key" in parameters:
            if {"low", "high", "limit"} & set(single):
                raise InputError("a request has keys, or 'low', 'high' and 'limit', not both.")
            wanted = [key_of_text(text) for text in parameters["key"]]
        else:
            bounds = [
                key_of_text(single[key]) if key in single else None for key in ("low", "high")
            ]
            wanted = Scan(*bounds)
        limit = _limit(options.pop("limit", ROWS_WITHOUT_LIMIT))
        if not isinstance(wanted, Scan):
            answer = self._read({name: wanted}, options)
            return {"asOf": answer["asOf"], "rows": answer["states"][name]}
        # One more than the limit, to know whether there are more.
        answer = self._read({name: wanted}, options, first=limit + 1)
        rows = answer["states"][name]
        return {"asOf": answer["asOf"], "rows": rows[:limit], "more": len(rows) > limit}

    def _posted(self) -> Any:
        if urlsplit(self.path).path.strip("/") != "read":
            raise self._no_such_path()
        body = self._body()
        if not isinstance(body, dict) or not isinstance(body.get("states"), dict):
            raise InputError(
                'the body of a read is {"states": {"accounts": ["ada"], ...}}: an object with an '
                "object 'states' from names to lists of keys."
            )
        _check_names(body, {"states", "as_of", "ordered", "timeout", "default"})
        options = {key: value for key, value in body.items() if key != "states"}
        wanted: dict[str, Wanted] = {}
        for name, what in body["states"].items():
            self._check_state(name)
            if isinstance(what, dict):
                _check_names(what, {"low", "high"})
                wanted[name] = Scan(from_json(what.get("low")), from_json(what.get("high")))
            elif isinstance(what, list):
                wanted[name] = [from_json(key) for key in what]
            else:
                raise InputError(
                    f"state {name!r} takes a list of keys, or an object with 'low' and 'high'; got "
                    f"{what!r}."
                )
        return self._read(wanted, options)

    def _pass_over(self, count: int) -> None:
        while count > 0 and (read := self.rfile.read(min(count, 65_536))):
            count -= len(read)

    def _body(self) -> Any:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise _RefusedError(
                HTTPStatus.LENGTH_REQUIRED, "a POST says its length: 'Content-Length: ...'."
            )
        if int(length) > BODY_BYTES_MAX:
            self._pass_over(min(int(length), _PASSED_OVER_MAX))
            raise _RefusedError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"a body has at most {BODY_BYTES_MAX:,} bytes, this one {length}.",
            )
        content = self.rfile.read(int(length))
        try:
            return json.loads(content)
        except (ValueError, RecursionError) as error:
            raise InputError(f"the body is no JSON: {error}.") from None

    def _check_state(self, name: str) -> None:
        states = self.server.reads.states
        if name not in states:
            known = ", ".join(map(repr, states)) or "none"
            raise _RefusedError(
                HTTPStatus.NOT_FOUND, f"there is no state {name!r}; there is {known}."
            )

    def _read(
        self, wanted: dict[str, Wanted], options: dict[str, Any], *, first: int | None = None
    ) -> Any:
        as_of = options.get("as_of")
        answer = self.server.reads.read(
            wanted,
            default=_flag(options, "default", otherwise=True),
            as_of=tuple(as_of) if isinstance(as_of, list) else as_of,
            ordered=_flag(options, "ordered", otherwise=False),
            timeout=_seconds(options.get("timeout", KEYS_SECONDS)),
            first=first,
            rows_max=ROWS_MAX if first is None else None,
        )
        return {
            "asOf": _json_time(answer.as_of),
            "states": {name: _json_rows(rows.items()) for name, rows in answer.items()},
        }

    def log_message(self, format: str, *arguments: Any) -> None:
        """Do not log requests."""


def _json_rows(rows: Iterable[tuple[Any, Any]]) -> list[dict[str, Any]]:
    return [{"key": to_json(key), "value": to_json(value)} for key, value in rows]


def _json_time(as_of: GlobalTime) -> list[int]:
    return [as_of.time, as_of.front]


def _check_names(names: Iterable[str], known: set[str]) -> None:
    for name in names:
        if name not in known:
            raise InputError(f"a read has no {name!r}; it has {', '.join(sorted(known))}.")


def _flag(options: dict[str, Any], name: str, *, otherwise: bool) -> bool:
    value = options.get(name, otherwise)
    if not isinstance(value, bool):
        raise InputError(f"{name!r} is true or false, got {value!r}.")
    return value


def _limit(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= ROWS_MAX:
        raise InputError(f"'limit' is an int from 0 to {ROWS_MAX:,}, got {value!r}.")
    return value


def _seconds(value: Any) -> float:
    if type(value) not in (int, float) or not 0 < value <= _TIMEOUT_SECONDS_MAX:
        raise InputError(
            f"'timeout' is a number of seconds up to {_TIMEOUT_SECONDS_MAX:.0f}, got {value!r}."
        )
    return float(value)

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
body and the rows of an answer; the time of every read. `http_connections` bounds what connections
without the token can take.

`runners.json_values` converts between JSON and Python's values.
"""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from emberflow.errors import (
    EmberflowError,
    InputError,
    NotKeptError,
    ReadTimeoutError,
)
from emberflow.runners.json_values import from_json, key_of_text, to_json
from emberflow.runners.live.serving.http_connections import (
    Head,
    HttpConnections,
    Request,
    Response,
)
from emberflow.runners.live.serving.reads import KEYS_SECONDS, Reads, TooManyRowsError
from emberflow.runners.questions import Scan, Wanted
from emberflow.values.item import GlobalTime

REQUESTS_MAX = 16
BODY_BYTES_MAX = 1_000_000
ROWS_MAX = 10_000
ROWS_WITHOUT_LIMIT = 1_000
_TIMEOUT_SECONDS_MAX = 60.0


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
        self._token = secrets.token_urlsafe(32)
        self._reads: Reads | None = None
        try:
            self._connections = HttpConnections(
                host,
                port,
                refusal=self._refusal,
                answer=self._answer,
                error=_problem,
                requests_max=REQUESTS_MAX,
            )
        except OSError as error:
            raise InputError(
                f"the query cannot listen on {host}, port {port or 'any'}: {error}. Set "
                f".option('httpPort', ...) to a port that is free, and 'httpHost' to an address of "
                f"this machine."
            ) from error
        shown = f"[{host}]" if ":" in host else host
        self.endpoint = Endpoint(f"http://{shown}:{self._connections.port}", self._token)

    def start(self, reads: Reads) -> None:
        self._reads = reads
        self._connections.start()

    def close(self) -> None:
        """Closing again does nothing."""
        self._connections.close()

    def _refusal(self, head: Head) -> Response | None:
        """The answer to a request without the token."""
        kind, _, token = head.headers.get("Authorization", "").partition(" ")
        # Bytes, because a header may hold anything.
        is_right = hmac.compare_digest(
            token.strip().encode("utf-8", "surrogateescape"), self._token.encode()
        )
        if kind.lower() == "bearer" and is_right:
            return None
        refused = _problem(
            HTTPStatus.UNAUTHORIZED,
            "a request carries the token of the run: 'Authorization: Bearer <token>'. The handle "
            "of the query has it, as query.endpoint.token.",
        )
        return refused._replace(headers={"WWW-Authenticate": "Bearer"})

    def _answer(self, request: Request) -> Response:
        assert self._reads is not None, "connections are served after the reads are there"
        try:
            body = _Read(self._reads, request).answer()
            return Response(HTTPStatus.OK, json.dumps(body, allow_nan=False).encode())
        except _RefusedError as error:
            return _problem(error.status, str(error))
        except TooManyRowsError as error:
            return _problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, str(error))
        except NotKeptError as error:
            return _problem(HTTPStatus.GONE, str(error))
        except InputError as error:
            return _problem(HTTPStatus.BAD_REQUEST, str(error))
        except ReadTimeoutError as error:
            return _problem(HTTPStatus.GATEWAY_TIMEOUT, str(error))
        except EmberflowError as error:
            return _problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        except OSError:
            raise  # the client has gone
        except Exception as error:
            text = f"{type(error).__qualname__}: {error}"
            return _problem(HTTPStatus.INTERNAL_SERVER_ERROR, text)


def _problem(status: HTTPStatus, problem: str) -> Response:
    return Response(status, json.dumps({"error": problem}).encode())


class _RefusedError(Exception):
    def __init__(self, status: HTTPStatus, problem: str) -> None:
        super().__init__(problem)
        self.status = status


class _Read:
    """One request of a client that has the token."""

    def __init__(self, reads: Reads, request: Request) -> None:
        self._reads = reads
        self._request = request
        self._url = urlsplit(request.head.target)

    def answer(self) -> Any:
        method = self._request.head.method
        if method == "GET":
            return self._got()
        if method == "POST":
            return self._posted()
        raise _RefusedError(HTTPStatus.NOT_IMPLEMENTED, f"there is no {method} here.")

    def _got(self) -> Any:
        try:
            parameters = parse_qs(self._url.query, keep_blank_values=True, max_num_fields=10_000)
        except ValueError as error:
            raise _RefusedError(HTTPStatus.BAD_REQUEST, f"the query: {error}") from None
        steps = [unquote(step) for step in self._url.path.strip("/").split("/")]
        if steps == ["states"]:
            return self._listed()
        if len(steps) == 2 and steps[0] == "states":
            return self._one(steps[1], parameters)
        raise self._no_such_path()

    def _no_such_path(self) -> _RefusedError:
        return _RefusedError(
            HTTPStatus.NOT_FOUND,
            f"there is no {self._request.head.method} {self._url.path}. There are GET /states, "
            f"GET /states/<name> and POST /read.",
        )

    def _listed(self) -> Any:
        states = []
        for info in self._reads.states.values():
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
        if self._url.path.strip("/") != "read":
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

    def _body(self) -> Any:
        length = self._request.head.length
        if length is None:
            raise _RefusedError(
                HTTPStatus.LENGTH_REQUIRED, "a POST says its length: 'Content-Length: ...'."
            )
        if length > BODY_BYTES_MAX:
            raise _RefusedError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"a body has at most {BODY_BYTES_MAX:,} bytes, this one {length:,}.",
            )
        content = self._request.body()
        try:
            return json.loads(content)
        except (ValueError, RecursionError) as error:
            raise InputError(f"the body is no JSON: {error}.") from None

    def _check_state(self, name: str) -> None:
        states = self._reads.states
        if name not in states:
            known = ", ".join(map(repr, states)) or "none"
            raise _RefusedError(
                HTTPStatus.NOT_FOUND, f"there is no state {name!r}; there is {known}."
            )

    def _read(
        self, wanted: dict[str, Wanted], options: dict[str, Any], *, first: int | None = None
    ) -> Any:
        as_of = options.get("as_of")
        answer = self._reads.read(
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

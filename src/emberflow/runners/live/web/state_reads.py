"""Reads of state over HTTP: small and read-only.

::

    GET  /states                                       the names of the states
    GET  /states/accounts?key=ada&key=bob              some keys
    GET  /states/accounts?low=a&high=c&limit=100       a range of keys, in their order
    POST /read   {"states": {"accounts": ["ada"], "limits": {"low": 1, "high": 5}}}

All take ``as_of``, ``ordered`` and ``timeout``, those with keys ``default``; in the query of a GET,
in the object of a POST. An answer contains the time that it is as of. An error is a JSON object with
``error``, and a fitting status.

No request can change anything. Bounds: the bytes of a body and the rows of an answer; the time of every
read. Who may ask, and how many at once, is decided before (`access`, `application`).

`runners.json_values` converts between JSON and Python's values.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple, Protocol
from urllib.parse import parse_qs, unquote

from emberflow.engine.queries.worker import StateInfo
from emberflow.errors import (
    EmberflowError,
    InputError,
    NotKeptError,
    ReadTimeoutError,
)
from emberflow.runners.json_values import from_json, key_of_text, to_json
from emberflow.runners.live.serving.reads import KEYS_SECONDS, TooManyRowsError
from emberflow.runners.questions import Answer, Scan, Wanted
from emberflow.values.item import GlobalTime

BODY_BYTES_MAX = 1_000_000
ROWS_MAX = 10_000
ROWS_WITHOUT_LIMIT = 1_000
_TIMEOUT_SECONDS_MAX = 60.0


class Answered(NamedTuple):
    """A status, and what is told as JSON."""

    status: HTTPStatus
    body: Any


class StateReads(Protocol):
    """What can be asked of a query: of one that runs, or of the checkpoint of one that has ended."""

    @property
    def states(self) -> Mapping[str, StateInfo]: ...

    def read(
        self,
        wanted: Mapping[str, Wanted],
        *,
        default: bool,
        as_of: object,
        ordered: bool,
        timeout: float | None,
        first: int | None = None,
        rows_max: int | None = None,
    ) -> Answer: ...


class Asked(NamedTuple):
    """A request of a client that may read. Path and query are as they came, the body is complete."""

    method: str
    path: str
    query: str
    body: bytes = b""


def answered(reads: StateReads, asked: Asked) -> Answered:
    """The answer to a request. Blocks until the workers have answered, or the time limit is over."""
    try:
        return Answered(HTTPStatus.OK, _Read(reads, asked).answer())
    except _RefusedError as error:
        return problem(error.status, str(error))
    except TooManyRowsError as error:
        return problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, str(error))
    except NotKeptError as error:
        return problem(HTTPStatus.GONE, str(error))
    except InputError as error:
        return problem(HTTPStatus.BAD_REQUEST, str(error))
    except ReadTimeoutError as error:
        return problem(HTTPStatus.GATEWAY_TIMEOUT, str(error))
    except EmberflowError as error:
        return problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
    except Exception as error:
        text = f"{type(error).__qualname__}: {error}"
        return problem(HTTPStatus.INTERNAL_SERVER_ERROR, text)


def problem(status: HTTPStatus, text: str) -> Answered:
    return Answered(status, {"error": text})


class _RefusedError(Exception):
    def __init__(self, status: HTTPStatus, problem: str) -> None:
        super().__init__(problem)
        self.status = status


class _Read:
    """One request of a client that has the token."""

    def __init__(self, reads: StateReads, asked: Asked) -> None:
        self._reads = reads
        self._asked = asked

    def answer(self) -> Any:
        method = self._asked.method
        if method == "GET":
            return self._got()
        if method == "POST":
            return self._posted()
        raise _RefusedError(HTTPStatus.NOT_IMPLEMENTED, f"there is no {method} here.")

    def _got(self) -> Any:
        try:
            parameters = parse_qs(self._asked.query, keep_blank_values=True, max_num_fields=10_000)
        except ValueError as error:
            raise _RefusedError(HTTPStatus.BAD_REQUEST, f"the query: {error}") from None
        steps = [unquote(step) for step in self._asked.path.strip("/").split("/")]
        if steps == ["states"]:
            return self._listed()
        if len(steps) == 2 and steps[0] == "states":
            return self._one(steps[1], parameters)
        raise self._no_such_path()

    def _no_such_path(self) -> _RefusedError:
        return _RefusedError(
            HTTPStatus.NOT_FOUND,
            f"there is no {self._asked.method} {self._asked.path}. There are GET /states, "
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
        if self._asked.path.strip("/") != "read":
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
        try:
            return json.loads(self._asked.body)
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

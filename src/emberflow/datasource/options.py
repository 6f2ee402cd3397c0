"""The options of the data source, and how a process of Spark's finds the live query they name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from emberflow.errors import InputError
from emberflow.runners.live.serving.addresses import address_of
from emberflow.runners.live.serving.bridge import Address, BridgeClient
from emberflow.runners.live.serving.tokens import checked_token

_TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True)
class SourceOptions:
    """A live query, and one of its fronts, sinks or states. It travels to executors."""

    query: str | None
    service: str
    address: Address | None
    seconds: float

    @classmethod
    def of(cls, options: Mapping[str, str], kind: str) -> SourceOptions:
        """``kind`` is ``front``, ``sink`` or ``state``."""
        name = options.get(kind)
        if not name:
            raise InputError(
                f"the data source 'emberflow' needs .option({kind!r}, ...), the name of a {kind} of "
                f"the live query; it was given {', '.join(sorted(options)) or 'no options'}."
            )
        endpoint, token, query = options.get("endpoint"), options.get("token"), options.get("query")
        if bool(endpoint) != bool(token):
            raise InputError(
                "the options 'endpoint' and 'token' go together: query.bridge has both."
            )
        if not endpoint and not query:
            raise InputError(
                "the data source 'emberflow' needs .option('query', ...), the name of a live query "
                "on this machine, or .option('endpoint', ...) and .option('token', ...)."
            )
        address = Address(endpoint, checked_token(token)) if endpoint and token else None
        return cls(query, f"{kind} {name}", address, _seconds(options))

    def resolved(self) -> SourceOptions:
        """The same with its address. Executors may be on other machines and cannot look it up."""
        if self.address is not None:
            return self
        assert self.query is not None
        found = address_of(self.query, seconds=self.seconds)
        return SourceOptions(self.query, self.service, found, self.seconds)

    def client(self) -> BridgeClient:
        address = self.resolved().address
        assert address is not None
        return BridgeClient(address, seconds=self.seconds)


def as_of_numbers(text: str) -> tuple[int, ...]:
    """The option ``asOf``: a time, or a time and a front.

    >>> as_of_numbers("17"), as_of_numbers("17,1")
    ((17,), (17, 1))
    >>> as_of_numbers("17 and a half")
    Traceback (most recent call last):
    emberflow.errors.InputError: asOf is a time, or a time and a front such as '17,1'; \
got '17 and a half'.
    """
    try:
        numbers = tuple(map(int, text.split(",")))
    except ValueError:
        numbers = ()
    if len(numbers) not in (1, 2):
        raise InputError(f"asOf is a time, or a time and a front such as '17,1'; got {text!r}.")
    return numbers


def _seconds(options: Mapping[str, str]) -> float:
    text = options.get("timeout", str(_TIMEOUT_SECONDS))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise InputError(f"option 'timeout' takes seconds above 0, got {text!r}.")
    return seconds

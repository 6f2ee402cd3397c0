"""Functions that are impure, each in its own way. Children import this module: keep it light."""

from __future__ import annotations

import datetime
import os
import random
import secrets
import sys
import time
import uuid
from collections.abc import Iterator
from itertools import count
from typing import Any

# --- Clocks and random numbers


def stamped(word: str) -> tuple[str, float]:
    return word, time.time()


def stamped_with_datetime(word: str) -> tuple[str, str]:
    return word, datetime.datetime.now().isoformat()


def noisy(word: str) -> tuple[str, float]:
    return word, random.random()


def shuffled(word: str) -> str:
    letters = list(word)
    random.shuffle(letters)
    return "".join(letters)


def with_uuid(word: str) -> tuple[str, str]:
    return word, str(uuid.uuid4())


def with_token(word: str) -> tuple[str, str]:
    return word, secrets.token_hex(8)


def _helper(word: str) -> str:
    return f"{word} {os.urandom(8).hex()}"


def through_a_helper(word: str) -> str:
    return _helper(word)


# --- State between calls

_total = 0
_seen_words: list[str] = []


def counting_globally(word: str) -> tuple[str, int]:
    global _total
    _total += 1
    return word, _total


def counting_in_a_global_list(word: str) -> tuple[str, int]:
    _seen_words.append(word)
    return word, len(_seen_words)


def counting_in_a_default(word: str, seen: list[str] = []) -> tuple[str, int]:  # noqa: B006
    seen.append(word)
    return word, len(seen)


def counting_on_itself(word: str) -> tuple[str, int]:
    counting_on_itself.calls = getattr(counting_on_itself, "calls", 0) + 1  # type: ignore[attr-defined]
    return word, counting_on_itself.calls  # type: ignore[attr-defined]


class Tally:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, word: str) -> tuple[str, int]:
        self.calls += 1
        return word, self.calls

    def method(self, word: str) -> tuple[str, int]:
        return self(word)


class Shared:
    calls = 0


def counting_on_a_class(word: str) -> tuple[str, int]:
    Shared.calls += 1
    return word, Shared.calls


_numbers = count()


def numbered(word: str) -> tuple[str, int]:
    return word, next(_numbers)


# --- Changes in place


def popping(words: list[str]) -> str:
    return words.pop()


def marking(record: dict[str, Any]) -> str:
    record["inner"]["seen"] = True
    return str(record["name"])


def appending(accumulator: list[str], word: str) -> list[str]:
    accumulator.append(word)
    return accumulator


def draining(accumulator: int, words: list[str]) -> int:
    total = accumulator
    while words:
        total += len(words.pop())
    return total


# --- Order of sets


def distinct_words(line: str) -> list[str]:
    return list(set(line.split()))


def each_distinct_word(line: str) -> Iterator[str]:
    yield from {word.upper() for word in line.split()}


def lengths(line: str) -> dict[str, int]:
    return {word: len(word) for word in set(line.split())}


def members(words: frozenset[str]) -> list[str]:
    return list(words)


# --- Unstable keys


def hashed(word: str) -> int:
    return hash(word)


def address(word: str) -> int:
    return id(word)


class Thing:
    def __init__(self, name: str) -> None:
        self.name = name


def shown(thing: Thing) -> str:
    return str(thing)


def random_key(word: str) -> int:
    return random.randrange(1000)


# --- Only in another process


def process_id(word: str) -> tuple[str, int]:
    return word, os.getpid()


def crashing_elsewhere(word: str) -> str:
    if os.environ.get("PYTHONHASHSEED") == "2":
        sys.stdout.write("about to end\n")
        sys.stdout.flush()
        os._exit(7)
    return word


def hanging_elsewhere(word: str) -> str:
    if os.environ.get("PYTHONHASHSEED") == "3":
        time.sleep(100)
    return word


def raising_elsewhere(word: str) -> str:
    if os.environ.get("PYTHONHASHSEED") == "1":
        raise ValueError("not here")
    return word

"""The token of a bridge, and which tokens are too weak.

Whoever has the token of a bridge may use the query. Keys are digests of it, and a digest is quick: one
who has recorded a handshake can try millions of tokens a second. So a token has to be drawn at random.
No rule can tell whether it was. `checked_token` refuses what certainly was not: texts that are short,
repeat themselves, or count up or down.
"""

from __future__ import annotations

import math
import secrets

from emberflow.errors import InputError

_LENGTH_MIN = 32
#: Random hexadecimal digits, the plainest tokens that are good, have about 100 bits by this estimate.
_BITS_MIN = 80


def new_token() -> str:
    return secrets.token_urlsafe(32)


def checked_token(token: object) -> str:
    """The token, if it may have been drawn at random. The error does not show it."""
    if not isinstance(token, str):
        raise InputError(f"a token is a text, got a value of type {type(token).__qualname__}.")
    problem = None
    if len(token) < _LENGTH_MIN:
        problem = f"it has {len(token)} characters, and {_LENGTH_MIN} are needed"
    elif bits_of(token) < _BITS_MIN:
        problem = "its characters repeat each other, or follow a pattern"
    if problem is not None:
        raise InputError(
            f"the token is too weak: {problem}. Whoever guesses it can use the query. Draw one at "
            f"random, as secrets.token_urlsafe(32) does, and keep it like a password."
        )
    return token


def bits_of(token: str) -> float:
    """An estimate from above of how hard the token is to guess.

    A character counts as much as there are different ones in the token. One that follows from those
    before it counts nothing: because the two before it were followed by it already, or because it is
    as far from its predecessor as that is from its own.

    >>> round(bits_of("ab" * 16)), round(bits_of("abcdefghijklmnopqrstuvwxyz0123456789"))
    (4, 21)
    """
    followers: set[tuple[str, str, str]] = set()
    surprises = 0
    one = other = "\0"
    for character in token:
        step = ord(character) - ord(other)
        is_expected = (one, other, character) in followers or step == ord(other) - ord(one)
        followers.add((one, other, character))
        surprises += not is_expected
        one, other = other, character
    return surprises * math.log2(max(1, len(set(token))))

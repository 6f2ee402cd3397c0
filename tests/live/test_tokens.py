"""Tokens that somebody thought of are refused; tokens that were drawn are taken."""

from __future__ import annotations

import random
import secrets
import uuid

import pytest

from emberflow.errors import InputError
from emberflow.runners.live.serving.tokens import checked_token, new_token


@pytest.mark.parametrize(
    "token",
    [
        "",
        "hunter2",
        "s3cure-But-much-too-short",
        "t" * 32,
        "t" * 1_000,
        "password" * 8,
        "0123456789abcdef" * 2,
        "abcdefghijklmnopqrstuvwxyz012345",
        "zyxwvutsrqponmlkjihgfedcba987654",
        "01" * 40,
        "11111111-2222-3333-4444-555555555555",
        " " * 31 + "x",
        "changeme-changeme-changeme-changeme",
    ],
)
def test_a_weak_token_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(InputError, match=r"too weak: .* secrets.token_urlsafe\(32\)") as raised:
        checked_token(token)
    assert not token.strip() or token not in str(raised.value)


def test_a_token_that_is_no_text_is_refused_and_not_shown() -> None:
    with pytest.raises(InputError, match="a token is a text, got a value of type bytes") as raised:
        checked_token(b"hunter2")
    assert "hunter2" not in str(raised.value)


def test_tokens_that_were_drawn_are_taken() -> None:
    dice = random.Random(7)
    for _ in range(500):
        for token in (
            new_token(),
            secrets.token_hex(16),
            secrets.token_urlsafe(24),
            dice.randbytes(16).hex(),
            str(uuid.UUID(int=dice.getrandbits(128), version=4)),
        ):
            assert checked_token(token) == token

"""Codecs: from the bytes of a record to a payload, and back.

Guarantees:

1. *Strict.* Bytes that are not what the codec expects, or are more than it expects, raise `ValueError`
   with the reason. The front adds which record it was, and decides what happens.
2. *Equal payloads are written as equal bytes*, so that a replay can be compared with what is stored.
3. *Codecs travel.* A codec is a description that is pickled and sent to workers.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

from emberflow.errors import EmberflowError, InputError, shortened
from emberflow.extras import need
from emberflow.rows.plain import to_json

#: How the Confluent serializers begin a record: this byte and the id of the schema in 4 more.
_MAGIC = b"\x00"
_PREFIX_BYTES = 5


class Codec(Protocol):
    """To write a codec, write these two methods. ``decode`` raises `ValueError` for other bytes."""

    def decode(self, data: bytes) -> Any: ...

    def encode(self, payload: Any) -> bytes: ...


#: A codec, or the name of one.
CodecLike: TypeAlias = str | Codec


class Json:
    """One JSON value in UTF-8. It writes the same JSON as `sinks.Files`.

    >>> Json().decode(b'{"word": "ash"}'), Json().encode({"word": "ash"})
    ({'word': 'ash'}, b'{"word":"ash"}')
    """

    def decode(self, data: bytes) -> Any:
        try:
            return json.loads(data.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"not JSON ({error})") from None

    def encode(self, payload: Any) -> bytes:
        return to_json(payload).encode("utf-8")


class Text:
    """Text in UTF-8."""

    def decode(self, data: bytes) -> Any:
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"not UTF-8 ({error.reason} at byte {error.start})") from None

    def encode(self, payload: Any) -> bytes:
        if not isinstance(payload, str):
            raise _refused("'text' takes a str", payload)
        try:
            return payload.encode("utf-8")
        except UnicodeEncodeError as error:
            raise _refused(
                f"UTF-8 does not have the lone surrogate {payload[error.start]!r}", payload
            ) from None


class Bytes:
    """Bytes as they are."""

    def decode(self, data: bytes) -> Any:
        return data

    def encode(self, payload: Any) -> bytes:
        if not isinstance(payload, bytes):
            raise _refused("'bytes' takes bytes", payload)
        return payload


class Avro:
    """One Avro datum, with the schema that it was written with: a dict, or its JSON.

    With ``schema_id`` a record begins as the Confluent serializers begin it, with a zero byte and that
    id. A record with another id has another schema, which only a registry knows, and is refused.

    >>> words = Avro(
    ...     {"type": "record", "name": "W", "fields": [{"name": "word", "type": "string"}]}
    ... )
    >>> words.decode(words.encode({"word": "ash"}))
    {'word': 'ash'}
    """

    def __init__(self, schema: Mapping[str, Any] | str, *, schema_id: int | None = None) -> None:
        fastavro = need("fastavro", extra="kafka", what="kafka.Avro")
        try:
            given = json.loads(schema) if isinstance(schema, str) else dict(schema)
            self._schema = fastavro.parse_schema(given)
        except Exception as error:
            raise InputError(
                f"kafka.Avro takes a schema as a dict or as JSON, and this one cannot be parsed: "
                f"{type(error).__qualname__}: {error}"
            ) from None
        self._prefix = b"" if schema_id is None else _MAGIC + schema_id.to_bytes(4, "big")

    def decode(self, data: bytes) -> Any:
        prefix = self._prefix
        if prefix and data[:_PREFIX_BYTES] != prefix:
            raise ValueError(
                f"not of schema {int.from_bytes(prefix[1:], 'big')}: it begins with "
                f"{data[:_PREFIX_BYTES]!r}, expected {prefix!r}"
            )
        import fastavro  # a statement: `need` would cost a microsecond a record

        stream = io.BytesIO(data)
        stream.seek(len(prefix))
        try:
            payload = fastavro.schemaless_reader(stream, self._schema, None)
        except Exception as error:  # other bytes can make the library raise anything
            raise ValueError(
                f"not Avro of this schema ({type(error).__qualname__}: {error})"
            ) from None
        if stream.tell() != len(data):
            raise ValueError(
                f"not Avro of this schema ({len(data) - stream.tell()} bytes are left over)"
            )
        return payload

    def encode(self, payload: Any) -> bytes:
        import fastavro

        stream = io.BytesIO()
        stream.write(self._prefix)
        try:
            fastavro.schemaless_writer(stream, self._schema, payload)
        except Exception as error:
            raise _refused(
                f"the Avro schema does not take it ({type(error).__qualname__}: {error})", payload
            ) from None
        return stream.getvalue()


class Protobuf:
    """One message of a class that ``protoc`` made. The payload is the message itself.

    A message can be changed, but a payload must not be: do not change it. The workers must be able to
    import the class. Messages are written deterministically.
    """

    def __init__(self, message: type[Any]) -> None:
        need("google.protobuf", extra="kafka", what="kafka.Protobuf")
        if not hasattr(message, "FromString") or not hasattr(message, "SerializeToString"):
            raise InputError(f"kafka.Protobuf takes a class that protoc made, got {message!r}.")
        self._message = message

    def decode(self, data: bytes) -> Any:
        try:
            return self._message.FromString(data)
        except Exception as error:  # protobuf has a DecodeError of its own
            raise ValueError(f"not a {self._message.__name__} ({error})") from None

    def encode(self, payload: Any) -> bytes:
        if not isinstance(payload, self._message):
            raise _refused(f"expected a {self._message.__name__}", payload)
        data: bytes = payload.SerializeToString(deterministic=True)
        return data


_NAMED: dict[str, type[Any]] = {"json": Json, "text": Text, "bytes": Bytes}


def codec_of(given: CodecLike, where: str) -> Codec:
    """The codec that an argument names; ``where`` is the argument, for messages.

    >>> codec_of("xml", "fronts.Kafka(value=)")
    Traceback (most recent call last):
    emberflow.errors.InputError: fronts.Kafka(value=) takes 'json', 'text', 'bytes', kafka.Avro(...)
    or kafka.Protobuf(...), got 'xml'.
    """
    if isinstance(given, str) and given in _NAMED:
        named: Codec = _NAMED[given]()
        return named
    if not isinstance(given, str) and hasattr(given, "decode") and hasattr(given, "encode"):
        return given
    raise InputError(
        f"{where} takes {', '.join(map(repr, _NAMED))}, kafka.Avro(...) or kafka.Protobuf(...), "
        f"got {given!r}."
    )


def _refused(why: str, payload: Any) -> EmberflowError:
    from emberflow.errors import PayloadError

    return PayloadError(
        f"a payload cannot be written to Kafka: {why}. The payload: {shortened(payload)}"
    )

"""Codecs: from the bytes of a record to a payload, and back.

Guarantees:

1. *Strict.* Bytes that are not what the codec expects, or are more than it expects, raise `ValueError`
   with the reason. The front adds which record it was, and decides what happens.
2. *Equal payloads are written as equal bytes*, so that a replay can be compared with what is stored.
3. *Codecs travel.* A codec is a description that is pickled and sent to workers.
"""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

from emberflow.errors import EmberflowError, InputError, shortened
from emberflow.extras import need
from emberflow.kafka.registry import (
    PREFIX_BYTES,
    Registry,
    Written,
    avro_schema,
    id_in,
    message_indexes,
    prefix_of,
    protobuf_schema,
)
from emberflow.rows.plain import to_json


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

    With ``registry``, each record has the id of its own schema. A front asks the registry for it; with
    ``schema`` payloads are as that one says, by Avro's rules of schema resolution, and otherwise as they
    were written. A sink needs ``schema``, and registers it before the query starts, under ``subject`` (by
    default the topic with ``-value`` or ``-key`` behind it). With ``register=False`` it has to be there.

    >>> words = Avro(
    ...     {"type": "record", "name": "W", "fields": [{"name": "word", "type": "string"}]}
    ... )
    >>> words.decode(words.encode({"word": "ash"}))
    {'word': 'ash'}
    """

    def __init__(
        self,
        schema: Mapping[str, Any] | str | None = None,
        *,
        schema_id: int | None = None,
        registry: Registry | None = None,
        subject: str | None = None,
        register: bool = True,
    ) -> None:
        need("fastavro", extra="kafka", what="kafka.Avro")
        if schema is None and registry is None:
            raise InputError("kafka.Avro takes a schema, or registry= to ask for those of records.")
        if schema_id is not None and registry is not None:
            raise InputError("kafka.Avro takes schema_id= or registry=, not both.")
        self.registry = registry
        self._written = None if registry is None else Written(registry, subject, register)
        self._text = None if schema is None else _text_of(schema)
        self._schema = None if self._text is None else _parsed(self._text)
        #: How a record begins; None as long as that is not known.
        self._prefix = b"" if registry is None else None
        if schema_id is not None:
            self._prefix = prefix_of(schema_id)
        #: The schemas of the registry that were asked for, by their ids.
        self._writers: dict[int, Any] = {}

    def registered(self, subject: str) -> Avro:
        """This codec with the id that the registry has for its schema."""
        if self._written is None or self._prefix is not None:
            return self
        if self._text is None:
            raise InputError(
                "kafka.Avro(registry=) has no schema to write with: give the sink schema=."
            )
        own = copy.copy(self)
        own._prefix = prefix_of(self._written.id_of(subject, avro_schema(self._text)))
        return own

    def decode(self, data: bytes) -> Any:
        import fastavro  # a statement: `need` would cost a microsecond a record

        stream = io.BytesIO(data)
        if self._written is None:
            prefix = self._prefix or b""
            if prefix and data[:PREFIX_BYTES] != prefix:
                raise ValueError(
                    f"not of schema {int.from_bytes(prefix[1:], 'big')}: it begins with "
                    f"{data[:PREFIX_BYTES]!r}, expected {prefix!r}"
                )
            writer, reader = self._schema, None
            stream.seek(len(prefix))
        else:
            writer, reader = self._writer(id_in(data)), self._schema
            stream.seek(PREFIX_BYTES)
        try:
            payload = fastavro.schemaless_reader(stream, writer, reader)  # type: ignore[arg-type]
        except Exception as error:  # other bytes can make the library raise anything
            raise ValueError(
                f"not Avro of this schema ({type(error).__qualname__}: {error})"
            ) from None
        if stream.tell() != len(data):
            raise ValueError(
                f"not Avro of this schema ({len(data) - stream.tell()} bytes are left over)"
            )
        return payload

    def _writer(self, schema_id: int) -> Any:
        """The schema of the registry with an id. Raises `ValueError`."""
        found = self._writers.get(schema_id)
        if found is None:
            assert self.registry is not None
            schema = self.registry.schema(schema_id)
            if schema.schema_type != "AVRO":
                raise ValueError(f"its schema {schema_id} is one of {schema.schema_type}, not Avro")
            named: dict[str, Any] = {}
            self._add_referred(schema, named)
            try:
                found = _parsed(schema.schema_str, named)
            except InputError as error:
                raise ValueError(f"its schema {schema_id}: {error}") from None
            self._writers[schema_id] = found
        return found

    def _add_referred(self, schema: Any, named: dict[str, Any]) -> None:
        """Parse the schemas that a schema refers to, and those that they refer to."""
        assert self.registry is not None
        for reference in schema.references or ():
            found = self.registry.referred(reference)
            self._add_referred(found, named)
            _parsed(found.schema_str, named)

    def encode(self, payload: Any) -> bytes:
        import fastavro

        prefix = self._prefix
        if prefix is None:
            raise _unregistered("kafka.Avro")
        stream = io.BytesIO()
        stream.write(prefix)
        try:
            fastavro.schemaless_writer(stream, self._schema, payload)  # type: ignore[arg-type]
        except Exception as error:
            raise _refused(
                f"the Avro schema does not take it ({type(error).__qualname__}: {error})", payload
            ) from None
        return stream.getvalue()


def _text_of(schema: Mapping[str, Any] | str) -> str:
    if isinstance(schema, str):
        return schema
    try:
        return json.dumps(dict(schema))
    except (TypeError, ValueError) as error:
        raise InputError(f"kafka.Avro takes a schema as a dict or as JSON: {error}.") from None


def _parsed(schema: str, named: dict[str, Any] | None = None) -> Any:
    import fastavro

    try:
        return fastavro.parse_schema(json.loads(schema), named_schemas=named)
    except Exception as error:
        raise InputError(
            f"kafka.Avro takes a schema as a dict or as JSON, and this one cannot be parsed: "
            f"{type(error).__qualname__}: {error}"
        ) from None


class Protobuf:
    """One message of a class that ``protoc`` made. The payload is the message itself.

    A message can be changed, but a payload must not be: do not change it. The workers must be able to
    import the class. Messages are written deterministically.

    With ``registry`` a record begins as the Confluent serializers begin it: with a zero byte, the id of
    its schema and where the message is in its file. A front takes any id, since Protobuf reads what other
    versions of a message wrote, but no other message. A sink registers the file of the class before the
    query starts, and the files that it imports, each under its name; ``subject`` and ``register`` are
    those of `Avro`.
    """

    def __init__(
        self,
        message: type[Any],
        *,
        registry: Registry | None = None,
        subject: str | None = None,
        register: bool = True,
    ) -> None:
        need("google.protobuf", extra="kafka", what="kafka.Protobuf")
        if not hasattr(message, "FromString") or not hasattr(message, "SerializeToString"):
            raise InputError(f"kafka.Protobuf takes a class that protoc made, got {message!r}.")
        self._message = message
        self.registry = registry
        self._written = None if registry is None else Written(registry, subject, register)
        self._indexes = b"" if registry is None else message_indexes(message.DESCRIPTOR)
        #: How a record begins; None as long as that is not known.
        self._prefix = b"" if registry is None else None

    def registered(self, subject: str) -> Protobuf:
        """This codec with the id that the registry has for its file."""
        if self._written is None or self._prefix is not None:
            return self
        own = copy.copy(self)
        schema = protobuf_schema(self._written, self._message.DESCRIPTOR.file)
        own._prefix = prefix_of(self._written.id_of(subject, schema)) + self._indexes
        return own

    def decode(self, data: bytes) -> Any:
        if self._written is not None:
            id_in(data)
            end = PREFIX_BYTES + len(self._indexes)
            if data[PREFIX_BYTES:end] != self._indexes:
                raise ValueError(
                    f"not a {self._message.__name__}: the indexes of the message begin with "
                    f"{data[PREFIX_BYTES:end]!r}, expected {self._indexes!r}"
                )
            data = data[end:]
        try:
            return self._message.FromString(data)
        except Exception as error:  # protobuf has a DecodeError of its own
            raise ValueError(f"not a {self._message.__name__} ({error})") from None

    def encode(self, payload: Any) -> bytes:
        if self._prefix is None:
            raise _unregistered("kafka.Protobuf")
        if not isinstance(payload, self._message):
            raise _refused(f"expected a {self._message.__name__}", payload)
        data: bytes = payload.SerializeToString(deterministic=True)
        return self._prefix + data if self._prefix else data


def registered(codec: Codec, subject: str) -> Codec:
    """A codec that is to write under a subject. One with a registry then has the id of its schema."""
    made: Codec = codec.registered(subject) if hasattr(codec, "registered") else codec
    return made


def check_registry(codec: Codec | None) -> None:
    """Raises `InputError` if a codec has a registry that does not answer."""
    registry = getattr(codec, "registry", None)
    if isinstance(registry, Registry):
        registry.check()


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


def _unregistered(what: str) -> EmberflowError:
    return EmberflowError(
        f"{what}(registry=) does not know the id of its schema yet: a sink registers it in check() or open()."
    )

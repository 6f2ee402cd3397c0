"""A schema registry: which schema an id means, and which id a schema has.

A record in Confluent's wire format begins with a zero byte and the id of its schema, in 4 bytes, big
endian. In Protobuf the indexes of the message within its file follow: how many, and each, as zigzag
varints; a single zero byte where the message is the first of its file.

Guarantees:

1. *The id of what is written is known before a query starts.* The driver registers the schema of a sink
   once, and the codec that travels to the workers has the id. So every worker and every life of the query
   writes the same bytes. A schema that is registered already keeps its id.
2. *What an id means does not change*, so a record means the same on every read. A worker asks the registry
   once for each id that it meets.
3. *A registry that is away is no malformed record.* The worker asks again for a while, and then the query
   ends with an error that tells. Only a record whose id the registry does not know is malformed.

The client is Confluent's own (`confluent_kafka.schema_registry`).
"""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from emberflow.errors import EmberflowError, InputError
from emberflow.extras import need

#: How a record in the wire format begins.
MAGIC = b"\x00"
PREFIX_BYTES = 5

#: How long a registry gets before a query starts, and while one reads.
_CHECK_SECONDS_MAX = 8.0
_READ_SECONDS_MAX = 60.0
_PAUSE_SECONDS = 0.5
_NOT_FOUND = 404
_SERVER_ERROR = 500
_TOO_MANY = 429

T = TypeVar("T")


class Registry:
    """Where a schema registry is: Confluent's, or another one with its REST interface.

    ``config`` is for `confluent_kafka.schema_registry.SchemaRegistryClient`, as in
    ``{"basic.auth.user.info": "user:password"}``. It travels to the workers, with the credentials in it.
    """

    def __init__(self, url: str, *, config: Mapping[str, Any] | None = None) -> None:
        if not re.match(r"https?://[^/]", url):
            raise InputError("kafka.Registry takes a URL, as in http://registry:8081.")
        if "@" in url:
            raise InputError(
                "kafka.Registry takes a URL without a user: give basic.auth.user.info in config=."
            )
        _library()
        self.url = url
        self.config = dict(config or {})

    def _client(self) -> Any:
        """A client, to be closed. One for each question: there are few."""
        try:
            return _library().SchemaRegistryClient({**self.config, "url": self.url})
        except (TypeError, ValueError, AttributeError) as error:
            # The message of the library may show a password.
            raise InputError(
                f"kafka.Registry: the settings for {self.url} are refused "
                f"({type(error).__qualname__}). Look at config=."
            ) from None

    def check(self) -> None:
        """Raises `InputError` if the registry does not answer."""
        self._asked(lambda client: client.get_schema_types(), _CHECK_SECONDS_MAX)

    def id_of(self, subject: str, schema: Any, *, register: bool) -> int:
        """The id of a schema under a subject, which registers it if it is new."""

        def ask(client: Any) -> int:
            if register:
                return int(client.register_schema(subject, schema))
            return int(client.lookup_schema(subject, schema).schema_id)

        try:
            return self._asked(ask, _CHECK_SECONDS_MAX)
        except _library().SchemaRegistryError as error:
            what = "does not take" if register else "does not have"
            raise InputError(
                f"kafka.Registry: {self.url} {what} the schema under subject {subject!r}: "
                f"{error.error_message} (HTTP status {error.http_status_code}). Is it compatible with the "
                f"schemas before it?"
            ) from None

    def version_of(self, subject: str, schema: Any) -> int:
        """The version that a registered schema has under its subject."""
        found = self._asked(
            lambda client: client.lookup_schema(subject, schema), _CHECK_SECONDS_MAX
        )
        return int(found.version)

    def schema(self, schema_id: int) -> Any:
        """The schema of an id. Raises `ValueError` if the registry does not have it."""
        try:
            return self._asked(lambda client: client.get_schema(schema_id), _READ_SECONDS_MAX)
        except _library().SchemaRegistryError as error:
            raise ValueError(
                f"its schema {schema_id} is not in the registry at {self.url} ({error.error_message})"
            ) from None

    def referred(self, reference: Any) -> Any:
        """The schema that another one refers to. Raises `ValueError`."""
        try:
            return self._asked(
                lambda client: client.get_version(reference.subject, reference.version),
                _READ_SECONDS_MAX,
            ).schema
        except _library().SchemaRegistryError as error:
            raise ValueError(
                f"its schema refers to {reference.subject!r}, version {reference.version}, which is not in "
                f"the registry at {self.url} ({error.error_message})"
            ) from None

    def _asked(self, ask: Callable[[Any], T], seconds: float) -> T:
        """An answer of the registry, also an error that it tells; asked again while it is away."""
        refused = _library().SchemaRegistryError
        deadline = time.monotonic() + seconds
        while True:
            problem: Exception
            try:
                with self._client() as client:
                    return ask(client)
            except refused as error:
                code = error.http_status_code
                if code in (401, 403):
                    raise InputError(
                        f"kafka.Registry: {self.url} refuses the credentials (HTTP status {code}). Look at "
                        f"basic.auth.user.info in config=."
                    ) from None
                if code < _SERVER_ERROR and code != _TOO_MANY:
                    raise
                problem = error
            except (InputError, EmberflowError):
                raise
            except Exception as error:  # whatever the HTTP library has for a connection that fails
                problem = error
            if time.monotonic() > deadline:
                raise InputError(
                    f"kafka.Registry: {self.url} has not answered within {seconds:.0f} s "
                    f"({type(problem).__qualname__}: {problem}). Is it running?"
                ) from None
            time.sleep(_PAUSE_SECONDS)


class Written(NamedTuple):
    """How the schema of what is written gets its id."""

    registry: Registry
    subject: str | None
    register: bool

    def id_of(self, subject: str, schema: Any) -> int:
        return self.registry.id_of(self.subject or subject, schema, register=self.register)


def prefix_of(schema_id: int) -> bytes:
    """How a record of a schema begins.

    >>> prefix_of(258)
    b'\\x00\\x00\\x00\\x01\\x02'
    """
    return MAGIC + schema_id.to_bytes(4, "big")


def id_in(data: bytes) -> int:
    """The id of the schema of a record. Raises `ValueError`.

    >>> id_in(prefix_of(258) + b"ash")
    258
    """
    if len(data) < PREFIX_BYTES or data[:1] != MAGIC:
        raise ValueError(
            f"not in the wire format of a registry: it begins with {data[:PREFIX_BYTES]!r}, expected a zero "
            f"byte and the id of a schema in 4 bytes"
        )
    return int.from_bytes(data[1:PREFIX_BYTES], "big")


def avro_schema(text: str) -> Any:
    """What is registered for an Avro schema."""
    return _library().Schema(text, "AVRO")


def protobuf_schema(registry: Written, file: Any) -> Any:
    """What is registered for a file of Protobuf: the file, and before it the files that it imports."""
    library = _library()
    references = [
        library.SchemaReference(name=one.name, subject=one.name, version=_version_of(registry, one))
        for one in file.dependencies
        if not one.name.startswith("google/protobuf/")
    ]
    text = base64.standard_b64encode(file.serialized_pb).decode("ascii")
    return library.Schema(text, "PROTOBUF", references)


def _version_of(written: Written, file: Any) -> int:
    """Register a file that another one imports, under its name; its version there."""
    schema = protobuf_schema(written, file)
    registry = written.registry
    registry.id_of(file.name, schema, register=written.register)
    return registry.version_of(file.name, schema)


def message_indexes(descriptor: Any) -> bytes:
    """Where a message is in its file, as a record says it.

    >>> from google.protobuf import descriptor_pb2, wrappers_pb2
    >>> message_indexes(wrappers_pb2.DoubleValue.DESCRIPTOR)  # the first of its file
    b'\\x00'
    >>> message_indexes(wrappers_pb2.StringValue.DESCRIPTOR)  # the eighth
    b'\\x02\\x0e'
    >>> message_indexes(descriptor_pb2.DescriptorProto.ExtensionRange.DESCRIPTOR)
    b'\\x04\\x04\\x00'
    """
    indexes: list[int] = []
    while descriptor.containing_type is not None:
        outer = descriptor.containing_type
        indexes.insert(0, [one.full_name for one in outer.nested_types].index(descriptor.full_name))
        descriptor = outer
    indexes.insert(0, list(descriptor.file.message_types_by_name).index(descriptor.name))
    if indexes == [0]:
        return b"\x00"
    return b"".join(map(_zigzag, (len(indexes), *indexes)))


def _zigzag(number: int) -> bytes:
    """A number that is not negative, as a zigzag varint.

    >>> _zigzag(1), _zigzag(64)
    (b'\\x02', b'\\x80\\x01')
    """
    rest, found = number << 1, bytearray()
    while rest >= 0x80:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    found.append(rest)
    return bytes(found)


def _library() -> Any:
    return need("confluent_kafka.schema_registry", extra="registry", what="kafka.Registry")

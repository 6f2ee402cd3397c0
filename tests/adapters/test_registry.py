"""Codecs with a schema registry: byte for byte Confluent's wire format, and what a registry may do.

Confluent's own serializers and deserializers are the judges. The registry is a small server of the tests,
or a real one: see `registry_server`.
"""

from __future__ import annotations

import json
import pickle
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

import emberflow as ef
from emberflow import fronts, kafka, sinks
from emberflow.commands.adapters import given_fronts, given_sinks
from emberflow.errors import EmberflowError, InputError
from emberflow.fronts import Element, Malformed
from emberflow.kafka import registry as registry_module
from emberflow.sinks import PayloadError, StoredBundle
from tests.adapters.kafka_broker import KafkaBroker
from tests.adapters.registry_server import REAL, RegistryServer, running_registry

WORD: dict[str, Any] = {
    "type": "record",
    "name": "Word",
    "fields": [{"name": "word", "type": "string"}, {"name": "n", "type": "long"}],
}
#: The next version of it: without a field, and with another one.
NEXT: dict[str, Any] = {
    "type": "record",
    "name": "Word",
    "fields": [
        {"name": "word", "type": "string"},
        {"name": "mark", "type": ["null", "string"], "default": None},
    ],
}

own_server = pytest.mark.skipif(REAL is not None, reason="it breaks the registry")


@pytest.fixture
def served() -> Iterator[tuple[str, RegistryServer]]:
    with running_registry() as (url, server):
        yield REAL or url, server


@pytest.fixture
def client(served: tuple[str, RegistryServer]) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": served[0]}) as client:
        yield client


@pytest.fixture
def registry(served: tuple[str, RegistryServer]) -> kafka.Registry:
    return kafka.Registry(served[0])


def subject() -> str:
    """One that nobody has used before."""
    return f"topic-{uuid.uuid4().hex}-value"


def context(subject: str) -> SerializationContext:
    return SerializationContext(subject.removesuffix("-value"), MessageField.VALUE)


def message(name: str, file: str, *nested: str, imports: tuple[str, ...] = ()) -> Any:
    """The class of a message, as protoc would make it: the second of its file, or within it."""
    described = descriptor_pb2.FileDescriptorProto(
        name=file, package="shop", syntax="proto3", dependency=imports
    )
    described.message_type.add(name=f"Before{name}")
    own = described.message_type.add(name=name)
    kinds = descriptor_pb2.FieldDescriptorProto
    own.field.add(name="word", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    own.field.add(name="n", number=2, type=kinds.TYPE_INT64, label=kinds.LABEL_OPTIONAL)
    for inner in nested:
        own.nested_type.add(name=inner)
        own = own.nested_type[-1]
    if imports:
        described.message_type[0].field.add(
            name="other",
            number=1,
            type=kinds.TYPE_MESSAGE,
            type_name=".shop.Imported",
            label=kinds.LABEL_OPTIONAL,
        )
    pool = descriptor_pool.Default()
    pool.Add(described)
    full = ".".join(("shop", name, *nested))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(full))


IMPORTED = message("Imported", "shop/imported.proto")
SECOND = message("Second", "shop/words.proto", "Inner", imports=("shop/imported.proto",))
OUTER = message_factory.GetMessageClass(SECOND.DESCRIPTOR.containing_type)
FIRST = message_factory.GetMessageClass(OUTER.DESCRIPTOR.file.message_types_by_name["BeforeSecond"])


def test_avro_is_what_confluents_serializer_writes(
    registry: kafka.Registry, client: SchemaRegistryClient
) -> None:
    own, payload = subject(), {"word": "äsh", "n": -70_000}
    codec = kafka.Avro(WORD, registry=registry).registered(own)
    theirs = AvroSerializer(client, json.dumps(WORD))(payload, context(own))
    data = codec.encode(payload)
    assert data == theirs
    number = int.from_bytes(data[1:5], "big")
    assert data == b"\0" + number.to_bytes(4, "big") + b"\x08\xc3\xa4sh" + b"\xdf\xc5\x08"
    assert AvroDeserializer(client)(data, context(own)) == payload
    assert kafka.Avro(registry=registry).decode(data) == payload
    # A codec that has travelled needs no registry to write.
    assert pickle.loads(pickle.dumps(codec)).encode(payload) == data


def test_each_record_is_read_by_the_schema_it_was_written_with(registry: kafka.Registry) -> None:
    own = subject()
    first = kafka.Avro(WORD, registry=registry).registered(own)
    second = kafka.Avro(NEXT, registry=registry).registered(own)
    records = [first.encode({"word": "ash", "n": 3}), second.encode({"word": "elm", "mark": "x"})]
    as_written = kafka.Avro(registry=registry)
    assert [as_written.decode(record) for record in records] == [
        {"word": "ash", "n": 3},
        {"word": "elm", "mark": "x"},
    ]
    resolved = pickle.loads(pickle.dumps(kafka.Avro(NEXT, registry=registry)))
    assert [resolved.decode(record) for record in records] == [
        {"word": "ash", "mark": None},
        {"word": "elm", "mark": "x"},
    ]


@pytest.mark.parametrize("kind", [FIRST, IMPORTED, SECOND, OUTER])
def test_protobuf_is_what_confluents_serializer_writes(
    registry: kafka.Registry, client: SchemaRegistryClient, kind: Any
) -> None:
    """Messages that are the first of their file, others, nested ones, and a file that imports another."""
    own = subject()
    payload = kind()
    if kind in (IMPORTED, OUTER):
        payload.word, payload.n = "ash", 7
    codec = kafka.Protobuf(kind, registry=registry).registered(own)
    theirs = ProtobufSerializer(kind, client, {"use.deprecated.format": False})
    data = codec.encode(payload)
    assert data == theirs(payload, context(own))
    reads = ProtobufDeserializer(kind, {"use.deprecated.format": False}, client)
    assert reads(data, context(own)) == payload
    assert kafka.Protobuf(kind, registry=registry).decode(data) == payload


def test_the_indexes_of_a_message_are_those_of_the_format() -> None:
    """From the documentation of the wire format: [0] is one zero byte, [1, 0] is 2, 1, 0 as zigzag."""
    assert registry_module.message_indexes(SECOND.DESCRIPTOR) == b"\x04\x02\x00"
    assert registry_module.message_indexes(OUTER.DESCRIPTOR) == b"\x02\x02"
    assert registry_module.message_indexes(FIRST.DESCRIPTOR) == b"\x00"


def test_what_is_not_of_the_format_cannot_be_decoded(registry: kafka.Registry) -> None:
    own = subject()
    avro, protobuf = kafka.Avro(registry=registry), kafka.Protobuf(OUTER, registry=registry)
    word = kafka.Avro(WORD, registry=registry).registered(own).encode({"word": "ash", "n": 3})
    inner = kafka.Protobuf(SECOND, registry=registry).registered(subject()).encode(SECOND())
    for codec in (avro, protobuf):
        for data in (b"", b"\0\0\0\1", b'{"word": "ash"}'):
            with pytest.raises(ValueError, match="not in the wire format of a registry"):
                codec.decode(data)
    with pytest.raises(ValueError, match=r"its schema 2000000000 is not in the registry"):
        avro.decode(registry_module.prefix_of(2_000_000_000) + word[5:])
    with pytest.raises(ValueError, match="is one of PROTOBUF, not Avro"):
        avro.decode(inner)
    with pytest.raises(ValueError, match="not Avro of this schema"):
        avro.decode(word[:-1])
    with pytest.raises(ValueError, match="1 bytes are left over"):
        avro.decode(word + b"\0")
    with pytest.raises(ValueError, match="not a Second: the indexes of the message begin with"):
        protobuf.decode(inner)
    with pytest.raises(PayloadError, match="the Avro schema does not take it"):
        kafka.Avro(WORD, registry=registry).registered(own).encode({"word": 1})


def test_a_schema_that_has_to_be_there(registry: kafka.Registry) -> None:
    own = subject()
    with pytest.raises(InputError, match=f"does not have the schema under subject '{own}'"):
        kafka.Avro(WORD, registry=registry, register=False).registered(own)
    written = kafka.Avro(WORD, registry=registry).registered(own)
    again = kafka.Avro(WORD, registry=registry, register=False, subject=own).registered("other")
    assert again.encode({"word": "ash", "n": 1}) == written.encode({"word": "ash", "n": 1})


def test_from_topic_to_topic(
    kafka: KafkaBroker, registry: Any, client: SchemaRegistryClient
) -> None:
    """Avro keys and values; a record that cannot be decoded has its place among the others."""
    codecs = ef.kafka
    topic = kafka.topic()
    sink = sinks.Kafka(
        kafka.servers,
        topic,
        value=codecs.Avro(WORD, registry=registry),
        key="word",
        key_codec=codecs.Avro('"string"', registry=registry),
    )
    sink.check()
    written = pickle.loads(pickle.dumps(sink))
    rows = [{"word": "ash", "n": 1}, {"word": "elm", "n": 2}]
    writer = written.open(0)
    writer.store(StoredBundle("out", 0, ef.GlobalTime(1, 0), rows))
    writer.close()
    kafka.produce(topic, [b"{}"])
    front = fronts.Kafka(
        kafka.servers,
        topic,
        value=codecs.Avro(registry=registry),
        key=codecs.Avro(registry=registry),
        until_end=True,
    )
    front.check()
    found = [given.payload for given in front.read(0, None) if isinstance(given, Element)]
    assert found[:2] == [("ash", rows[0]), ("elm", rows[1])]
    assert isinstance(found[2], Malformed)
    assert "offset 3: not in the wire format of a registry" in found[2].problem
    assert client.get_latest_version(f"{topic}-value").schema_id > 0
    assert client.get_latest_version(f"{topic}-key").schema_id > 0


# What a registry may do.


@own_server
def test_a_worker_asks_once_for_each_schema_and_again_when_the_registry_is_away(
    served: tuple[str, RegistryServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "_PAUSE_SECONDS", 0.01)
    url, server = served
    registry = kafka.Registry(url, config={"max.retries": 0})
    data = kafka.Avro(WORD, registry=registry).registered("s").encode({"word": "ash", "n": 3})
    server.asked.clear()
    server.failures[:] = [503, 500, 429]
    codec = kafka.Avro(registry=pickle.loads(pickle.dumps(registry)))
    assert [codec.decode(data)["n"] for _ in range(3)] == [3, 3, 3]
    assert len([path for path in server.asked if path.startswith("/schemas/ids/")]) == 4
    monkeypatch.setattr(registry_module, "_READ_SECONDS_MAX", 0.05)
    server.failures[:] = [503] * 10_000
    with pytest.raises(InputError, match=r"has not answered within .* Is it running\?"):
        kafka.Avro(registry=registry).decode(data)  # and so it is no malformed record


@own_server
def test_what_a_registry_refuses_is_told(served: tuple[str, RegistryServer]) -> None:
    url, server = served
    server.closed.add("s")
    with pytest.raises(InputError, match=r"does not take the schema under subject 's': incompat"):
        kafka.Avro(WORD, registry=kafka.Registry(url)).registered("s")
    server.credentials = "Basic YWRhOmxvdmVsYWNl"
    config = {"basic.auth.user.info": "ada:lovelace"}
    kafka.Registry(url, config=config).check()
    with pytest.raises(InputError, match=r"refuses the credentials \(HTTP status 401\)"):
        kafka.Registry(url).check()


@own_server
def test_schemas_that_refer_to_others(served: tuple[str, RegistryServer]) -> None:
    url, server = served
    shop = {"type": "record", "name": "Shop", "fields": [{"name": "city", "type": "string"}]}
    item = {"type": "record", "name": "Item", "fields": [{"name": "shop", "type": "Shop"}]}
    server.schemas += [
        {"schemaType": "AVRO", "schema": json.dumps(shop)},
        {
            "schemaType": "AVRO",
            "schema": json.dumps(item),
            "references": [{"name": "Shop", "subject": "shops", "version": 1}],
        },
    ]
    server.subjects["shops"] = [1]
    codec = kafka.Avro(registry=kafka.Registry(url))
    assert codec.decode(b"\0\0\0\0\2\x06Ulm") == {"shop": {"city": "Ulm"}}


def test_a_registry_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "_CHECK_SECONDS_MAX", 0.05)
    monkeypatch.setattr(registry_module, "_PAUSE_SECONDS", 0.01)
    nowhere = kafka.Registry("http://127.0.0.1:1", config={"max.retries": 0})
    with pytest.raises(InputError, match=r"http://127.0.0.1:1 has not answered within 0 s"):
        kafka.Avro(WORD, registry=nowhere).registered("s")
    with pytest.raises(InputError, match="has not answered"):
        nowhere.check()


def test_arguments_that_are_none() -> None:
    with pytest.raises(InputError, match=r"kafka.Registry takes a URL, as in"):
        kafka.Registry("registry:8081")
    with pytest.raises(InputError, match="takes a URL without a user") as raised:
        kafka.Registry("http://ada:lovelace@registry")
    assert "lovelace" not in str(raised.value)
    registry = kafka.Registry("http://registry:8081")
    with pytest.raises(InputError, match="takes a schema, or registry="):
        kafka.Avro()
    with pytest.raises(InputError, match="takes schema_id= or registry=, not both"):
        kafka.Avro(WORD, schema_id=3, registry=registry)
    with pytest.raises(InputError, match="has no schema to write with"):
        kafka.Avro(registry=registry).registered("s")
    with pytest.raises(EmberflowError, match="does not know the id of its schema yet"):
        kafka.Avro(WORD, registry=registry).encode({"word": "ash", "n": 1})


def test_from_a_command_line(served: tuple[str, RegistryServer], tmp_path: Any) -> None:
    url, _ = served
    (tmp_path / "word.avsc").write_text(json.dumps(WORD))
    flow = ef.Flow("words")
    flow.front("words").sink("out")
    graph = flow.graph()
    topic = f"kafka://localhost:9092/words?value=avro&registry={url}"
    sink = given_sinks(graph, [f"out={topic}&schema={tmp_path}/word.avsc&key=word"])["out"]
    data = sink.value.registered(subject()).encode({"word": "ash", "n": 3})
    front = given_fronts(graph, [f"words={topic}&key=avro"])["words"]
    assert front.value.decode(data) == front.key.decode(data) == {"word": "ash", "n": 3}
    with pytest.raises(InputError, match=r"sink 'out': avro needs the URL .* schema=PATH"):
        given_sinks(graph, [f"out={topic}"])
    with pytest.raises(InputError, match=r"front 'words': avro needs the URL of a registry: reg"):
        given_fronts(graph, ["words=kafka://localhost:9092/words?value=avro"])
    with pytest.raises(InputError, match=r"the schema '/no/such' cannot be read"):
        given_sinks(graph, [f"out={topic}&schema=/no/such"])

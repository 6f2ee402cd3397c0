"""What `fronts.Kafka` and `sinks.Kafka` share: the codecs of records, and the client of a cluster.

A *codec* makes payloads from the bytes of a record, and bytes from payloads. ``"json"``, ``"text"`` and
``"bytes"`` are names of codecs. `Avro` and `Protobuf` are made with a schema that the user gives, or with
a `Registry`, where the schema of each record has an id: what a record means must not change between two
reads of it.
"""

from __future__ import annotations

from emberflow.kafka.codecs import Avro, Codec, Protobuf
from emberflow.kafka.registry import Registry

__all__ = ["Avro", "Codec", "Protobuf", "Registry"]

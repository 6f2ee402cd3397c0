"""What `fronts.Kafka` and `sinks.Kafka` share: how records are written, and how a broker is asked.

A *codec* makes payloads of the bytes of a record and bytes of payloads. ``"json"``, ``"text"`` and
``"bytes"`` are names of codecs; `Avro` and `Protobuf` are made with a schema that is given here, not
fetched from a registry: what a record means must not change between two reads of it.
"""

from __future__ import annotations

from emberflow.kafka.codecs import Avro, Codec, Protobuf

__all__ = ["Avro", "Codec", "Protobuf"]

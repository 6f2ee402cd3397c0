"""A small schema registry for the tests: the part of the REST interface that the client uses.

It keeps schemas as text, gives equal ones the same id, and checks no compatibility beyond what a test
asks for. ``EMBERFLOW_REGISTRY=http://...`` makes the tests use a real registry instead; those that
break the registry are skipped then.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

REAL = os.environ.get("EMBERFLOW_REGISTRY")


class RegistryServer:
    def __init__(self) -> None:
        self.schemas: list[dict[str, Any]] = []
        self.subjects: dict[str, list[int]] = {}
        #: Paths that were asked for.
        self.asked: list[str] = []
        #: Answers with this status, as often as it says.
        self.failures: list[int] = []
        #: Subjects that take no other schema.
        self.closed: set[str] = set()
        self.credentials: str | None = None

    def answer(
        self, method: str, path: str, body: dict[str, Any], credentials: str | None
    ) -> tuple[int, Any]:
        self.asked.append(path)
        if self.failures:
            return self.failures.pop(), {"error_code": 50001, "message": "out of order"}
        if self.credentials is not None and credentials != self.credentials:
            return 401, {"error_code": 40101, "message": "who are you?"}
        match method, *(unquote(part) for part in path.split("?")[0].strip("/").split("/")):
            case "GET", "schemas", "types":
                return 200, ["AVRO", "PROTOBUF"]
            case "GET", "schemas", "ids", number:
                found = int(number) - 1
                if found < len(self.schemas):
                    return 200, self.schemas[found]
                return 404, {"error_code": 40403, "message": "Schema not found"}
            case "POST", "subjects", subject, "versions":
                return self._registered(subject, _shown(body))
            case "POST", "subjects", subject:
                own = self.subjects.get(subject, [])
                for version, number in enumerate(own, 1):
                    if self.schemas[number - 1] == _shown(body):
                        told = {"subject": subject, "version": version, "id": number}
                        return 200, {**told, **_shown(body)}
                return 404, {"error_code": 40403, "message": "Schema not found"}
            case "GET", "subjects", subject, "versions", version:
                own = self.subjects[subject]
                at = len(own) if version == "latest" else int(version)
                number = own[at - 1]
                told = {"subject": subject, "version": at, "id": number}
                return 200, {**told, **self.schemas[number - 1]}
        return 404, {"error_code": 404, "message": f"{method} {path}?"}

    def _registered(self, subject: str, schema: dict[str, Any]) -> tuple[int, Any]:
        if subject in self.closed and schema not in self.schemas:
            return 409, {"error_code": 409, "message": "incompatible with an earlier schema"}
        if schema not in self.schemas:
            self.schemas.append(schema)
        number = self.schemas.index(schema) + 1
        own = self.subjects.setdefault(subject, [])
        if number not in own:
            own.append(number)
        return 200, {"id": number}


def _shown(body: dict[str, Any]) -> dict[str, Any]:
    kept = {name: body[name] for name in ("schema", "schemaType", "references") if body.get(name)}
    return {"schemaType": "AVRO", **kept}


@contextmanager
def running_registry() -> Iterator[tuple[str, RegistryServer]]:
    """The URL of a registry on a free port of the loopback device, and what it has."""
    registry = RegistryServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer("GET")

        def do_POST(self) -> None:
            self._answer("POST")

        def _answer(self, method: str) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            credentials = self.headers.get("Authorization")
            status, told = registry.answer(
                method, self.path, json.loads(body or b"{}"), credentials
            )
            data = json.dumps(told).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

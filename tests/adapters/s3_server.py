"""A private server of S3's API over a temporary folder, and a proxy in front of it that makes faults.

The server is S3Proxy, from the jar that `scripts/ensure-s3` has copied into build/s3/server. It listens on a
free port of the loopback device, can be killed and started again, and makes conditional puts as a store
should: of many that create an object, one succeeds.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from tests.adapters.java_server import JavaServer, free_port, java

JAR = Path(__file__).parents[2] / "build" / "s3" / "server"
BUCKET = "bucket"
USER, PASSWORD = "ada", "lovelace"
_START_SECONDS_MAX = 90
_JAVA = ["-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]


def missing() -> str | None:
    """Why there can be no server here."""
    if not (JAR / "installed.sha256").exists():
        return "the jar of an S3 server is not in build/s3/server (scripts/ensure-s3)"
    if java() is None:
        return "no java was found to run an S3 server with"
    try:
        import obstore  # noqa: F401
    except ImportError:
        return "obstore is not installed (pip install 'emberflow[s3]')"
    return None


@contextlib.contextmanager
def running_server(port: int) -> Iterator[S3Server]:
    """A server for as long as this lasts; skips the test where there can be none."""
    problem = missing()
    if problem is not None:
        pytest.skip(problem)
    server = S3Server(port)
    try:
        server.start()
        yield server
    finally:
        server.stop()


def environment(endpoint: str) -> dict[str, str]:
    """What the tools of AWS read to find this server."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": USER,
        "AWS_SECRET_ACCESS_KEY": PASSWORD,
        "AWS_REGION": "us-east-1",
    }


class S3Server(JavaServer):
    def __init__(self, port: int) -> None:
        super().__init__("s3")
        self._port = port
        self._folders = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def port(self) -> int:
        return self._port

    def new_url(self, name: str = "run") -> str:
        """The URL of a folder that is empty."""
        self._folders += 1
        return f"s3://{BUCKET}/{name}-{os.getpid()}-{self._folders}"

    def path(self, url: str) -> Path:
        """Where the server keeps the objects below a URL."""
        parts = urlsplit(url)
        return self.home / "objects" / parts.netloc / unquote(parts.path).strip("/")

    def start(self) -> None:
        (self.home / "objects" / BUCKET).mkdir(parents=True, exist_ok=True)
        properties = self.home / "s3proxy.conf"
        properties.write_text(
            "s3proxy.authorization=aws-v2-or-v4\n"
            f"s3proxy.identity={USER}\n"
            f"s3proxy.credential={PASSWORD}\n"
            f"s3proxy.endpoint={self.endpoint}\n"
            "jclouds.provider=filesystem\n"
            f"jclouds.filesystem.basedir={self.home / 'objects'}\n"
        )
        (jar,) = JAR.glob("*.jar")
        process = self._run([*_JAVA, "-jar", jar, "--properties", properties])
        deadline = time.monotonic() + _START_SECONDS_MAX
        while not self._answers():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the S3 server did not start:\n{self._logged()}")
            time.sleep(0.05)

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=5)
        try:
            connection.request("GET", "/")
            connection.getresponse().read()
        except OSError:
            return False
        else:
            return True
        finally:
            connection.close()

    def move(self) -> int:
        """Serve the same at another port from now on; the port where it was."""
        self.kill()
        before, self._port = self._port, free_port()
        self.start()
        return before

    def move_back(self, port: int) -> None:
        if self._process is not None:
            self.kill()
        self._port = port
        self.start()


#: What becomes of a request: a function of its method, path and headers.
PASSED, REFUSED, LOST_BEFORE, LOST_AFTER = "passed", "refused", "lost before", "lost after"
PROBLEMS = (REFUSED, LOST_BEFORE, LOST_AFTER)
Fate = Callable[[str, str, dict[str, str]], str]


def all_pass(method: str, path: str, headers: dict[str, str]) -> str:
    return PASSED


def fails(times: int, how: str, method: str = "PUT") -> Callable[..., str]:
    """The first requests of a method go wrong, all others pass."""
    left = [times]
    lock = threading.Lock()

    def fate(got: str, path: str, headers: dict[str, str]) -> str:
        with lock:
            if got != method or not left[0]:
                return PASSED
            left[0] -= 1
            return how

    return fate


def loses_some(seed: int, share: float) -> Callable[..., str]:
    dice = random.Random(seed)
    lock = threading.Lock()

    def fate(method: str, path: str, headers: dict[str, str]) -> str:
        with lock:
            return dice.choice(PROBLEMS) if dice.random() < share else PASSED

    return fate


class FaultyS3:
    """A proxy in front of a server. ``fate`` decides on each request, and may take its time:

    - PASSED: it is made, and answered;
    - REFUSED: 503 SlowDown, and it is not made;
    - LOST_BEFORE: the connection breaks, and it is not made;
    - LOST_AFTER: it is made, and the connection breaks before there is an answer.
    """

    def __init__(self, server: S3Server, port: int = 0) -> None:
        self._behind = server
        self.fate: Fate = all_pass
        #: Whether the server ignores If-None-Match, as some do.
        self.ignores_conditions = False
        #: Or answers such puts with 501, as others do.
        self.refuses_conditions = False
        self.counts: dict[str, int] = {}
        faulty = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do(self) -> None:
                faulty._handle(self)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do  # noqa: N815

            def log_message(self, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 64

            def handle_error(self, *args: Any) -> None:
                pass  # a client that has broken a connection, as it should

        self._server = Server(("127.0.0.1", port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def _handle(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        headers = dict(request.headers.items())
        fate = self.fate(request.command, unquote(request.path), headers)
        self.counts[fate] = self.counts.get(fate, 0) + 1
        is_conditional = any(name.lower() == "if-none-match" for name in headers)
        if is_conditional and self.refuses_conditions:
            self._answer(request, 501, b"<Error><Code>NotImplemented</Code></Error>")
            return
        if is_conditional and self.ignores_conditions:
            # The header is signed, and stays. Without the object it means nothing.
            self._behind.path(f"s3:/{unquote(request.path)}").unlink(missing_ok=True)
        if fate == REFUSED:
            self._answer(request, 503, b"<Error><Code>SlowDown</Code></Error>")
            return
        if fate == LOST_BEFORE:
            request.close_connection = True
            request.connection.close()
            return
        connection = http.client.HTTPConnection("127.0.0.1", self._behind.port, timeout=60)
        try:
            connection.request(request.command, request.path, body, headers)
            answer = connection.getresponse()
            data = answer.read()
        except OSError:
            fate = LOST_AFTER  # the server was killed
        finally:
            connection.close()
        if fate == LOST_AFTER:
            request.close_connection = True
            with contextlib.suppress(OSError):
                request.connection.close()
            return
        request.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                request.send_header(name, value)
        length = answer.getheader("Content-Length") if request.command == "HEAD" else str(len(data))
        request.send_header("Content-Length", length or "0")
        request.end_headers()
        request.wfile.write(data)

    def _answer(self, request: BaseHTTPRequestHandler, status: int, body: bytes) -> None:
        request.send_response(status)
        request.send_header("Content-Type", "application/xml")
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(body)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

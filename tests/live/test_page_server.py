"""The server of the page: who gets in, what a viewer is told, and what queries of a process share."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

import emberflow as ef
from emberflow.runners.live.driver.chronicle import Chronicle, History
from emberflow.runners.live.web import access, application
from emberflow.runners.live.web.access import Access
from emberflow.runners.live.web.server import Web, close_all
from emberflow.runners.live.web.shape import Shape
from emberflow.runners.live.web.state_reads import StateReads

PAGE_PATHS = ["/", "/assets/page.js", "/api/stream", "/api/queries/one/states", "/metrics"]


class Quiet:
    """The overview of a query in which nothing happens."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.asked = 0
        self.chronicle, self.history = Chronicle(), History()
        self.chronicle.note("begun", 1, "with no state")

    def summary(self) -> dict[str, Any]:
        self.asked += 1
        return {"id": self.id, "name": self.id, "active": True, "error": None, "recoveries": 0}

    def made(self) -> dict[str, Any]:
        empty: dict[str, Any] = {key: [] for key in ("workers", "fronts", "sinks")}
        return {**self.summary(), **empty, "steps": {}, "progress": {}, "cuts": None, "version": 1}

    def shape(self) -> Shape:
        flow = ef.Flow("quiet")
        flow.front("in").sink("out")
        return Shape(flow.graph())


def states_named(name: str) -> StateReads:
    info = SimpleNamespace(name=name, kind="state", has_default=False)
    reads: Any = SimpleNamespace(states={name: info})
    return reads


@pytest.fixture(autouse=True)
def _ends() -> Iterator[None]:
    yield
    close_all()


def started(id: str, **ports: Any) -> tuple[Web, Quiet]:
    web = Web("127.0.0.1", **{"http_port": None, "ui_port": 0, **ports})
    quiet = Quiet(id)
    overview: Any = quiet
    web.start(id, overview, states_named(f"state of {id}"))
    return web, quiet


class Browser:
    """A client that keeps its cookie."""

    def __init__(self, web: Web) -> None:
        url = urlsplit(web.endpoint.url)
        assert url.hostname is not None
        self.address = url.hostname, url.port
        self.cookie = ""

    def get(self, path: str, **headers: str) -> tuple[int, http.client.HTTPMessage, bytes]:
        with closing(http.client.HTTPConnection(*self.address, timeout=30)) as connection:
            given = {"Cookie": self.cookie, **headers}
            connection.request("GET", path, headers={k: v for k, v in given.items() if v})
            answer = connection.getresponse()
            body = b"" if answer.headers["Content-Type"] == "text/event-stream" else answer.read()
            return answer.status, answer.headers, body

    def enter(self, address: str | None) -> int:
        assert address is not None
        url = urlsplit(address)
        status, headers, _ = self.get(f"{url.path}?{url.query}")
        if "Set-Cookie" in headers:
            self.cookie = headers["Set-Cookie"].partition(";")[0]
        return status

    def messages(self, count: int, query: str = "") -> list[dict[str, Any]]:
        with closing(http.client.HTTPConnection(*self.address, timeout=30)) as connection:
            connection.request("GET", f"/api/stream?query={query}", headers={"Cookie": self.cookie})
            answer = connection.getresponse()
            assert answer.status == 200
            found = []
            while len(found) < count:
                line = answer.readline()
                assert line, "the stream ended"
                if line.startswith(b"data: "):
                    found.append(json.loads(line.removeprefix(b"data: ")))
            return found


def test_an_address_of_the_page_works_once() -> None:
    web, _ = started("one")
    browser, late = Browser(web), Browser(web)
    address = web.ui
    assert browser.enter(address) == 200
    assert browser.get("/")[0] == 200
    assert late.enter(address) == 401
    assert late.cookie == ""
    assert late.get("/")[0] == 401
    assert late.enter(web.ui) == 200, "each look at it gives another address"


def test_an_address_that_nobody_used_becomes_too_old() -> None:
    now = 0.0
    door: Access[None] = Access(clock=lambda: now)
    entrance, used = door.entrance(), door.entrance()
    assert door.session(used) is not None
    now = access.ENTRANCE_SECONDS + 1
    assert door.session(entrance) is None


def test_entrances_and_sessions_are_bounded() -> None:
    door: Access[None] = Access()
    first = door.session(door.entrance())
    assert first is not None
    assert door.has_session(first)
    for _ in range(1_000):
        door.entrance()
        assert door.session(door.entrance()) is not None
    assert not door.has_session(first)
    assert len(door._entrances) + len(door._sessions) < 200


def test_the_cookie_of_a_session_is_for_this_page_alone() -> None:
    web, _ = started("one")
    url = urlsplit(web.ui or "")
    _, headers, body = Browser(web).get(f"{url.path}?{url.query}")
    assert "httponly" in headers["Set-Cookie"].lower()
    assert "samesite=strict" in headers["Set-Cookie"].lower()
    assert f"emberflow-{url.port}=" in headers["Set-Cookie"], "cookies do not know ports"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert b'http-equiv="refresh"' in body


@pytest.mark.parametrize("path", PAGE_PATHS)
@pytest.mark.parametrize("cookie", ["", "wrong", "of another port"])
def test_without_a_session_nothing_is_told(path: str, cookie: str) -> None:
    web, quiet = started("one")
    browser = Browser(web)
    if cookie:
        own = f"emberflow-{browser.address[1] if cookie == 'wrong' else 1}"
        browser.cookie = f"{own}=cnVsZSBvZiB0aHVtYg"
    status, headers, body = browser.get(path)
    assert status == 401
    assert headers["Connection"] == "close"
    assert quiet.asked == 0
    assert b"one" not in body.replace(b"token", b"")


def test_a_session_is_no_token_and_a_token_no_session() -> None:
    web, _ = started("one")
    browser = Browser(web)
    assert browser.enter(web.ui) == 200
    assert browser.get("/metrics")[0] == 404
    assert browser.get("/states")[0] == 404
    program = Browser(web)
    assert program.get("/api/stream", **web.endpoint.headers)[0] == 404
    assert program.get("/metrics", **web.endpoint.headers)[0] == 200


def test_the_page_runs_no_script_but_its_own() -> None:
    web, _ = started("one")
    browser = Browser(web)
    browser.enter(web.ui)
    _, headers, body = browser.get("/")
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert re.findall(rb"<script[^>]*>", body) == [b'<script src="/assets/page.js" defer>']
    assert b"<style" not in body
    assert b" style=" not in body
    for name in re.findall(rb'(?:src|href)="(/assets/[^"]+)"', body):
        assert browser.get(name.decode())[0] == 200


def test_a_viewer_is_told_all_at_first_and_then_what_is_new() -> None:
    web, quiet = started("one")
    browser = Browser(web)
    browser.enter(web.ui)
    first, second = browser.messages(2)
    assert [query["id"] for query in first["queries"]] == ["one"]
    assert [step["name"] for step in first["shape"]["steps"]] == ["in", "out"]
    assert first["states"] == ["state of one"]
    assert [event["kind"] for event in first["events"]] == ["begun"]
    assert "shape" not in second
    assert second["events"] == []
    assert quiet.asked


def test_only_so_many_viewers_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "STREAMS_MAX", 0)
    web, _ = started("one")
    browser = Browser(web)
    browser.enter(web.ui)
    status, headers, _ = browser.get("/api/stream")
    assert (status, headers["Retry-After"]) == (503, "1")


def test_queries_of_a_process_share_the_page_and_not_their_states() -> None:
    (one, _), (other, _) = started("one"), started("other", http_port=0)
    assert one.endpoint.url == other.endpoint.url
    browser = Browser(one)
    browser.enter(one.ui)
    (message,) = browser.messages(1, "one")
    assert [query["id"] for query in message["queries"]] == ["one", "other"]
    assert message["query"] == "one"
    for web, id in ((one, "one"), (other, "other")):
        status, _, body = browser.get("/states", **web.endpoint.headers)
        assert status == 200
        assert json.loads(body)["states"][0]["name"] == f"state of {id}"
        assert browser.get(f"/api/queries/{id}/states")[0] == 200
    assert browser.get("/api/queries/none/states")[0] == 404


def test_a_query_that_is_over_stays_on_the_page_and_its_token_is_void() -> None:
    web, _ = started("one")
    browser = Browser(web)
    browser.enter(web.ui)
    web.close()
    web.close()
    (message,) = browser.messages(1)
    assert message["query"] == "one"
    assert Browser(web).get("/states", **web.endpoint.headers)[0] == 401


def test_two_queries_cannot_have_one_token() -> None:
    token = "b1946ac92492d2347c6235b4d2611184"
    started("one", token=token)
    with pytest.raises(ef.InputError, match="give each its own"):
        started("other", token=token)

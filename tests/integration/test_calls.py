"""Tool calls of a harness that uses nothing but the proxy: sessions within a session, with a real gate and clients."""

import contextlib
import http.client
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
import wsproto
from wsproto.events import AcceptConnection, CloseConnection
from wsproto.events import Request as Handshake

from tests.lab.certs import Authority
from tests.lab.client import RawReply, fetch, tunnel
from tests.lab.dns import addresses, dns_server
from tests.lab.gate import Gate, Session, configuration, gate, rule
from tests.lab.upstream import Upstream, hang, says, upstream

API, OTHER = "api.allowed.test", "other.allowed.test"
SECRET = "real-secret-of-the-test-0123456789abcdef"
HOSTILE = 'web\n{"v":1,"type":"http"}\r\n\x1b]0;owned\x07\u202e\\'
ESCAPED = 'web\\x0a{"v":1,"type":"http"}\\x0d\\x0a\\x1b]0;owned\\x07\\u202e\\\\'


def _credential(variable: str, host: str) -> dict[str, Any]:
    return {
        "source": {"env": "SECRET"},
        "for": [{"host": host}],
        "place": {"header": "Authorization", "format": "Bearer {secret}"},
        "placeholder": {"shape": "generic", "env": variable},
    }


class Stage:
    """A gate, and what its upstream was asked."""

    def __init__(self, running: Gate, server: Upstream) -> None:
        self.gate, self.server = running, server

    def call(self, tool: str, id: str, *, parent: Session | None = None, **more: Any) -> Session:
        named = {"tool": tool, "id": id, **({"parent": parent.id} if parent else {})}
        return self.gate.session(call=named, **more)

    def refused(self, **body: Any) -> tuple[int, str]:
        """Ask for a session that there is none for, and return why."""
        before = len(self.sessions())
        status, answer = self.gate.admin("POST", "/v1/sessions", body)
        assert len(self.sessions()) == before
        return status, answer["error"]["what"]

    def get(self, session: Session, *, host: str = API, path: str = "/", holds: str | None = None) -> RawReply:
        headers = [] if holds is None else [("Authorization", f"Bearer {holds}")]
        ca = self.gate.state / "ca.pem"
        return fetch(self.gate, host, self.server.port, path, token=session.token, ca=ca, headers=headers)

    def sessions(self, query: str = "") -> list[dict[str, Any]]:
        status, answer = self.gate.admin("GET", f"/v1/sessions{query}")
        assert status == 200
        return list(answer["sessions"])

    def harness(self, method: str, path: str, token: str, body: bytes = b"") -> tuple[int, Any]:
        """Ask session.sock as a harness does."""
        connection = http.client.HTTPConnection("x", timeout=10)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(str(self.gate.state / "session.sock"))
        with contextlib.closing(connection):
            connection.request(method, path, body or None, {"Authorization": f"Bearer {token}"})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with (
        Authority() as ca,
        dns_server({name: addresses("127.0.0.1") for name in (API, OTHER)}) as dns,
        upstream(ca=ca, names=(API, OTHER), routes={"/": says(b"hello"), "/hang": hang}) as server,
    ):
        config = configuration(
            allow=[
                rule(API, port=server.port, credential="api", websocket=True),
                rule(OTHER, port=server.port, credential="more"),
            ],
            credentials={"api": _credential("API_TOKEN", API), "more": _credential("MORE_TOKEN", OTHER)},
            dns=dns,
            ca=ca,
        )
        config["policies"]["wider"] = {"allow": [rule("*.wide.test"), rule(API, credential="api")]}
        frugal = {"allow": [rule(API, port=server.port)], "budgets": {"session": {"requests_per_minute": 3}}}
        config["policies"]["frugal"] = frugal
        with gate(config, env={"SECRET": SECRET}) as one:
            yield Stage(one, server)


def calls(lines: list[dict[str, Any]]) -> list[Any]:
    return [line["call"] for line in lines]


# --- what a call has -----------------------------------------------------------------------------


def test_a_call_reaches_what_its_session_may_with_a_placeholder_of_its_own(stage: Stage) -> None:
    parent = stage.gate.session(credentials=["api"], owner="team")
    call = stage.call("web_search", "call_1", parent=parent, policy=None, credentials=["api"])
    assert call.env["API_TOKEN"] != parent.env["API_TOKEN"]
    stage.server.reset()
    assert stage.get(call, holds=call.env["API_TOKEN"]).body == b"hello"
    assert stage.server.requests[-1].header("authorization") == f"Bearer {SECRET}"
    assert stage.get(parent, holds=parent.env["API_TOKEN"]).status == 200
    lines = stage.gate.wait_audit(
        lambda lines: any(line["type"] == "http" and line["phase"] == "end" for line in lines), session=call.id
    )
    assert {line["type"] for line in lines} >= {"session", "conn", "http", "credential"}
    assert calls(lines) == [{"tool": "web_search", "id": "call_1", "parent": parent.id}] * len(lines)
    assert {line["owner"] for line in lines} == {"team"}
    assert set(calls(stage.gate.audit(session=parent.id))) == {None}


def test_C_31_the_placeholder_of_one_call_is_refused_in_another(stage: Stage) -> None:
    parent = stage.gate.session(credentials=["api"])
    one, two = (stage.call("web", f"c{n}", parent=parent, credentials=["api"]) for n in range(2))
    stage.server.reset()
    for session, holds in ((two, one), (two, parent), (parent, one)):
        refused = stage.get(session, holds=holds.env["API_TOKEN"])
        assert (refused.status, refused.reason) == (403, "unknown_placeholder")
    assert stage.server.requests == []
    incidents = stage.gate.wait_audit(lambda lines: len(lines) >= 2, type="incident", session=two.id)
    assert calls(incidents) == [{"tool": "web", "id": "c1", "parent": parent.id}] * 2


def test_a_call_without_a_credential_has_none(stage: Stage) -> None:
    parent = stage.gate.session(credentials=["api", "more"])
    call = stage.call("web", "c1", parent=parent, credentials=["more"])
    assert "API_TOKEN" not in call.env
    refused = stage.get(call, holds=parent.env["API_TOKEN"])
    assert (refused.status, refused.reason) == (403, "unknown_placeholder")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        pytest.param({"credentials": ["api", "more"]}, "does not hold 'more'", id="a credential more"),
        pytest.param({"policy": "wider"}, "own policy, 'default'", id="a wider policy"),
        pytest.param({"from": "127.0.0.0/8"}, "no network of its own", id="a network"),
    ],
)
def test_a_call_that_asks_for_more_than_its_session_opens_nothing(
    stage: Stage, more: dict[str, Any], says: str
) -> None:
    parent = stage.gate.session(credentials=["api"])
    status, what = stage.refused(call={"tool": "web", "id": "c1", "parent": parent.id}, **more)
    assert (status, says in what) == (422, True), what


def test_calls_do_not_refill_the_budget_of_their_session(stage: Stage) -> None:
    one, other = stage.gate.session(policy="frugal"), stage.gate.session(policy="frugal")
    statuses = [stage.get(stage.call("web", f"c{n}", parent=one, policy="frugal")).status for n in range(6)]
    assert statuses == [200, 200, 200, 429, 429, 429]
    assert stage.get(one).reason == "budget"
    assert stage.get(other).status == 200


def test_a_web_socket_of_a_call_says_whose_it_was(stage: Stage) -> None:
    call = stage.call("chat", "c1", parent=stage.gate.session())
    authority = f"{API}:{stage.server.port}"
    ws = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
    with tunnel(stage.gate, API, stage.server.port, token=call.token, ca=stage.gate.state / "ca.pem") as raw:
        raw.send(ws.send(Handshake(host=authority, target="/ws")))
        ws.receive_data(raw.read())
        assert any(isinstance(event, AcceptConnection) for event in ws.events())
        raw.send(ws.send(CloseConnection(code=1000)))
        raw.read_all()
    (line,) = stage.gate.wait_audit(type="ws", session=call.id)
    assert (line["call"]["tool"], line["call"]["id"]) == ("chat", "c1")


# --- how it ends ---------------------------------------------------------------------------------


def test_a_session_that_ends_takes_its_calls_along_and_cuts_what_they_have_open(stage: Stage) -> None:
    parent = stage.gate.session()
    call = stage.call("web", "c1", parent=parent)
    inner = stage.call("shell", "c2", parent=call)
    with tunnel(stage.gate, API, stage.server.port, token=inner.token, ca=stage.gate.state / "ca.pem") as raw:
        raw.send(f"GET /hang HTTP/1.1\r\nHost: {API}:{stage.server.port}\r\n\r\n".encode())
        assert stage.server.wait(lambda server: any(one.path == "/hang" for one in server.requests))
        stage.gate.cli("session", "revoke", parent.id)
        raw.sock.settimeout(2)
        assert raw.read_all() == b""
    for session in (parent, call, inner):
        assert stage.get(session).reason == "session_invalid"
    (ended,) = stage.gate.wait_audit(type="conn", phase="end", session=inner.id)
    assert (ended["conn"]["end"], ended["call"]["id"]) == ("revoked", "c2")
    reasons = {line["session"]: line["reason"] for line in stage.gate.audit(type="session") if line["reason"]}
    assert [reasons[one.id] for one in (parent, call, inner)] == ["revoked", "parent_ended", "parent_ended"]
    status, what = stage.refused(policy="default", call={"tool": "web", "id": "c3", "parent": parent.id})
    assert (status, "no live session" in what) == (422, True)


def test_a_call_that_ends_leaves_its_session(stage: Stage) -> None:
    parent = stage.gate.session()
    call = stage.call("web", "c1", parent=parent)
    stage.gate.admin("DELETE", f"/v1/sessions/{call.id}")
    assert stage.get(call).reason == "session_invalid"
    assert stage.get(parent).status == 200


def test_a_call_ends_with_the_time_of_its_session(stage: Stage) -> None:
    parent = stage.gate.session(ttl_seconds=2)
    call = stage.call("web", "c1", parent=parent, ttl_seconds=3600)
    assert stage.get(call).status == 200
    stage.gate.wait_audit(lambda lines: any(line["reason"] == "expired" for line in lines), session=parent.id)
    assert stage.get(call).reason == "session_invalid"


def test_a_frozen_session_freezes_its_calls(stage: Stage) -> None:
    parent = stage.gate.session()
    call = stage.call("web", "c1", parent=parent)
    stage.gate.cli("session", "freeze", parent.id)
    assert stage.get(call).reason == "session_frozen"
    stage.gate.cli("session", "thaw", parent.id)
    assert stage.get(call).status == 200


# --- words of a model's --------------------------------------------------------------------------


def test_hostile_words_are_escaped_wherever_they_stand(stage: Stage) -> None:
    parent = stage.gate.session()
    call = stage.call(HOSTILE, HOSTILE, parent=parent)
    assert stage.get(call, host="evil.test").reason == "not_in_allowlist"
    named = {"tool": ESCAPED, "id": ESCAPED, "parent": parent.id}
    lines = stage.gate.wait_audit(lambda lines: any(line["verdict"] == "deny" for line in lines), session=call.id)
    assert calls(lines) == [named] * len(lines)
    for words in (
        ("session", "list", "--call", HOSTILE), ("session", "show", call.id), ("log", "--call", HOSTILE),
        ("log", "--session", parent.id), ("log", "--call", ESCAPED, "-o", "json"),
    ):  # fmt: skip
        shown = stage.gate.cli(*words).stdout
        assert "web\\x0a" in shown.replace("\\\\", "\\"), words
        assert all(letter.isprintable() or letter == "\n" for letter in shown), words
    json_lines = stage.gate.cli("log", "--call", HOSTILE, "-o", "json").stdout.splitlines()
    assert [json.loads(line)["session"] for line in json_lines] == [call.id] * len(json_lines)
    assert [one["call"] for one in stage.sessions("?call=nobody")] == []


@pytest.mark.parametrize(
    "call",
    [
        pytest.param({"tool": "x" * 10_000, "id": "c"}, id="10 KB"),
        pytest.param({"tool": "t", "id": "x" * 129}, id="an id too long"),
        pytest.param({"tool": "\ud800", "id": "c"}, id="half of a surrogate pair"),
        pytest.param({"tool": "t", "id": "a\udcffb"}, id="a byte that is no text"),
        pytest.param({"tool": "", "id": "c"}, id="nothing"),
        pytest.param({"tool": ["t"], "id": "c"}, id="a list"),
        pytest.param({"tool": "t", "id": "c", "call": {}}, id="a field too many"),
        pytest.param("t:c", id="a word"),
    ],
)
def test_words_that_are_none_open_nothing(stage: Stage, call: object) -> None:
    status, what = stage.refused(policy="default", call=call)
    assert (status, "cannot be used" in what) == (409, True), what
    assert len(what) < 300
    assert stage.gate.audit(type="fault") == []


# --- by the command line, and by a harness -------------------------------------------------------


def test_the_command_line_opens_lists_and_shows_calls(stage: Stage) -> None:
    parent = stage.gate.session(credentials=["api"])
    words = ("session", "new", "--parent", parent.id, "--call", "mcp:files/read:call_9", "--credential", "api")
    opened = json.loads(stage.gate.cli(*words, "-o", "json").stdout)
    listed = json.loads(stage.gate.cli("session", "list", "--call", "call_9", "-o", "json").stdout)
    assert [one["id"] for one in listed] == [opened["id"]]
    assert listed[0]["call"] == {"tool": "mcp:files/read", "id": "call_9", "parent": parent.id}
    assert "mcp:files/read:call_9" in stage.gate.cli("session", "show", opened["id"]).stdout
    refused = stage.gate.cli(*words[:-1], "more", check=False)
    assert (refused.returncode, "does not hold 'more'" in refused.stderr) == (1, True)


def test_a_harness_makes_calls_in_its_own_sessions_and_in_no_other(stage: Stage) -> None:
    words = ("harness", "new", "--policy", "default", "--max-sessions", "3", "--ttl-seconds", "60", "-o", "json")
    token, other = (json.loads(stage.gate.cli(*words).stdout)["token"] for _ in range(2))

    def open_as(who: str, body: dict[str, Any]) -> tuple[int, Any]:
        return stage.harness("POST", "/v1/sessions", who, json.dumps(body).encode())

    _, parent = open_as(token, {"policy": "default", "credentials": ["api"]})
    call = {"tool": HOSTILE, "id": "c1", "parent": parent["id"]}
    status, child = open_as(token, {"call": call, "credentials": ["api"]})
    assert status == 201
    session = Session(child["id"], child["token"], child["proxy_url"], child["env"])
    assert stage.get(session, holds=session.env["API_TOKEN"]).status == 200
    theirs = stage.harness("GET", "/v1/sessions?call=c1", token)[1]["sessions"]
    assert [(one["id"], one["call"]["tool"]) for one in theirs] == [(child["id"], ESCAPED)]
    assert open_as(other, {"call": call})[0] == 422
    assert open_as(token, {"call": call, "credentials": ["more"]})[0] == 422
    assert open_as(token, {"call": {"tool": "x" * 10_000, "id": "c"}, "policy": "default"})[0] == 409
    assert open_as(token, {"call": {"tool": "\ud800", "id": "c"}, "policy": "default"})[0] == 409
    assert open_as(token, {"call": {**call, "id": "c2"}})[0] == 201
    assert open_as(token, {"call": {**call, "id": "c3"}})[0] == 422  # its sessions are three, calls too

"""What an answer may carry: secrets taken out, framing told anew, redirects judged, upgrades kept to their rule."""

import base64
import gzip
from pathlib import Path

import pytest

from tests.unit.exchange.stage import (
    GET,
    SECRET,
    UPGRADE,
    credentialed,
    forwarded,
    head,
    judged,
    relayed,
    reply,
    stage,
    tunnel,
)
from tidegate.exchange.effects import Relay
from tidegate.exchange.reply import Denial
from tidegate.policy.reasons import Reason

# -- answers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        pytest.param(b"a " + SECRET + b" z", [], id="plain"),
        pytest.param(b"a " + base64.b64encode(SECRET) + b" z", [], id="base64"),
        pytest.param(gzip.compress(b"a " + SECRET + b" z"), ["Content-Encoding: gzip"], id="gzip"),
    ],
)
@pytest.mark.parametrize("cut", [1, 7, 10_000])
async def test_C_a_secret_that_comes_back_is_taken_out(
    tmp_path: Path, body: bytes, fields: list[str], cut: int
) -> None:
    made = stage(tmp_path)
    exchange = await credentialed(made)
    answer = relayed(exchange, "HTTP/1.1 200 OK", f"Content-Length: {len(body)}", *fields)
    assert answer.gather or answer.length is None
    pieces = [exchange.download(body[at : at + cut]) for at in range(0, len(body), cut)]
    out = b"".join(piece for piece in [*pieces, exchange.download_end()] if isinstance(piece, bytes))
    assert SECRET not in out
    assert base64.b64encode(SECRET) not in out
    assert out.startswith(b"a ")
    assert out.endswith(b" z")
    exchange.finish()
    assert made.records("http")[-1]["reason"] == "reflected_secret"
    assert made.records("http")[-1]["verdict"] == "redact"
    assert [line["reason"] for line in made.records("incident")] == ["reflected_secret"]


async def test_C_every_live_secret_is_searched_for_also_where_none_was_used(tmp_path: Path) -> None:
    made = stage(tmp_path)
    exchange = await judged(await tunnel(made, "files.test"), head(GET, "Host: files.test"))
    relayed(exchange, "HTTP/1.1 200 OK", f"Content-Length: {len(SECRET)}")
    out = exchange.download(SECRET)
    assert isinstance(out, bytes)
    assert SECRET not in out + (exchange.download_end() or b"")  # type: ignore[operator]


async def test_C_a_secret_in_a_header_is_taken_out(tmp_path: Path) -> None:
    exchange = await credentialed(stage(tmp_path))
    answer = relayed(exchange, "HTTP/1.1 200 OK", f"X-Echo: {SECRET.decode()}", "Content-Length: 0")
    assert SECRET not in b"".join(value for _, value in answer.headers)


@pytest.mark.parametrize("coding", ["x-unknown", "gzip, x-unknown", "compress"])
async def test_C_an_answer_that_cannot_be_searched_is_refused(tmp_path: Path, coding: str) -> None:
    exchange = await credentialed(stage(tmp_path))
    exchange.on_response(reply("HTTP/1.1 200 OK", "Content-Length: 5", f"Content-Encoding: {coding}"))
    exchange.judge_response()
    assert isinstance(exchange.response_effect, Denial)
    assert exchange.response_effect.reason is Reason.UNSCANNABLE_RESPONSE


async def test_C_a_coding_that_lies_is_refused(tmp_path: Path) -> None:
    exchange = await credentialed(stage(tmp_path))
    relayed(exchange, "HTTP/1.1 200 OK", "Content-Length: 20", "Content-Encoding: gzip")
    found = exchange.download(b"this is not gzip ...")
    assert Reason.UNSCANNABLE_RESPONSE in (found, exchange.download_end())


@pytest.mark.parametrize(
    ("line", "fields", "length", "has_body", "gather"),
    [
        pytest.param("HTTP/1.1 200 OK", ["Content-Length: 10"], 10, True, True, id="short"),
        pytest.param("HTTP/1.1 200 OK", ["Transfer-Encoding: chunked"], None, True, False, id="chunked"),
        pytest.param("HTTP/1.1 200 OK", [], None, True, False, id="to-the-end"),
        pytest.param("HTTP/1.1 200 OK", ["Content-Length: 0"], 0, False, False, id="empty"),
        pytest.param("HTTP/1.1 204 No Content", [], None, False, False, id="204"),
        pytest.param("HTTP/1.1 304 Not Modified", ["ETag: x"], None, False, False, id="304"),
    ],
)
async def test_framing_is_told_anew(
    tmp_path: Path, line: str, fields: list[str], length: int | None, has_body: bool, gather: bool
) -> None:
    answer = relayed(await credentialed(stage(tmp_path)), line, *fields)
    assert (answer.length, answer.has_body, answer.gather) == (length, has_body, gather)
    assert not any(name.lower() in (b"transfer-encoding", b"connection") for name, _ in answer.headers)


async def test_a_head_request_keeps_the_length_that_was_told(tmp_path: Path) -> None:
    answer = relayed(await credentialed(stage(tmp_path), "HEAD / HTTP/1.1"), "HTTP/1.1 200 OK", "Content-Length: 10")
    assert (b"Content-Length", b"10") in answer.headers
    assert not answer.has_body


@pytest.mark.parametrize(
    ("line", "field", "outcome"),
    [
        pytest.param("HTTP/1.1 302 Found", "Location: https://evil.test/", "denied", id="R-01"),
        pytest.param("HTTP/1.1 302 Found", "Location: https://files.test/", "kept", id="allowed"),
        pytest.param("HTTP/1.1 201 Created", "Location: https://evil.test/", "removed", id="R-created"),
        pytest.param("HTTP/1.1 200 OK", "Refresh: 0;url=https://evil.test/", "removed", id="R-refresh"),
        pytest.param("HTTP/1.1 200 OK", "Content-Location: https://evil.test/", "removed", id="R-content-location"),
        pytest.param("HTTP/1.1 304 Not Modified", "Location: https://evil.test/", "removed", id="R-304"),
    ],
)
async def test_R_a_redirect_is_judged_before_the_client_sees_it(
    tmp_path: Path, line: str, field: str, outcome: str
) -> None:
    made = stage(tmp_path)
    exchange = await credentialed(made)
    exchange.on_response(reply(line, field, "Content-Length: 0"))
    exchange.judge_response()
    effect = exchange.response_effect
    exchange.finish()
    if outcome == "denied":
        assert isinstance(effect, Denial)
        assert effect.reason is Reason.REDIRECT_DENIED
        assert b"evil" not in effect.body
        end = made.records("http")[-1]
        assert end["reason"] == "redirect_denied"
        assert "evil.test" in str(end["http"]["location"])  # type: ignore[index]
        return
    assert isinstance(effect, Relay)
    name = field.partition(":")[0].encode()
    assert any(key == name for key, _ in effect.headers) is (outcome == "kept")
    marks = [line["reason"] for line in made.records("http") if line["phase"] == "event"]
    assert marks == (["redirect_removed"] if outcome == "removed" else [])


async def test_R_a_secret_in_a_denied_location_is_not_on_record(tmp_path: Path) -> None:
    made = stage(tmp_path)
    exchange = await credentialed(made)
    exchange.on_response(reply("HTTP/1.1 302 Found", f"Location: https://evil.test/{SECRET.decode()}"))
    exchange.judge_response()
    exchange.finish()
    assert SECRET not in b"".join(path.read_bytes() for path in made.log.rglob("*.jsonl"))


@pytest.mark.parametrize(
    ("told", "got", "reason"),
    [
        pytest.param(5, [b"hello"], None, id="whole"),
        pytest.param(5, [b"hel"], Reason.BAD_UPSTREAM, id="shorter"),
        pytest.param(5, [b"hello", b"!"], Reason.BAD_UPSTREAM, id="longer"),
    ],
)
async def test_an_answer_is_as_long_as_it_says(
    tmp_path: Path, told: int, got: list[bytes], reason: Reason | None
) -> None:
    exchange = await judged(await tunnel(stage(tmp_path), "files.test"), head(GET, "Host: files.test"))
    relayed(exchange, "HTTP/1.1 200 OK", f"Content-Length: {told}")
    last = [exchange.download(piece) for piece in got][-1]
    ended = exchange.download_end() if isinstance(last, bytes) else last
    assert (ended if isinstance(ended, Reason) else None) is reason


# -- WebSocket ------------------------------------------------------------------------------------


async def test_P_20_an_upgrade_passes_where_the_rule_says_so(tmp_path: Path) -> None:
    made = stage(tmp_path)
    exchange = await judged(await tunnel(made, "chat.test"), head(GET, "Host: chat.test", *UPGRADE))
    headers = dict(forwarded(exchange).headers)
    assert headers[b"Upgrade"] == b"websocket"
    assert b"Sec-WebSocket-Extensions" not in headers
    answer = relayed(exchange, "HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade")
    assert answer.upgrade
    assert exchange.download(b"\x81\x05frame") == b"\x81\x05frame"
    assert exchange.download(b"\x01\x0ax" + SECRET[:9]) == b"\x01\x0ax"
    assert exchange.download(b"\x80\x18" + SECRET[9:]) is Reason.REFLECTED_SECRET


@pytest.mark.parametrize(
    ("host", "fields", "answer"),
    [
        pytest.param("files.test", UPGRADE, "Upgrade: websocket", id="no-rule"),
        pytest.param("chat.test", (), "Upgrade: websocket", id="not-asked-for"),
        pytest.param("chat.test", UPGRADE, "Upgrade: h2c", id="another-protocol"),
        pytest.param("chat.test", UPGRADE, "X: 1", id="no-protocol"),
    ],
)
async def test_P_19_no_other_protocol_begins(tmp_path: Path, host: str, fields: tuple[str, ...], answer: str) -> None:
    exchange = await judged(await tunnel(stage(tmp_path), host), head(GET, f"Host: {host}", *fields))
    exchange.on_response(reply("HTTP/1.1 101 Switching Protocols", answer))
    exchange.judge_response()
    assert isinstance(exchange.response_effect, Denial)
    assert exchange.response_effect.reason is Reason.BAD_UPSTREAM

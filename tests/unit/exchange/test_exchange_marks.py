"""What a record says beside the verdict: why an observed request would have been denied, whose secret came back."""

from pathlib import Path

import pytest

from tests.unit.exchange.stage import (
    CREDENTIAL,
    PLACEHOLDER,
    SECRET,
    FakeKeeper,
    grant,
    head,
    judged,
    reply,
    stage,
    tunnel,
)
from tidegate.exchange.effects import Relay
from tidegate.keeper.protocol import Holding, LiveSecret
from tidegate.policy.reasons import Reason
from tidegate.secret import Secret

OTHER_SECRET = b"AnotherSecretThatEnded/9876543210"
OTHER_PLACEHOLDER = "tg_71de9a7e" + "B" * 22
TWO = grant(
    holdings=(Holding("key", PLACEHOLDER),),
    secrets=(
        LiveSecret("lease-0", "key", Secret(SECRET), PLACEHOLDER),
        LiveSecret("lease-9", "old", Secret(OTHER_SECRET), OTHER_PLACEHOLDER, ended=True),
    ),
)


async def test_the_end_of_an_observed_request_has_the_reason_too(tmp_path: Path) -> None:
    made = stage(tmp_path, policy={"observe_until": 1e12})
    exchange = await judged(await tunnel(made, "other.test"), head("GET / HTTP/1.1", "Host: other.test"))
    exchange.on_response(reply("HTTP/1.1 200 OK", "Content-Length: 0"))
    exchange.judge_response()
    exchange.finish()
    told = [(line["phase"], line["verdict"], line["reason"], line["observed"]) for line in made.records("http")]
    assert told == [("decision", "allow", "not_in_allowlist", True), ("end", "allow", "not_in_allowlist", True)]


async def test_an_observed_request_that_breaks_is_not_told_as_observed(tmp_path: Path) -> None:
    made = stage(tmp_path, policy={"observe_until": 1e12})
    exchange = await judged(await tunnel(made, "other.test"), head("GET / HTTP/1.1", "Host: other.test"))
    exchange.stop(Reason.UPSTREAM_TIMEOUT)
    exchange.finish()
    end = made.records("http")[-1]
    assert (end["phase"], end["verdict"], end["reason"]) == ("end", "error", "upstream_timeout")
    assert not end.get("observed")


@pytest.mark.parametrize(
    ("fields", "body", "hits"),
    [
        pytest.param((), SECRET + b" " + SECRET, {"key": 2}, id="one"),
        pytest.param((), OTHER_SECRET, {"old": 1}, id="one-that-ended"),
        pytest.param((), SECRET + OTHER_SECRET, {"key": 1, "old": 1}, id="two"),
        pytest.param((f"X-Echo: {SECRET.decode()}",), OTHER_SECRET, {"key": 1, "old": 1}, id="header-and-body"),
        pytest.param((f"Content-Location: https://evil.test/{SECRET.decode()}",), b"x", {"key": 1}, id="dropped-field"),
    ],
)
async def test_C_a_reflected_secret_is_told_by_its_credential(
    tmp_path: Path, fields: tuple[str, ...], body: bytes, hits: dict[str, int]
) -> None:
    made = stage(tmp_path, keeper=FakeKeeper(opens=TWO))
    exchange = await judged(await tunnel(made, "files.test"), head("GET / HTTP/1.1", "Host: files.test"))
    exchange.on_response(reply("HTTP/1.1 200 OK", f"Content-Length: {len(body)}", *fields))
    exchange.judge_response()
    assert isinstance(exchange.response_effect, Relay)
    out = exchange.download(body)
    rest = exchange.download_end()
    assert isinstance(out, bytes)
    assert isinstance(rest, bytes)
    exchange.finish()
    marks = {line["credential"]["name"]: line["credential"]["hits"] for line in made.records("credential")}  # type: ignore[index]
    assert marks == hits
    incidents = [line["incident"]["credential"] for line in made.records("incident")]  # type: ignore[index]
    assert sorted(incidents) == sorted(hits)
    assert made.records("http")[-1]["reason"] == "reflected_secret"


@pytest.mark.parametrize(
    ("body", "reason", "credential"),
    [
        pytest.param(PLACEHOLDER.encode(), "credential_out_of_scope", "key", id="ours"),
        pytest.param(PLACEHOLDER.encode().hex().encode(), "encoded_placeholder", "key", id="encoded"),
        pytest.param(OTHER_PLACEHOLDER.encode(), "unknown_placeholder", None, id="unknown"),
    ],
)
async def test_C_a_strict_refusal_in_a_body_names_the_credential(
    tmp_path: Path, body: bytes, reason: str, credential: str | None
) -> None:
    made = stage(tmp_path, policy={"placeholders": "strict"})
    request = head("PUT /x HTTP/1.1", "Host: files.test", f"Content-Length: {len(body)}")
    exchange = await judged(await tunnel(made, "files.test"), request)
    refusal = exchange.upload(body)
    assert refusal is Reason(reason)  # type: ignore[call-arg]
    exchange.stop(refusal)
    exchange.finish()
    (incident,) = made.records("incident")
    assert (incident["reason"], incident["incident"]["credential"]) == (reason, credential)  # type: ignore[index]
    refused = [line for line in made.records("credential") if line["verdict"] == "deny"]
    assert [line["credential"]["name"] for line in refused] == ([credential] if credential else [])  # type: ignore[index]
    assert CREDENTIAL.name == "key"

"""What the gate itself says: fixed, public, and nothing of anyone's."""

import json

import pytest

from tidegate.exchange.reply import denial, phrase
from tidegate.policy.reasons import Reason

SPOKEN = [reason for reason in Reason if reason.status is not None]


@pytest.mark.parametrize("reason", SPOKEN, ids=lambda reason: reason.code)
def test_every_reason_has_one_fixed_document(reason: Reason) -> None:
    reply = denial(reason, flow="f1", host="a.test")
    body = json.loads(reply.body)
    headers = dict(reply.headers)
    assert reply.status == reason.status == body["status"]
    assert body["reason"] == reason.public_code
    assert body["detail"] == reason.text
    assert body["request_id"] == "f1"
    assert body["host"] == "a.test"
    assert set(body) == {"type", "title", "status", "detail", "reason", "request_id", "docs", "host"}
    assert headers[b"Content-Type"] == b"application/problem+json"
    assert int(headers[b"Content-Length"]) == len(reply.body)
    assert headers[b"Cache-Control"] == b"no-store"
    assert headers[b"Proxy-Status"].startswith(b"tidegate; error=" + reason.proxy_status.encode())
    assert (b"Proxy-Authenticate" in headers) is (reason is Reason.SESSION_REQUIRED)


def test_C_33_address_and_dns_outcomes_look_the_same() -> None:
    hidden = (Reason.RESOLVED_METADATA, Reason.RESOLVED_BLOCKED, Reason.DNS_FAILURE)
    told = {denial(reason, flow="f", host="a.test") for reason in hidden}
    assert len({(reply.status, reply.headers, reply.body) for reply in told}) == 1
    body = json.loads(denial(Reason.DNS_FAILURE, flow="f").body)
    assert body["reason"] == "destination_unavailable"
    assert "host" not in body


def test_every_status_that_is_spoken_has_a_phrase() -> None:
    assert all(phrase(reason.status or 0) != b"Error" for reason in SPOKEN)
    assert phrase(299) == b"Error"


def test_a_reason_without_a_status_is_never_spoken_as_one() -> None:
    assert denial(Reason.NOT_HTTP, flow="f").status == 403

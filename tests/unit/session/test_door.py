"""A launcher's messages: one of two, typed, bounded; anything else is said to be none."""

import msgspec
import pytest

from tidegate.errors import LaunchError
from tidegate.session.door import DoorSpec, LaunchNote, Opened, Opening, Request, decode_request
from tidegate.session.identity import SessionId


def packed(**fields: object) -> bytes:
    return msgspec.msgpack.encode(fields)


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(Request(open=Opening(policy="p", doors=(DoorSpec("dns"), DoorSpec("tls", 443)))), id="open"),
        pytest.param(Request(launch=LaunchNote(id="box", act="end", untrusted_exit_code=137)), id="launch"),
    ],
)
def test_what_is_sent_is_what_is_read(request_: Request) -> None:
    assert decode_request(msgspec.msgpack.encode(request_)) == request_


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\xc1", id="no_msgpack"),
        pytest.param(packed(), id="neither"),
        pytest.param(packed(open={"policy": "p"}, launch={"id": "x", "act": "end"}), id="both"),
        pytest.param(packed(open={"policy": ""}), id="no_policy"),
        pytest.param(packed(open={"policy": "p", "source": "10.0.0.0/8"}), id="unknown_field"),
        pytest.param(packed(open={"policy": "p", "doors": [{"way": "socks"}]}), id="unknown_way"),
        pytest.param(packed(open={"policy": "p", "doors": [{"way": "http", "port": 65536}]}), id="no_port"),
        pytest.param(packed(open={"policy": "p", "doors": [{"way": "http"}] * 17}), id="too_many_doors"),
        pytest.param(packed(open={"policy": "p", "credentials": ["c"] * 65}), id="too_many_credentials"),
        pytest.param(packed(launch={"id": "x" * 65, "act": "end"}), id="long_id"),
        pytest.param(packed(launch={"id": "x", "act": "explode"}), id="unknown_act"),
        pytest.param(packed(launch={"id": "x", "act": "end", "argv": "a" * 4097}), id="long_argv"),
        pytest.param(packed(launch={"id": "x", "act": "end", "untrusted_exit_code": 2**40}), id="no_exit_code"),
        pytest.param(packed(launch={"id": "x", "act": "end", "seconds": float("nan")}), id="no_time"),
        pytest.param(packed(launch={"id": "x", "act": "end", "limits": {"cpus": float("inf")}}), id="no_amount"),
        pytest.param(packed(launch={"id": "x", "act": "end", "limits": {str(n): 1.0 for n in range(33)}}), id="limits"),
    ],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(LaunchError):
        decode_request(data)


def test_invariant_5_the_token_is_in_no_repr() -> None:
    assert "secret" not in repr(Opened(id=SessionId("s"), token="secret", env={}))

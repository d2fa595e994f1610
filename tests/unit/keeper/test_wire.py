import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.keeper.protocol import Lease, LeaseGrant, Reply, WorkerCall
from tidegate.keeper.wire import decode_reply, decode_result, decode_worker_call, encode, raw
from tidegate.secret import Secret
from tidegate.session.identity import SessionId

SECRET = Secret(b"real-secret-0123456789")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def test_a_secret_crosses_the_link_and_no_other_encoder() -> None:
    grant = LeaseGrant("l", "c", SECRET, 1.0)
    reply = decode_reply(encode(Reply(1, ok=raw(grant))))
    assert decode_result(reply.ok, LeaseGrant) == grant
    with pytest.raises(TypeError):
        msgspec.json.encode(grant)
    with pytest.raises(TypeError):
        json.dumps({"secret": SECRET})


@given(st.binary(max_size=200) | VALUES.map(msgspec.msgpack.encode))
def test_bytes_are_a_call_or_one_kind_of_error(body: bytes) -> None:
    """Invariant: whatever a worker sends is a call that we know, or a `MsgspecError`, for which its link is cut."""
    try:
        call = decode_worker_call(body)
    except msgspec.MsgspecError:
        return
    assert isinstance(call, WorkerCall)


@given(VALUES, st.sampled_from(["session", "credential", "extra"]))
def test_a_field_of_another_type_or_name_is_no_call(value: object, field: str) -> None:
    body = {"id": 1, "ask": {"method": "lease", "session": "s", "credential": "c", field: value}}
    try:
        call = decode_worker_call(msgspec.msgpack.encode(body))
    except msgspec.MsgspecError:
        return
    assert field != "extra"
    assert isinstance(value, str)
    assert call.ask in (Lease(SessionId(value), "c"), Lease(SessionId("s"), value))

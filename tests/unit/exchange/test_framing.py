"""Framing is paid for: a flood of what carries nothing ends at its first read, honest traffic never runs short."""

import struct

import h11
import pytest

from tidegate.exchange.framing import CLIENT, UPSTREAM, Frames, Framing
from tidegate.runtime.http1_body import Body

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("tidegate.exchange.framing.time.monotonic", lambda: now[0])
    return now


def frame(kind: int, payload: bytes = b"", *, flags: int = 0, stream: int = 0) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


FLOODS = [
    pytest.param(frame(0, stream=1), id="empty-data"),
    pytest.param(frame(0, b"x", stream=1), id="data-of-one-byte"),
    pytest.param(frame(1, b"\x82", flags=5, stream=1), id="heads-on-one-stream"),
    pytest.param(frame(2, b"\0\0\0\0\1", stream=9), id="priority"),
    pytest.param(frame(4), id="empty-settings"),
    pytest.param(frame(4, b"\0\x03\0\0\0\x64" * 100), id="long-settings"),
    pytest.param(frame(6, b"12345678", flags=1), id="ping-ack"),
    pytest.param(frame(8, b"\0\0\0\1"), id="window-update"),
    pytest.param(frame(9), id="continuation"),
    pytest.param(frame(0xEE), id="unknown"),
]


@pytest.mark.parametrize("step", [1, 7, 65535], ids=lambda step: f"by-{step}")
@pytest.mark.parametrize("one", FLOODS)
def test_V_06_a_flood_of_frames_runs_out_however_it_is_cut(one: bytes, step: int) -> None:
    frames = Frames(CLIENT, skip=len(PREFACE))
    data = PREFACE + one * (CLIENT[0] + 30)
    assert not all([frames.received(data[at : at + step]) for at in range(0, len(data), step)])


@pytest.mark.parametrize("one", FLOODS)
def test_V_06_units_come_back_with_time(one: bytes, clock: list[float]) -> None:
    frames = Frames(CLIENT)
    few = one * (2 if len(one) > 100 else 100)
    for _ in range(20):
        assert frames.received(few)
        clock[0] += 1.0


def test_an_upload_a_download_and_requests_pay_for_their_frames() -> None:
    frames = Frames(CLIENT, skip=len(PREFACE))
    assert frames.received(PREFACE)
    for _ in range(5000):
        assert frames.received(frame(0, b"x" * 16384, stream=1))
    for _ in range(5000):
        frames.sent(4096)
        assert frames.received(frame(8, b"\0\0\x10\0") + frame(8, b"\0\0\x10\0", stream=1))
    for stream in range(3, 10_003, 2):
        get = frame(1, b"\x82" * 30, flags=5, stream=stream)
        assert frames.received(get + frame(8, b"\0\0\x10\0") * 4 + frame(3, b"\0\0\0\x08", stream=1))


def chunks(count: int, size: int) -> bytearray:
    return bytearray((b"%x\r\n" % size + b"a" * size + b"\r\n") * count)


@pytest.mark.parametrize("bounds", [CLIENT, UPSTREAM], ids=["client", "upstream"])
def test_V_06_chunks_of_one_byte_run_out_over_all_bodies_of_a_connection(bounds: tuple[int, int]) -> None:
    left = Framing(bounds)
    for _ in range(2):
        assert Body(None, left).take(chunks(bounds[0] // 2, 1))
    with pytest.raises(h11.ProtocolError, match="too much framing"):
        Body(None, left).take(chunks(100, 1))


def test_chunks_of_some_size_never_run_out() -> None:
    body = Body(None, Framing(CLIENT))
    for _ in range(100):
        assert len(body.take(chunks(100, 256))) == 100

"""WebSocket messages are searched whole, and everything else goes on as it came."""

import struct
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.credentials.scrub import Needles, Unscannable
from tidegate.exchange.frames import FrameScrubber
from tidegate.secret import Secret

SECRET = b"sk-Live-3xR7vQ2mZ9pL5tY8wK1nB4cD6fG0hJ"
NEEDLES = Needles.compile([(Secret(SECRET), b"<placeholder>")])
TEXT, BINARY, CONTINUED, CLOSE, PING = 1, 2, 0, 8, 9


def frame(payload: bytes, kind: int = TEXT, *, final: bool = True, first: int = 0) -> bytes:
    size = len(payload)
    if size > 0xFFFF:
        length = struct.pack("!BQ", 127, size)
    else:
        length = bytes([size]) if size < 126 else struct.pack("!BH", 126, size)
    return bytes([first | kind | (0x80 if final else 0)]) + length + payload


def message(*payloads: bytes, between: bytes = b"") -> bytes:
    """One message in as many frames, with something between each two."""
    kinds = [TEXT] + [CONTINUED] * (len(payloads) - 1)
    last = len(payloads) - 1
    return between.join(
        frame(part, kind, final=at == last) for at, (part, kind) in enumerate(zip(payloads, kinds, strict=True))
    )


def run(wire: bytes, size: int) -> tuple[bytes, int]:
    scrubber = FrameScrubber(NEEDLES)
    out = b"".join(scrubber.feed(wire[at : at + size]) for at in range(0, len(wire), size)) + scrubber.finish()
    return out, scrubber.hits


HIDDEN = {
    "one-frame": message(b"here: " + SECRET),
    "two-frames": message(SECRET[:20], SECRET[20:]),
    "a-frame-a-byte": message(*[SECRET[at : at + 1] for at in range(len(SECRET))]),
    "ping-between": message(SECRET[:9], SECRET[9:], between=frame(b"hello", PING)),
    "empty-frames-between": message(SECRET[:9], b"", b"", SECRET[9:]),
    "long-frame": message(b"x" * 70000 + SECRET),
    "in-hex": message(SECRET.hex().encode()[:31], SECRET.hex().encode()[31:]),
    "in-a-ping": frame(SECRET, PING),
    "in-a-close": frame(b"\x03\xe8" + SECRET, CLOSE),
    "in-a-second-message": message(b"a") + message(SECRET[:3], SECRET[3:]),
}


@pytest.mark.parametrize("size", [1, 2, 7, 1 << 20])
@pytest.mark.parametrize("name", HIDDEN)
def test_C_26_a_secret_in_a_message_is_found_however_it_is_cut(name: str, size: int) -> None:
    out, hits = run(HIDDEN[name], size)
    assert hits == 1
    assert len(out) == len(HIDDEN[name])


@pytest.mark.parametrize("name", ["two-frames", "ping-between", "empty-frames-between"])
def test_C_26_nothing_of_it_has_gone_on_before(name: str) -> None:
    scrubber, wire = FrameScrubber(NEEDLES), HIDDEN[name]
    gone = b""
    for at in range(len(wire)):
        out = scrubber.feed(wire[at : at + 1])
        if scrubber.hits:
            break
        gone += out
    assert scrubber.hits == 1
    assert SECRET[:4] not in gone


@given(
    st.lists(
        st.one_of(
            st.lists(st.binary(max_size=200), min_size=1, max_size=4).map(lambda parts: message(*parts)),
            st.binary(max_size=125).map(lambda text: frame(text, PING)),
            st.integers(1, 30).map(lambda count: message(SECRET[:count], b"! and more")),
        ),
        max_size=6,
    ),
    st.integers(1, 300),
)
def test_what_holds_no_secret_goes_on_byte_for_byte(frames: list[bytes], size: int) -> None:
    wire = b"".join(frames)
    assert run(wire, size) == (wire, 0)


@pytest.mark.parametrize("end", [SECRET[:1], SECRET[:20], b"ing"])
def test_B_a_whole_message_leaves_at_once_whatever_it_ends_with(end: bytes) -> None:
    wire = message(b"some text " + end)
    assert FrameScrubber(NEEDLES).feed(wire) == wire


@pytest.mark.parametrize(
    "wire",
    [
        pytest.param(b"\x81\x85abcdhello", id="masked"),
        pytest.param(frame(b"x", first=0x40), id="compressed"),
        pytest.param(frame(b"x", 3), id="unknown-kind"),
        pytest.param(frame(b"x", CONTINUED), id="continues-nothing"),
        pytest.param(frame(b"x", final=False) + frame(b"x"), id="begins-inside-another"),
        pytest.param(frame(b"x", PING, final=False), id="control-in-pieces"),
        pytest.param(frame(b"x" * 126, PING), id="control-too-long"),
    ],
)
def test_C_26_a_frame_that_cannot_be_searched_is_refused(wire: bytes) -> None:
    with pytest.raises(Unscannable):
        FrameScrubber(NEEDLES).feed(wire)


def test_V_05_what_waits_is_bounded() -> None:
    scrubber = FrameScrubber(NEEDLES)
    scrubber.feed(frame(SECRET[:9], final=False))
    with pytest.raises(Unscannable, match="stands between"):
        scrubber.feed(frame(b"x" * 125, PING) * 1100)


@pytest.mark.parametrize("kind", [CONTINUED, PING], ids=["data", "control"])
def test_V_18_a_flood_of_empty_frames_is_refused_early(kind: int) -> None:
    scrubber = FrameScrubber(NEEDLES)
    scrubber.feed(frame(b"", final=False))
    begin = time.process_time()
    with pytest.raises(Unscannable, match="too many frames"):
        scrubber.feed(frame(b"", kind, final=kind == PING) * (1 << 16))
    assert time.process_time() - begin < 1.0


@pytest.mark.parametrize("cut", [4, 604], ids=["header-apart", "whole"])
def test_B_any_number_of_frames_with_a_payload_goes_on(cut: int) -> None:
    scrubber, wire = FrameScrubber(NEEDLES), frame(b"x" * 600)
    for _ in range(20_000):
        assert scrubber.feed(wire[:cut]) + scrubber.feed(wire[cut:]) == wire


def test_a_secret_that_comes_while_the_stream_is_open_is_searched_for() -> None:
    scrubber = FrameScrubber(Needles.compile([]))
    assert scrubber.feed(message(SECRET)) == message(SECRET)
    scrubber.renew(NEEDLES)
    scrubber.feed(message(SECRET[:5], SECRET[5:]))
    assert scrubber.hits == 1

"""Frames: whole, in order, and never longer than the link takes."""

import asyncio

import pytest

from tidegate.frame import FrameTooLong, framed, read_body


def _reader(data: bytes) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    return reader


async def test_bodies_come_out_as_they_went_in() -> None:
    reader = _reader(framed(b"") + framed(b"\0one") + framed(b"x" * 70_000))
    assert [await read_body(reader, 70_000) for _ in range(3)] == [b"", b"\0one", b"x" * 70_000]


async def test_a_length_over_the_limit_is_refused_before_its_body_is_read() -> None:
    with pytest.raises(FrameTooLong, match="over the limit of 10"):
        await read_body(_reader((11).to_bytes(4, "big")), 10)
    assert issubclass(FrameTooLong, OSError)  # every link takes it for the end


async def test_a_cut_frame_is_the_end() -> None:
    with pytest.raises(asyncio.IncompleteReadError):
        await read_body(_reader(framed(b"one")[:-1]), 10)

"""Invariant: whatever the text and however it is cut, no whole secret comes out, and nothing else changes."""

import base64
import re
import zlib

from hypothesis import example, given
from hypothesis import strategies as st

from tidegate.credentials.placeholder import new_placeholder
from tidegate.credentials.scrub import Needles, Scrubber, Unscannable
from tidegate.credentials.sighting import sightings
from tidegate.secret import Secret

SECRETS = (b"ghp_R3alS3cretR3alS3cret", b"ghp_R3alS3cretR3alS3cretLonger", b"S3cretLonger/+=&<>\"'%00 x")
PLACEHOLDERS = (b"<first>", b"<second>", b"<third>")
NEEDLES = Needles.compile([(Secret(s), p) for s, p in zip(SECRETS, PLACEHOLDERS, strict=True)])

_near = st.sampled_from([s[:cut] for s in SECRETS for cut in (1, 2, 5, 12, len(s) - 1)])
_encoded = st.sampled_from([base64.b64encode(b"u:" + SECRETS[0]), SECRETS[1].hex().encode(), SECRETS[2]])
_piece = st.one_of(st.binary(max_size=12), _near, st.sampled_from(SECRETS), _encoded)
_text = st.lists(_piece, max_size=12).map(b"".join)
_cuts = st.lists(st.integers(1, 40), min_size=1, max_size=20)


def stream(scrubber: Scrubber, text: bytes, sizes: list[int]) -> bytes:
    out, place, turn = [], 0, 0
    while place < len(text):
        size = sizes[turn % len(sizes)]
        out.append(scrubber.feed(text[place : place + size]))
        place, turn = place + size, turn + 1
    return b"".join([*out, scrubber.finish()])


@given(text=_text, sizes=_cuts)
@example(text=SECRETS[0] + SECRETS[1], sizes=[1])
@example(text=SECRETS[1][:-1] + SECRETS[1], sizes=[7])
def test_no_secret_comes_out_however_the_text_is_cut(text: bytes, sizes: list[int]) -> None:
    scrubber = Scrubber(NEEDLES)
    out = stream(scrubber, text, sizes)
    whole, hits = NEEDLES.scrub(text)
    assert scrubber.hits == hits
    for secret in SECRETS:
        assert secret not in out
        assert secret.hex().encode() not in out
        assert base64.b64encode(secret)[:-4] not in out
    if b"*" not in whole:
        assert out == whole


@given(text=st.binary(max_size=300), sizes=_cuts)
def test_text_without_a_secret_is_not_changed(text: bytes, sizes: list[int]) -> None:
    scrubber = Scrubber(NEEDLES)
    out = stream(scrubber, text, sizes)
    if not scrubber.hits:
        assert out == text


@given(
    body=st.binary(max_size=200),
    coding=st.sampled_from([b"gzip", b"deflate", b"br", b"zstd", b"br, gzip"]),
    sizes=_cuts,
)
def test_any_bytes_in_any_coding_are_decoded_or_refused(body: bytes, coding: bytes, sizes: list[int]) -> None:
    why = ""
    try:
        stream(Scrubber(NEEDLES, coding), body, sizes)
    except Unscannable as error:
        why = error.why
    assert why == "" or re.fullmatch(r"[a-z ]+", why)


@given(text=_text, sizes=_cuts)
def test_a_coded_text_comes_out_as_the_plain_one(text: bytes, sizes: list[int]) -> None:
    coded = Scrubber(NEEDLES, b"deflate")
    out = stream(coded, zlib.compress(text), sizes)
    whole, hits = NEEDLES.scrub(text)
    assert coded.hits == hits
    assert b"*" in whole or out == whole


@given(before=st.binary(max_size=40), after=st.binary(max_size=40))
def test_sightings_never_raises_and_finds_a_placeholder_in_any_surroundings(before: bytes, after: bytes) -> None:
    placeholder = new_placeholder("github").encode()
    assert sightings(before + b" " + placeholder + b" " + after)
    sightings(before + after)

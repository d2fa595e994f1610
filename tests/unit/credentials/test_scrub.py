"""Reflections in every form and coding, streamed in every way.

Longer than a module should be, since each form is tried in each coding and each cut.
"""

import base64
import hashlib
import html
import json
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from urllib.parse import quote, quote_plus

import brotli
import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st

from tidegate.credentials.decode import RATIO, SLACK
from tidegate.credentials.scrub import Needles, Scrubber, Unscannable
from tidegate.credentials.search import StringSet
from tidegate.secret import Secret

PLAIN = b"ghp_R3alS3cretR3alS3cretR3alS3cret0123"
ODD = b'p@ss/w+rd "quoted" <tag>&\\=' + "é".encode() + b" and more"
PLACEHOLDER = b"ghp_71de9a7eAbCdEfGhIjKlMnOpQrStUvWxYz"


def needles(*secrets: bytes) -> Needles:
    return Needles.compile([(Secret(secret), PLACEHOLDER) for secret in secrets or (PLAIN,)])


def gzip(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=31)
    return packer.compress(body) + packer.flush()


def raw_deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(body) + packer.flush()


CODINGS: dict[str, tuple[bytes, Callable[[bytes], bytes]]] = {
    "gzip": (b"gzip", gzip),
    "x-gzip-upper-case": (b" X-GZIP ", gzip),
    "gzip-two-members": (b"gzip", lambda body: gzip(body[:50]) + gzip(body[50:])),
    "deflate-zlib": (b"deflate", zlib.compress),
    "deflate-raw": (b"deflate", raw_deflate),
    "br": (b"br", brotli.compress),
    "zstd": (b"zstd", zstd.compress),
    "zstd-two-frames": (b"zstd", lambda body: zstd.compress(body[:50]) + zstd.compress(body[50:])),
    "stacked": (b"gzip, br", lambda body: brotli.compress(gzip(body))),
    "identity-beside": (b"identity, gzip", gzip),
}


def chunks(body: bytes, size: int) -> Iterator[bytes]:
    return (body[at : at + size] for at in range(0, len(body), size))


def run(scrubber: Scrubber, body: bytes, size: int = 1 << 16) -> bytes:
    return b"".join([*map(scrubber.feed, chunks(body, size)), scrubber.finish()])


FORMS: dict[str, Callable[[bytes], bytes]] = {
    "raw": bytes,
    "lower": bytes.lower,
    "upper": bytes.upper,
    "reversed": lambda text: text[::-1],
    "hex": lambda text: text.hex().encode(),
    "hex-upper": lambda text: text.hex().upper().encode(),
    "percent": lambda text: quote(text, safe="").encode(),
    "percent-lower": lambda text: b"".join(
        bytes([byte]) if (chr(byte).isalnum() and byte < 128) or byte in b"-._~" else b"%%%02x" % byte for byte in text
    ),
    "percent-path": lambda text: quote(text).encode(),
    "form": lambda text: quote_plus(text).encode(),
    "percent-all": lambda text: b"".join(b"%%%02X" % byte for byte in text),
    "json": lambda text: json.dumps(text.decode(), ensure_ascii=False)[1:-1].encode(),
    "json-ascii": lambda text: json.dumps(text.decode())[1:-1].encode(),
    "json-slash": lambda text: json.dumps(text.decode())[1:-1].replace("/", "\\/").encode(),
    "html": lambda text: html.escape(text.decode()).encode(),
    "html-no-quotes": lambda text: html.escape(text.decode(), quote=False).encode(),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("secret", [PLAIN, ODD], ids=["plain", "odd"])
def test_C_24_form_is_replaced(form: str, secret: bytes) -> None:
    reflected = FORMS[form](secret)
    cleaned, hits = needles(secret).scrub(b"before " + reflected + b" after")
    assert hits == 1
    assert reflected not in cleaned
    assert cleaned.startswith(b"before ")
    assert cleaned.endswith(b" after")


@pytest.mark.parametrize("after", [b"", b"x", b"xy", b"xyz"])
@pytest.mark.parametrize("before", [b"", b"u", b"u:", b"us:"])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode], ids=["standard", "url"])
def test_C_24_base64_decodes_to_the_placeholder(encode: Callable[[bytes], bytes], before: bytes, after: bytes) -> None:
    secret = PLAIN[:-2] + b"\xfb\xef"  # gives + and / , - and _
    placeholder = b"\x81" + PLACEHOLDER[1:-1] + b"\x81"  # no bit at either end is shared with the secret by luck
    cleaned, hits = Needles.compile([(Secret(secret), placeholder)]).scrub(encode(before + secret + after))
    decode = base64.b64decode if encode is base64.b64encode else base64.urlsafe_b64decode
    assert hits == 1
    assert decode(cleaned) == before + placeholder + after


@pytest.mark.parametrize("before", [b"", b"u", b"u:"])
def test_C_24_base64_of_another_alignment_is_blanked(before: bytes) -> None:
    encoded = base64.b64encode(before + PLAIN + b"x" + b"tail")
    cleaned, hits = Needles.compile([(Secret(PLAIN), PLACEHOLDER[:-1])]).scrub(encoded)
    assert hits == 1
    assert len(cleaned) == len(encoded)
    assert cleaned.count(b"*") >= len(PLAIN) * 4 // 3 - 2


@pytest.mark.parametrize("size", [1, 3, 16, 1 << 16])
@pytest.mark.parametrize("coding", CODINGS)
def test_C_20_coded_body_is_decoded_cleaned_and_sent_as_identity(coding: str, size: int) -> None:
    name, encode = CODINGS[coding]
    body = b"x" * 40 + PLAIN + b'{"y": 1}' * 30 + PLAIN
    scrubber = Scrubber(needles(), name)
    assert scrubber.identity
    assert scrubber.length_may_change
    assert run(scrubber, encode(body), size) == body.replace(PLAIN, PLACEHOLDER)
    assert scrubber.hits == 2
    assert scrubber.found == {PLACEHOLDER: 2}


@pytest.mark.parametrize("name", [b"x-foo", b"compress", b"gzip, gzip, br", b"gzip;q=1", b"aws-chunked", b"\xff"])
def test_C_21_unknown_or_too_many_codings(name: bytes) -> None:
    with pytest.raises(Unscannable):
        Scrubber(needles(), name)


@pytest.mark.parametrize("name", [b"gzip", b"deflate", b"br", b"zstd"])
@pytest.mark.parametrize("size", [1, 1000])
def test_C_21_coding_that_lies(name: bytes, size: int) -> None:
    body = b"plain text with " + PLAIN
    with pytest.raises(Unscannable):
        run(Scrubber(needles(), name), body, size)


@pytest.mark.parametrize("coding", CODINGS)
def test_C_21_body_cut_short(coding: str) -> None:
    name, encode = CODINGS[coding]
    with pytest.raises(Unscannable):
        run(Scrubber(needles(), name), encode(PLAIN * 20)[:-6])


@pytest.mark.parametrize("coding", ["gzip", "deflate-zlib", "br", "zstd"])
def test_C_21_bytes_after_the_end(coding: str) -> None:
    name, encode = CODINGS[coding]
    with pytest.raises(Unscannable):
        run(Scrubber(needles(), name), encode(b"body") + b" and " + PLAIN)


@pytest.mark.parametrize("coding", CODINGS)
def test_empty_body_in_a_coding_is_no_lie(coding: str) -> None:
    assert run(Scrubber(needles(), CODINGS[coding][0]), b"") == b""


@pytest.mark.parametrize("coding", ["gzip", "deflate-zlib", "deflate-raw", "br", "zstd", "stacked"])
def test_V_05_bomb_is_stopped_early(coding: str) -> None:
    name, encode = CODINGS[coding]
    bomb = encode(bytes(32 << 20))
    given = 0
    scrubber = Scrubber(needles(), name)
    with pytest.raises(Unscannable):  # noqa: PT012 (what came out before counts)
        for chunk in chunks(bomb, 256):
            given += len(scrubber.feed(chunk))
    assert given <= SLACK + RATIO * len(bomb)


def test_V_05_cap_holds_for_a_slow_bomb() -> None:
    body = bytes(range(256)) * 400
    with pytest.raises(Unscannable, match="cap"):
        run(Scrubber(needles(), b"gzip", decoded_cap=50_000), gzip(body))


def test_V_05_nested_bomb_is_stopped_in_its_first_layer() -> None:
    inner = gzip(bytes(64 << 20))
    with pytest.raises(Unscannable):
        run(Scrubber(needles(), b"gzip, gzip"), gzip(inner))


MEMBER_CODINGS = {b"gzip": gzip, b"zstd": zstd.compress}


@pytest.mark.parametrize("name", MEMBER_CODINGS)
def test_V_05_members_that_give_nothing_are_bounded(name: bytes) -> None:
    begun = time.process_time()
    with pytest.raises(Unscannable, match="members"):
        run(Scrubber(needles(), name + b", gzip"), gzip(MEMBER_CODINGS[name](b"") * 50_000))
    with pytest.raises(Unscannable, match="members"):
        run(Scrubber(needles(), b"zstd"), zstd.compress(b"") * 1000)
    assert time.process_time() - begun < 0.5


@pytest.mark.parametrize("name", MEMBER_CODINGS)
def test_B_any_number_of_honest_members_is_read(name: bytes) -> None:
    part = bytes(range(256)) * 20
    assert run(Scrubber(needles(), name), MEMBER_CODINGS[name](part) * 500) == part * 500


@pytest.mark.parametrize("before", range(3))
def test_C_24_a_secret_right_behind_its_own_base64_form_is_found(before: int) -> None:
    """What mends the end of one find must not take the beginning of the next."""
    for length in range(30, 50):
        secret = (b"ghp_" + PLAIN * 2)[:length]
        for end in range(4):
            text = base64.b64encode(b"x" * before + secret + b"y" * 5)
            for cut in range(len(text) - 12, len(text) + 1):
                body = text[:cut] + secret + b"!" * end
                assert secret not in run(Scrubber(needles(secret)), body), (length, cut)


def test_V_05_the_ratios_of_two_codings_do_not_multiply() -> None:
    """Each layer stays below its own bound; the whole does not."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    block = packer.compress(hashlib.sha512(b"x").digest() + bytes(14_000)) + packer.flush(zlib.Z_FULL_FLUSH)
    again = packer.compress(hashlib.sha512(b"x").digest() + bytes(14_000)) + packer.flush(zlib.Z_FULL_FLUSH)
    body = gzip(block + again * 10_000)
    scrubber, given = Scrubber(needles(), b"gzip, gzip"), 0
    with pytest.raises(Unscannable, match="proportion"):  # noqa: PT012 (what came out before counts)
        for chunk in chunks(body, 4096):
            given += len(scrubber.feed(chunk))
    assert given <= SLACK + RATIO * len(body)


@pytest.mark.parametrize("name", MEMBER_CODINGS)
@pytest.mark.parametrize("size", [90, 1000, 3000])
def test_B_an_event_a_member_is_read(name: bytes, size: int) -> None:
    events = [hashlib.sha512(b"%d" % number).hexdigest().encode() * 30 for number in range(500)]
    body = b"".join(MEMBER_CODINGS[name](event[:size]) for event in events)
    assert run(Scrubber(needles(), name), body, 1000) == b"".join(event[:size] for event in events)


def test_V_05_zstd_window_is_bounded() -> None:
    packer = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 27})
    body = packer.compress(b"x" * 100) + packer.flush()
    with pytest.raises(Unscannable):
        run(Scrubber(needles(), b"zstd"), body)


def test_C_23_every_split_of_a_body() -> None:
    body = b"data: " + PLAIN + b"\n\n" + base64.b64encode(b"u:" + PLAIN) + b" " + PLAIN[:9] + PLAIN
    whole, hits = needles().scrub(body)
    assert hits == 3
    for size in range(1, len(body)):
        scrubber = Scrubber(needles())
        out = run(scrubber, body, size)
        assert scrubber.hits == 3
        if size > 1:  # a base64 neighbour that went out before the needle ended cannot be mended
            assert PLAIN not in out
        assert out.count(PLACEHOLDER) == whole.count(PLACEHOLDER)


@pytest.mark.parametrize(
    ("chunk", "held"),
    [
        pytest.param(b"data: hello\n\n", 0, id="event"),
        pytest.param(b"data: " + PLAIN[:10], 10, id="beginning-of-the-secret"),
        pytest.param(b"data: " + PLAIN[:2], 2, id="two-characters"),
        pytest.param(b"data: " + PLAIN[:10] + b"!", 0, id="no-longer-a-beginning"),
        pytest.param(b"data: " + PLAIN.hex().encode()[:30], 30, id="beginning-in-hex"),
        pytest.param(PLAIN, 0, id="whole-secret"),
    ],
)
def test_B_events_are_held_only_for_a_real_beginning(chunk: bytes, held: int) -> None:
    out = Scrubber(needles()).feed(chunk)
    assert len(chunk.replace(PLAIN, PLACEHOLDER)) - len(out) == held


def test_a_beginning_that_comes_to_nothing_goes_on_unchanged() -> None:
    scrubber = Scrubber(needles())
    assert scrubber.feed(b"a" + PLAIN[:10]) + scrubber.feed(b"zz") + scrubber.finish() == b"a" + PLAIN[:10] + b"zz"
    assert Scrubber(needles()).finish() == b""
    rest = Scrubber(needles())
    assert rest.feed(PLAIN[:10]) + rest.finish() == PLAIN[:10]


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_longer_of_two_secrets_that_begin_alike_wins(size: int) -> None:
    longer = PLAIN + b"AndMore"
    both = Needles.compile([(Secret(PLAIN), b"<short>"), (Secret(longer), b"<long>")])
    body = longer + b" " + PLAIN + b" " + PLAIN + b"AndM."
    assert run(Scrubber(both), body, size) == b"<long> <short> <short>AndM."


def test_all_secrets_of_the_session_are_found_each_with_its_own_placeholder() -> None:
    pairs = [(Secret(b"secret-number-%d-" % n + PLAIN[::-1]), b"<%d>" % n) for n in range(10)]
    found: Counter[bytes] = Counter()
    cleaned, hits = Needles.compile(pairs).scrub(b"|".join(s.reveal() for s, _ in pairs), found=found)
    assert cleaned == b"|".join(p for _, p in pairs)
    assert hits == 10
    assert found == {p: 1 for _, p in pairs}


def test_without_a_secret_any_body_passes_as_it_is() -> None:
    scrubber = Scrubber(Needles.compile([]), b"x-foo")
    assert not scrubber.identity
    assert not scrubber.length_may_change
    assert run(scrubber, b"\x00\xff" + PLAIN) == b"\x00\xff" + PLAIN


LONG = [PLAIN[4:9] + bytes([65 + n % 26, 97 + n // 26 % 26]) + (PLAIN[9:] * 120)[:4000] for n in range(50)]
MANY = [b"ghp_%04d" % n + base64.b64encode(hashlib.sha256(b"%d" % n).digest())[:32] for n in range(1000)]


@pytest.mark.parametrize(("secrets", "seconds"), [(MANY, 3.0), (LONG, 3.0)], ids=["1000-of-40", "50-of-4-KB"])
def test_any_number_and_length_of_secrets_is_searched_for(secrets: list[bytes], seconds: float) -> None:
    pairs = [(Secret(one), b"<%d>" % n) for n, one in enumerate(secrets)]
    begin = time.process_time()
    compiled = Needles.compile(pairs)
    assert time.process_time() - begin < seconds
    for number in (0, 7, len(secrets) - 1):
        for encode in (bytes, lambda text: text.hex().encode(), base64.b64encode, base64.encodebytes):
            body = b"x: " + encode(b"u:" + secrets[number] + b"...") + b"\n"
            for size in (97, 1 << 16):
                scrubber = Scrubber(compiled)
                out = run(scrubber, body, size)
                assert scrubber.found == {b"<%d>" % number: 1}
                assert encode(secrets[number])[8:40] not in out


@pytest.mark.parametrize("secrets", [MANY, LONG], ids=["1000-of-40", "50-of-4-KB"])
def test_one_megabyte_is_searched_in_no_time(secrets: list[bytes]) -> None:
    compiled = Needles.compile([(Secret(one), b"<p>") for one in secrets])
    scrubber = Scrubber(compiled)
    text = (base64.b64encode(hashlib.sha512(b"x").digest() * 7) + b' {"name": "value"}\r\n') * (1 << 11)
    run(scrubber, text[: 1 << 16])
    begin = time.process_time()
    assert len(run(scrubber, text)) == len(text)
    assert time.process_time() - begin < 0.5
    assert scrubber.hits == 0


def test_secrets_that_come_one_by_one_are_found_as_if_they_came_at_once() -> None:
    pairs = [(Secret(one), b"<%d>" % n) for n, one in enumerate([*MANY[:20], PLAIN, PLAIN + b"AndMore", ODD])]
    whole, grown = Needles.compile(pairs), Needles.compile(pairs[:1])
    for pair in pairs[1:]:
        grown = grown.plus([pair])
    assert grown.scattered
    late = grown.plus([(Secret(PLAIN[::-1]), b"<late>")])
    renewed = Needles.compile(pairs) + late.since(grown)
    assert not renewed.scattered
    body = b" ".join(FORMS["percent"](one.reveal()) + b" " + one.reveal() for one, _ in pairs)
    for needles_ in (grown, late, renewed):
        assert needles_.scrub(body) == whole.scrub(body)
    assert late.scrub(PLAIN[::-1]) == renewed.scrub(PLAIN[::-1]) == (b"<late>", 1)  # raw before reversed
    assert not late.since(late)


@pytest.mark.parametrize("size", [78, 128, 1000, 1 << 16])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize("columns", [64, 76])
@pytest.mark.parametrize("before", [0, 1, 5, 19, 20, 21, 28, 30, 38, 39, 40, 41])
@pytest.mark.parametrize("secret", [PLAIN, PLAIN * 4], ids=["short", "over-many-lines"])
def test_C_24_base64_in_lines_is_found(secret: bytes, before: int, columns: int, end: bytes, size: int) -> None:
    encoded = base64.b64encode(b"x" * before + secret + b"tail" * 30)
    body = b"".join(line + end for line in chunks(encoded, columns)) + b"--boundary" + end
    scrubber = Scrubber(needles(secret))
    out = run(scrubber, body, size)
    assert scrubber.hits == 1
    assert out.endswith(end + b"--boundary" + end)
    assert PLAIN[3:20] not in base64.b64decode(out.partition(b"--")[0].replace(b"*", b"A") + b"==")


@pytest.mark.parametrize("size", [1, 3, 39, 50, 77, 78])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize("before", [0, 1, 2, 5, 28, 30, 41, 53, 54, 55, 56])
def test_C_24_base64_in_lines_is_found_in_any_pieces(before: int, end: bytes, size: int) -> None:
    scrubber = Scrubber(needles())
    run(scrubber, base64.encodebytes(b"x" * before + PLAIN + b"tail" * 30).replace(b"\n", end), size)
    assert scrubber.hits == 1


@given(
    secret=st.binary(min_size=16, max_size=90),
    before=st.binary(max_size=40),
    kept=st.integers(min_value=1, max_value=89),
)
def test_C_23_a_quiet_text_has_nothing_in_it_and_begins_nothing(secret: bytes, before: bytes, kept: int) -> None:
    strings = StringSet([secret, secret[::-1], base64.b64encode(secret)])
    for text in (before, before + secret, before + secret[:kept], before + base64.b64encode(secret)[:kept]):
        if strings.is_quiet(text):
            assert strings.find(text) is None
            assert strings.tail(text) == 0
    assert not strings.is_quiet(before + secret[:kept])


def test_B_a_line_of_text_is_not_held_for_a_chance_likeness() -> None:
    for end in (b"\n", b"\r\n", b"\n\n", b"\r\n\r\n"):
        line = b"data: coming" + PLAIN[:3] + end
        assert Scrubber(needles()).feed(line) == line
    event = b"data: " + PLAIN[:9] + b"\n\n"
    assert Scrubber(needles()).feed(event) == event
    assert Scrubber(needles()).feed(event[:-1]) == b"data: "


class TestRenew:
    def test_a_lease_that_comes_in_mid_body_is_scrubbed_from_there(self) -> None:
        scrubber = Scrubber(needles(ODD))
        scrubber.feed(b"a")
        scrubber.renew(needles(ODD, PLAIN))
        assert scrubber.feed(PLAIN + b".") == PLACEHOLDER + b"."

    def test_into_a_plain_body_without_secrets(self) -> None:
        scrubber = Scrubber(Needles.compile([]))
        scrubber.renew(needles())
        assert scrubber.feed(PLAIN + b".") == PLACEHOLDER + b"."

    def test_into_a_coded_body_that_was_not_decoded_it_is_refused(self) -> None:
        scrubber = Scrubber(Needles.compile([]), b"gzip")
        with pytest.raises(Unscannable):
            scrubber.renew(needles())

    def test_the_last_secret_may_go_while_something_is_held(self) -> None:
        scrubber = Scrubber(needles())
        scrubber.feed(PLAIN[:10])
        scrubber.renew(Needles.compile([]))
        assert scrubber.feed(b"!") + scrubber.finish() == PLAIN[:10] + b"!"


def test_no_secret_in_the_repr() -> None:
    assert PLAIN not in repr(needles()).encode()


def test_V_18_hostile_text_takes_linear_time() -> None:
    """A text of near misses: twice the length must not take four times as long."""
    compiled = needles(b"a" * 40 + b"b" + PLAIN)

    def seconds(length: int) -> float:
        text = b"a" * length
        begin = time.process_time()
        run(Scrubber(compiled), text)
        return time.process_time() - begin

    seconds(1 << 16)
    assert seconds(1 << 21) < 8 * max(seconds(1 << 20), 0.005)

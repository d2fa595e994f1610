"""What a terminal is shown of a sandbox's output: every command to it is text (S-22)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate_launcher.terminal import Plain, plain


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        pytest.param(b"plain\ttext\n", "plain\ttext\n", id="text"),
        pytest.param("déjà\u00a0vu　日本 🎉".encode(), "déjà\u00a0vu　日本 🎉", id="text of others"),
        pytest.param(b"\x1b]52;c;aGk=\x07", "\\x1b]52;c;aGk=\\x07", id="clipboard"),
        pytest.param(b"\x1b]0;title", "\\x1b]0;title", id="title, without an end"),
        pytest.param(b"\x9b2J", "\\x9b2J", id="C1 as a byte"),
        pytest.param(b"\xc2\x9b2J", "\\x9b2J", id="C1 as a character"),
        pytest.param(b"good\rEVIL", "goodEVIL", id="a line written over"),
        pytest.param(b"a\x08\x7fb\x00", "a\\x08\\x7fb\\x00", id="backspace, delete, NUL"),
        pytest.param("\u202eevil\u2028".encode(), "\\u202eevil\\u2028", id="turned around"),
        pytest.param("\U000e0041".encode(), "\\U000e0041", id="a tag"),
        pytest.param(b"\xff\xfe", "\\xff\\xfe", id="no text"),
        pytest.param(b"\xe2\x82", "\\xe2\\x82", id="cut off"),
    ],
)
def test_what_is_shown(given: bytes, shown: str) -> None:
    assert plain(given) == shown


def test_a_string_is_made_plain_too() -> None:
    assert plain("x\x1b[1m\udcff") == "x\\x1b[1m\\udcff"


@given(st.lists(st.binary(max_size=8), max_size=8))
def test_it_is_the_same_however_it_comes_and_drives_nothing(pieces: list[bytes]) -> None:
    shown = Plain()
    text = "".join(shown.take(piece) for piece in pieces) + shown.take(b"", last=True)
    assert text == plain(b"".join(pieces))
    assert all(letter.isprintable() or letter in "\n\t" or letter.isspace() for letter in text)
    assert not {"\x1b", "\r", "\x9b", "\x85"} & set(text)

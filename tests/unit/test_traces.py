"""Placeholders and web tokens are cut wherever they stand, and nothing else is."""

import re

from hypothesis import given
from hypothesis import strategies as st

from tidegate.credentials.placeholder import SHAPES, find_placeholders, new_placeholder
from tidegate.traces import MARKER, cut_placeholders, cut_tokens

TOKEN = re.compile(r"eyJ[\w-]{8,}\.[\w-]+\.[\w-]+", re.ASCII)
PIECES = st.lists(st.sampled_from(["eyJ", "aaaaaaaa", ".", "..", "-", " ", "/", "ü", "x"]), max_size=14).map("".join)


@given(PIECES)
def test_no_token_by_the_plain_pattern_is_left_and_a_text_without_one_stays(text: str) -> None:
    shown = cut_tokens(text, "«»")
    assert TOKEN.search(shown) is None
    assert (shown == text) == (TOKEN.search(text) is None)


@given(before=PIECES, after=PIECES)
def test_what_is_before_a_token_stays(before: str, after: str) -> None:
    assert cut_tokens(f"{before} eyJaaaaaaaa.b.c {after}", "«»").startswith(f"{cut_tokens(before, '«»')} «» ")


@given(st.lists(st.sampled_from(sorted(SHAPES)), min_size=1, max_size=4), st.sampled_from(["", " ", ".", "=", "\n"]))
def test_no_placeholder_is_left_however_they_stand(shapes: list[str], between: str) -> None:
    shown = cut_placeholders(between.join(new_placeholder(shape) for shape in shapes), "«»")
    assert find_placeholders(shown.encode()) == []
    assert MARKER not in shown


def test_a_placeholder_goes_with_its_prefix_and_what_is_around_it_stays() -> None:
    assert cut_placeholders(f"(x={new_placeholder('github_pat')})", "«»") == "(x=«»)"


@given(st.text())
def test_a_text_without_a_marker_stays(text: str) -> None:
    assert cut_placeholders(text, "«»") == text

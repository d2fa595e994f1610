"""A model's command: a list of strings that a program can be started with, or refused with the place of its fault."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import LaunchError
from tidegate.sdk import check_argv
from tidegate.sdk.argv import MOST_ARGUMENTS, MOST_BYTES


def test_a_list_and_a_tuple_of_strings_are_a_command() -> None:
    assert check_argv(["python3", "-c", "print('ü')", ""]) == ("python3", "-c", "print('ü')", "")
    assert check_argv(("true",)) == ("true",)


@pytest.mark.parametrize(
    ("argv", "where"),
    [
        pytest.param("rm -rf /", "argv:", id="a line for a shell"),
        pytest.param(None, "argv:", id="nothing"),
        pytest.param({"cmd": "x"}, "argv:", id="a mapping"),
        pytest.param([], "argv[0]:", id="empty"),
        pytest.param([""], "argv[0]:", id="no program"),
        pytest.param(["echo", 1], "argv[1]:", id="a number"),
        pytest.param(["echo", None], "argv[1]:", id="a null"),
        pytest.param(["echo", b"x"], "argv[1]:", id="bytes"),
        pytest.param(["echo", ["x"]], "argv[1]:", id="a list in it"),
        pytest.param(["echo", "a\0b"], "argv[1]:", id="a NUL"),
        pytest.param(["echo", "\ud800"], "argv[1]:", id="half a surrogate pair"),
        pytest.param(["x"] * (MOST_ARGUMENTS + 1), "argv:", id="too many"),
        pytest.param(["echo", "ü" * (MOST_BYTES // 2)], "argv:", id="too long, in bytes"),
    ],
)
def test_anything_else_is_refused_with_its_place(argv: Any, where: str) -> None:
    with pytest.raises(LaunchError) as refused:
        check_argv(argv)
    assert str(refused.value).startswith(where)


def test_what_fits_exactly_is_taken() -> None:
    assert len(check_argv(["x" * (MOST_BYTES - 1)])) == 1
    assert len(check_argv(["x"] * MOST_ARGUMENTS)) == MOST_ARGUMENTS


@given(st.recursive(st.none() | st.integers() | st.text() | st.binary(), lambda inner: st.lists(inner, max_size=5)))
def test_whatever_comes_is_taken_unchanged_or_refused(given_argv: Any) -> None:
    try:
        checked = check_argv(given_argv)
    except LaunchError:
        return
    assert list(checked) == given_argv
    assert all("\0" not in word for word in checked)

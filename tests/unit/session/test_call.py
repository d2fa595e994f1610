"""What a model calls its tools: bounded on every way in, and no more than that."""

import msgspec
import pytest

from tidegate.errors import LaunchError
from tidegate.session.call import MOST_LETTERS, ToolCall
from tidegate.session.door import Opening, Request, decode_request

WORDS = [
    pytest.param("web_search", True, id="a name"),
    pytest.param("mcp:files/read", True, id="signs"),
    pytest.param('x\n{"v":1}\r\n', True, id="lines, which are escaped later"),
    pytest.param("\x1b]0;owned\x07\u202e", True, id="what drives a terminal, likewise"),
    pytest.param("x" * MOST_LETTERS, True, id="the longest"),
    pytest.param("x" * (MOST_LETTERS + 1), False, id="longer"),
    pytest.param("x" * 10_000, False, id="10 KB"),
    pytest.param("", False, id="nothing"),
    pytest.param("\ud800", False, id="half of a surrogate pair"),
    pytest.param("a\udcffb", False, id="a byte that is no text"),
    pytest.param(None, False, id="null"),
    pytest.param({"name": "x"}, False, id="an object"),
]


@pytest.mark.parametrize(("word", "fine"), WORDS)
@pytest.mark.parametrize("place", ["tool", "id"])
def test_a_word_of_a_models_is_bounded_text(word: str, fine: bool, place: str) -> None:
    words = {"tool": "t", "id": "i", place: word}
    if fine:
        assert getattr(ToolCall.of(**words), place) == word
        return
    with pytest.raises(LaunchError, match=f"a call's {place} is text of 1 to 128 characters") as refused:
        ToolCall.of(**words)
    assert str(word)[:9] not in str(refused.value) or not word  # it is not repeated to whoever reads the fault


@pytest.mark.parametrize(
    "call",
    [
        pytest.param({"tool": "x" * 129, "id": "i"}, id="long tool"),
        pytest.param({"tool": "t", "id": "x" * 10_000}, id="long id"),
        pytest.param({"tool": "", "id": "i"}, id="empty"),
        pytest.param({"tool": "t"}, id="no id"),
        pytest.param({"tool": "t", "id": "i", "parent": "p" * 65}, id="long parent"),
        pytest.param({"tool": "t", "id": "i", "owner": "root"}, id="a field too many"),
        pytest.param({"tool": 1, "id": "i"}, id="a number"),
    ],
)
def test_the_gate_bounds_it_too_whatever_a_launcher_sends(call: dict[str, object]) -> None:
    with pytest.raises(LaunchError, match="cannot be read"):
        decode_request(msgspec.msgpack.encode({"open": {"policy": "p", "call": call}}))


def test_bytes_that_are_no_text_are_refused_at_the_gate() -> None:
    data = msgspec.msgpack.encode({"open": {"policy": "p", "call": {"tool": "TOOL", "id": "i"}}})
    with pytest.raises(LaunchError, match="cannot be read"):
        decode_request(data.replace(b"TOOL", b"\xed\xa0\x80x"))


def test_a_call_comes_as_it_was_said() -> None:
    said = Request(open=Opening(policy="p", call=ToolCall.of("t\n", "i")))
    assert decode_request(msgspec.msgpack.encode(said)) == said

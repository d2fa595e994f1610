"""What may stand in a record."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidegate
from tidegate.audit.redact import Loggable, Redactor, loggable
from tidegate.secret import Secret

KEY = b"k" * 32


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("api.example.com", "api.example.com", id="plain"),
        pytest.param("a\r\nb", r"a\x0d\x0ab", id="crlf"),
        pytest.param("\x1b[31mred", r"\x1b[31mred", id="escape sequence"),
        pytest.param("\x7f\x9b", r"\x7f\x9b", id="DEL and C1"),
        pytest.param("a\u202eb\u2066", r"a\u202eb\u2066", id="bidi controls"),
        pytest.param("a\u200bb\ufeff", r"a\u200bb\ufeff", id="zero width"),
        pytest.param("a\u2028b", r"a\u2028b", id="line separator"),
        pytest.param("\U000e0001", r"\U000e0001", id="language tag"),
        pytest.param("back\\x0a", r"back\\x0a", id="an escape cannot be forged"),
        pytest.param(b"\xff\xfe/x", r"\xff\xfe/x", id="no utf-8"),
        pytest.param("grün", "grün", id="letters stay"),
        pytest.param("\ud800", r"\ud800", id="lone surrogate"),
    ],
)
def test_V_11_text_from_outside_is_escaped(text: str | bytes, shown: str) -> None:
    assert loggable(text) == shown


@given(st.one_of(st.text(max_size=600), st.binary(max_size=600)))
def test_loggable_is_printable_and_bounded(text: str | bytes) -> None:
    shown = loggable(text, 100)
    assert shown.isprintable()
    assert len(shown) <= 110


@given(st.text(max_size=40), st.text(max_size=40))
def test_loggable_keeps_different_texts_apart(one: str, other: str) -> None:
    assert (loggable(one, 1000) == loggable(other, 1000)) == (one == other)


def test_V_11_a_huge_text_is_cut_and_counted() -> None:
    assert loggable("a" * 1_000_000, 10) == "aaaaaaaaaa…+999990"
    assert loggable(b"a" * 1_000_000, 10) == "aaaaaaaaaa…+999990"


def test_a_secret_is_no_text() -> None:
    with pytest.raises(TypeError):
        loggable(Secret("hunter2"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "query",
    [
        pytest.param("key=hunter2&page=hunter2", id="values"),
        pytest.param("hunter2", id="a bare word"),
        pytest.param("x" * 41 + "hunter2=1", id="a long name"),
        pytest.param("&".join(f"a{n}=hunter2" for n in range(500)), id="many"),
        pytest.param("a=b=hunter2", id="two equals signs"),
        pytest.param("hun\\ter2=1&hunter2", id="an odd name"),
    ],
)
def test_no_query_value_stands_in_clear(query: str) -> None:
    shown = Redactor(KEY).query(query)
    assert "hunter2" not in shown
    assert len(shown) < 25 * 62


def test_query_hashes_are_keyed_and_stable() -> None:
    here, there = Redactor(KEY), Redactor(b"other")
    assert here.query("page=2") == here.query("page=2") != here.query("page=3")
    assert here.query("page=2") != there.query("page=2")
    assert re.fullmatch(r"page=h:[0-9a-f]{16}", here.query("page=2"))


@pytest.mark.parametrize(
    ("url", "pattern"),
    [
        pytest.param("https://u:pw@h.example/p?q=s#f", r"https://…@h.example/p\?q=h:\w{16}#h:\w{16}", id="everything"),
        pytest.param("/relative", "/relative", id="relative"),
        pytest.param("//h.example/a@b", "//h.example/a@b", id="an at-sign in the path"),
        pytest.param(
            "https://h.example/\r\nSet-Cookie: a", r"https://h.example/\\x0d\\x0aSet-Cookie: a", id="injection"
        ),
    ],
)
def test_redirect_targets_lose_userinfo_and_values(url: str, pattern: str) -> None:
    assert re.fullmatch(pattern, Redactor(KEY).url(url))


def test_only_redact_makes_a_loggable() -> None:
    root = Path(tidegate.__file__).parent
    makers = {path.name for path in root.rglob("*.py") if re.search(r"\bLoggable\(", path.read_text())}
    assert makers == {"redact.py"}
    assert Loggable("x") == "x"


TOKEN = "eyJhbGciOiJFZERTQSJ9.eyJzaWQiOiJhYmMiLCJleHAiOjF9.c2lnbmF0dXJl"


@pytest.mark.parametrize(
    "target",
    [
        "s:{}@api.test:443", "s:{}", "s:{}@", "{}@api.test", "s:{}%40api.test:443", "http://s:{}@api.test/x",
        "http:/s:{}@api.test/x", "http:\\\\s:{}@api.test/x", "//s:{}@api.test/x", "\\\\s:{}@api.test",
        "s:{}/x@api.test:443", "s:x/{}@api.test:443",
        "http://s:{}/x@api.test/", "s:a@b:{}@api.test:443", "api.test:{}", "s:{}?x@api.test:443",
    ],
)  # fmt: skip
@pytest.mark.parametrize("word", [TOKEN, "a-word-of-another-form", "pa55w0rd"])
def test_no_userinfo_is_logged_whatever_the_form_of_the_target(target: str, word: str) -> None:
    """`CONNECT s:TOKEN@host:443` put the session's token into `conn.name`."""
    assert word not in Redactor(KEY).url(target.format(word))


@pytest.mark.parametrize(
    "target", ["https://api.test:8443/a/@scope/b", "/a@b/c", "api.test:443", "[2001:db8::1]:443", "https://[::1]/x"]
)
def test_a_target_without_userinfo_is_logged_as_it_is(target: str) -> None:
    assert Redactor(KEY).url(target) == target

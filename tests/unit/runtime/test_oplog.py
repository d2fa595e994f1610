"""The operational log: one line an event, whatever is in it, and never a flood."""

import io
import json
import logging

import pytest

from tidegate.runtime.oplog import RateFilter, set_up


@pytest.fixture
def root_logger() -> object:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)


def _record(text: str, *values: object) -> logging.LogRecord:
    return logging.LogRecord("gate", logging.ERROR, "", 0, text, values, None)


def test_V_17_a_storm_of_one_kind_becomes_a_few_lines_and_a_count() -> None:
    now = [0.0]
    limit = RateFilter(per_second=3, clock=lambda: now[0])
    assert [limit.filter(_record("bad message from %s", n)) for n in range(100)].count(True) == 3
    now[0] = 1.0
    record = _record("bad message from %s", 100)
    assert limit.filter(record)
    assert vars(record)["suppressed"] == 97


def test_a_storm_does_not_hide_another_kind() -> None:
    limit = RateFilter(per_second=1, clock=lambda: 0.0)
    assert limit.filter(_record("one"))
    assert not limit.filter(_record("one"))
    assert limit.filter(_record("two"))


@pytest.mark.parametrize("style", ["plain", "json"])
@pytest.mark.parametrize(
    "hostile",
    [
        pytest.param("a\nready (gate)", id="a line break that forges a line"),
        pytest.param("a\r\x1b[2Jb", id="terminal control"),
        pytest.param("a\x85b\u2028c", id="unicode line breaks"),
    ],
)
def test_V_11_a_message_is_one_line_whatever_is_in_it(root_logger: object, style: str, hostile: str) -> None:
    stream = io.StringIO()
    set_up(style=style, stream=stream)  # type: ignore[arg-type]
    logging.getLogger("gate").error("%s", hostile)
    text = stream.getvalue()
    assert len(text.splitlines()) == 1
    assert "\x1b" not in text
    if style == "json":
        assert json.loads(text)["level"] == "error"
    else:
        assert text.startswith("tidegate: error: a")

from pathlib import Path

import pytest

from tidegate_launcher.oci.log import LOG_BYTES, lines_of, logged_fault


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        pytest.param('{"level":"warning","msg":"a"}\n{"level":"error","msg":"b"}\n{"level":"error","msg":"c"}', "b"),
        pytest.param('{"level":"info","msg":"a"}\n', ""),
        pytest.param('no json\n[1]\n{"level":"error","msg":"b"}', "b"),
        pytest.param("", ""),
        pytest.param('{"level":"error","msg":"' + "x" * 5000 + '"}', "x" * 1000),
    ],
    ids=["the first error", "none", "beside other lines", "empty", "bounded"],
)
def test_the_first_error_is_the_fault(tmp_path: Path, text: str, fault: str) -> None:
    (tmp_path / "log").write_text(text)
    assert logged_fault(tmp_path / "log") == fault


def test_a_log_that_is_not_there_says_nothing_and_a_long_one_is_not_read_whole(tmp_path: Path) -> None:
    assert logged_fault(tmp_path / "none") == ""
    (tmp_path / "long").write_bytes(b"x" * (LOG_BYTES + 10))
    assert lines_of(tmp_path / "long") == [b"x" * LOG_BYTES]

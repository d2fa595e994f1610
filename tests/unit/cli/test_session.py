"""`session new`: a session that nobody gave a lifetime ends by itself."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tidegate.cli.client import AdminClient
from tidegate.cli.main import main


@pytest.fixture
def posted(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, object]]:
    bodies: list[Mapping[str, object]] = []

    def post(_: AdminClient, path: str, body: Mapping[str, object] | None = None) -> dict[str, object]:
        bodies.append(body or {})
        return {"id": "x", "proxy_url": "http://x", "expires": 0}

    monkeypatch.setattr(AdminClient, "post", post)
    return bodies


@pytest.mark.parametrize(("words", "seconds"), [((), 86400.0), (("--ttl-seconds", "60"), 60.0)], ids=["none", "given"])
def test_a_new_session_has_an_end(
    posted: list[Mapping[str, object]], tmp_path: Path, words: tuple[str, ...], seconds: float
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["session", "new", "--state-dir", str(tmp_path), "--policy", "p", *words])
    assert ended.value.code == 0
    assert [body["ttl_seconds"] for body in posted] == [seconds]


def test_no_lifetime_is_wrong_usage(posted: list[Mapping[str, object]], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["session", "new", "--state-dir", str(tmp_path), "--policy", "p", "--ttl-seconds", "0"])
    assert ended.value.code == 2
    assert posted == []


def run(tmp_path: Path, *words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["session", *words, "--state-dir", str(tmp_path)])
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize(
    ("word", "tool", "id"),
    [("web:c1", "web", "c1"), ("mcp:files/read:toolu_1", "mcp:files/read", "toolu_1"), ("a\nb:\x1b", "a\nb", "\x1b")],
)
def test_a_session_may_be_for_a_call(
    posted: list[Mapping[str, object]], tmp_path: Path, word: str, tool: str, id: str
) -> None:
    assert run(tmp_path, "new", "--policy", "p", "--call", word) == 0
    assert run(tmp_path, "new", "--parent", "s", "--call", word) == 0
    assert [(body["policy"], body["call"]) for body in posted] == [
        ("p", {"tool": tool, "id": id, "parent": None}), (None, {"tool": tool, "id": id, "parent": "s"}),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "told"),
    [
        pytest.param(("--policy", "p", "--call", "web"), "as in web_search:call_1", id="no id"),
        pytest.param(("--policy", "p", "--call", ":c1"), "1 to 128 characters", id="no tool"),
        pytest.param(("--policy", "p", "--call", "x" * 10_000 + ":c1"), "1 to 128 characters", id="10 KB"),
        pytest.param(("--policy", "p", "--call", "a\udcff:c1"), "1 to 128 characters", id="a byte that is no text"),
        pytest.param(("--policy", "p", "--parent", "s"), "of a --call", id="a parent of nothing"),
        pytest.param(("--call", "web:c1"), "Missing option '--policy'", id="no policy"),
        pytest.param((), "Missing option '--policy'", id="nothing"),
    ],
)
def test_a_call_that_cannot_be_one_is_wrong_usage(
    posted: list[Mapping[str, object]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    told: str,
) -> None:
    assert run(tmp_path, "new", *words) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert told in said
    assert len(said) < 1000
    assert posted == []


VIEW = {"id": "s1", "policy": "p", "owner": "o", "credentials": [], "source": None, "expires": None, "frozen": False}
CALL = {"tool": "web\\x0a\x1b[2J", "id": "c1", "parent": "s0"}


def test_a_list_has_the_calls_and_is_narrowed_to_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[dict[str, str | None]] = []

    def get(_: AdminClient, path: str, **query: str | None) -> dict[str, object]:
        asked.append(query)
        return {"sessions": [{**VIEW, "origin": "launch", "call": CALL}, {**VIEW, "origin": "admin", "call": None}]}

    monkeypatch.setattr(AdminClient, "get", get)
    assert run(tmp_path, "list", "--call", "web\udcff:c1") == 0
    assert asked == [{"owner": None, "call": "web\\xff:c1"}]
    shown = capsys.readouterr().out
    head, child, other = shown.splitlines()
    assert head.split()[-2:] == ["CALL", "PARENT"]
    assert child.split()[-2:] == ["web\\x0a�[2J:c1", "s0"]
    assert other.split()[-2:] == ["-", "-"]
    assert "\x1b" not in shown


def test_one_session_is_shown_with_its_call(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(AdminClient, "get", lambda *_, **__: {**VIEW, "origin": "launch", "call": CALL})
    assert run(tmp_path, "show", "s1") == 0
    rows = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    assert (rows["call"], rows["parent"]) == ("web\\x0a�[2J:c1", "s0")

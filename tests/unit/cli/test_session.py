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

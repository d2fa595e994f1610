import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tidegate.cli.config import config

TEXT = """\
version: 1
state_dir: /srv/t
registries: {npm: "https://user:geheim@mirror.test/"}
policies: {p: {allow: [{host: a.example, credential: c, methods: [GET]}]}}
credentials:
  c:
    source: {env: C_SECRET}
    for: [{host: a.example, methods: [GET]}]
    place: {header: x-key}
sessions: {s: {policy: p, credentials: [c]}}
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "t.yaml"
    path.write_text(TEXT)
    return str(path)


def show(*arguments: str, **environ: str) -> str:
    result = CliRunner(env={"TIDEGATE_CONFIG": None, **environ}).invoke(config, ["show", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_shows_where_each_value_comes_from(file: str) -> None:
    rows = json.loads(show("--config", file, "--origin", "-o", "json", TIDEGATE_AUDIT_FSYNC="always"))
    by_key = {row["key"]: (row["value"], row["origin"]) for row in rows}
    assert by_key["state_dir"] == ("/srv/t", f"{file}:2")
    assert by_key["audit.dir"] == ("/srv/t/audit", "default")
    assert by_key["audit.fsync"] == ("always", "$TIDEGATE_AUDIT_FSYNC")
    assert by_key["listen.socks"] == ("off", "default")
    assert by_key["credentials.c"] == ("header at a.example, from env", f"{file}:6")
    assert by_key["sessions.s"][0] == "policy p"


def test_invariant_5_shows_no_password(file: str) -> None:
    shown = show("--config", file, C_SECRET="sehr-geheim")
    assert "mirror.test" in shown
    assert "geheim" not in shown


def test_the_origin_is_told_on_demand(file: str) -> None:
    assert "ORIGIN" in show("--config", file, "--origin")
    assert "ORIGIN" not in show("--config", file)

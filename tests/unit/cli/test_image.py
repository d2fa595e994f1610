"""`tidegate image`: import, list, remove."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.unit.launcher.image.making import file, special, tar
from tidegate.cli.image import cache_folder, image
from tidegate.errors import LaunchError


def run(tmp_path: Path, *words: str) -> tuple[str, str]:
    done = CliRunner().invoke(image, [*words, "--state-dir", str(tmp_path / "state")], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout, done.stderr


def test_an_image_comes_is_listed_and_goes(tmp_path: Path) -> None:
    (tmp_path / "root.tar").write_bytes(tar([file("f", b"x"), special("p", b"6")]))
    digest, said = run(tmp_path, "import", str(tmp_path / "root.tar"), "--name", "base")
    assert len(digest.strip()) == 64
    assert "left out: 1 × FIFO" in said
    [listed] = json.loads(run(tmp_path, "list", "-o", "json")[0])
    assert (listed["names"], listed["digest"]) == (["base"], digest.strip())
    assert (Path(listed["root"]) / "f").read_text() == "x"
    assert "base" in run(tmp_path, "list")[0]
    run(tmp_path, "remove", "base")
    assert json.loads(run(tmp_path, "list", "-o", "json")[0]) == []


def test_what_it_carries_must_be_allowed_by_name(tmp_path: Path) -> None:
    (tmp_path / "root.tar").write_bytes(tar([file("root/.netrc", b"machine h password p")]))
    with pytest.raises(LaunchError, match=r"/root/\.netrc: netrc passwords"):
        run(tmp_path, "import", str(tmp_path / "root.tar"))
    said = run(tmp_path, "import", str(tmp_path / "root.tar"), "--unsafe-allow-carried", "/root/.netrc")[1]
    assert "warning: kept although it looks like a credential: /root/.netrc" in said


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        pytest.param({"XDG_CACHE_HOME": "/c", "HOME": "/h"}, "/c/tidegate", id="given"),
        pytest.param({"XDG_CACHE_HOME": "c", "HOME": "/h"}, "/h/.cache/tidegate", id="relative"),
        pytest.param({"HOME": "/h"}, "/h/.cache/tidegate", id="by custom"),
    ],
)
def test_a_user_who_is_not_root_has_a_store_in_the_cache(environ: dict[str, str], folder: str) -> None:
    assert cache_folder(environ) == Path(folder)

"""The built-in root: which archive it is made from, and what is said where it cannot be had."""

from pathlib import Path

import pytest

from tidegate.errors import LaunchError
from tidegate_launcher.image.minimal import archive_of, minimal

BOOKWORM = 'ID=debian\nVERSION_CODENAME="bookworm"\n'
LINE = (
    "# deb http://old/ bookworm main\ndeb [arch=amd64 signed-by=/k] http://mirror.test/debian bookworm contrib main\n"
)
DEB822 = (
    "Types: deb\nURIs: http://vendor.test/x\nSuites: any\nComponents: main\n\n"
    "Types: deb\n# a remark\nURIs: http://mirror.test/debian\nSuites: bookworm bookworm-updates\nComponents: main\n"
)


def etc(tmp_path: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    "files",
    [
        pytest.param({"apt/sources.list": LINE}, id="one line"),
        pytest.param({"apt/sources.list.d/debian.sources": DEB822}, id="deb822"),
        pytest.param(
            {
                "apt/sources.list.d/a.list": "deb http://vendor.test/ stable main\n",
                "apt/sources.list.d/d.sources": DEB822,
            },
            id="beside a vendor's",
        ),
    ],
)
def test_the_archive_is_the_machines_own(tmp_path: Path, files: dict[str, str]) -> None:
    assert archive_of(etc(tmp_path, {"os-release": BOOKWORM, **files})) == "http://mirror.test/debian"


@pytest.mark.parametrize(
    "files",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"os-release": BOOKWORM, "apt/sources.list.d/d.sources.disabled": DEB822}, id="switched off"),
        pytest.param(
            {"os-release": "ID=ubuntu\nVERSION_CODENAME=noble\n", "apt/sources.list": LINE}, id="another system"
        ),
    ],
)
def test_without_an_archive_it_says_what_to_do(tmp_path: Path, files: dict[str, str]) -> None:
    with pytest.raises(LaunchError, match=r"no source of Debian.*import a root of your own"):
        archive_of(etc(tmp_path, files))


def test_without_the_maker_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError, match=r"no mmdebstrap here.*apt-get install mmdebstrap"), minimal():
        pass


def test_a_maker_that_fails_is_told_in_its_first_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mmdebstrap").write_text(
        "#!/bin/sh\necho 'I: working' >&2\necho 'E: no room' >&2\necho 'E: failed' >&2\nexit 25\n"
    )
    (tmp_path / "mmdebstrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr("tidegate_launcher.image.minimal.archive_of", lambda _: "http://mirror.test/debian")
    said: list[str] = []
    with pytest.raises(LaunchError, match="E: no room"), minimal(said.append):
        pass
    assert said == ["working"]

"""What goes into a sandbox: copied by descriptor, no link followed, nothing that opens the machine."""

import os
import shutil
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tidegate.errors import LaunchError
from tidegate_launcher.files.copying import Bulk
from tidegate_launcher.files.forbidden import Forbidden, forbidden
from tidegate_launcher.files.inputs import copy_in

NOTHING = Forbidden()


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    (folder / "data" / "deep").mkdir(parents=True)
    (folder / "data" / "deep" / "f").write_text("deep")
    (folder / "a.py").write_text("print()")
    (folder / "run.sh").write_text("#!/bin/sh")
    (folder / "run.sh").chmod(0o4777)
    return folder


def test_files_and_folders_are_copied(work: Path, tmp_path: Path) -> None:
    names = copy_in([work / "a.py", work / "run.sh", work / "data"], tmp_path / "in", forbidden=NOTHING)
    assert names == ("a.py", "run.sh", "data")
    assert (tmp_path / "in" / "data" / "deep" / "f").read_text() == "deep"
    modes = [oct((tmp_path / "in" / name).stat().st_mode & 0o7777) for name in names]
    assert modes == ["0o644", "0o755", "0o755"]


def test_the_sandbox_can_read_them_whatever_the_umask(work: Path, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        copy_in([work / "data"], tmp_path / "in", forbidden=NOTHING)
    finally:
        os.umask(before)
    modes = [oct(path.stat().st_mode & 0o777) for path in (tmp_path / "in", *(tmp_path / "in").rglob("*"))]
    assert modes == ["0o755", "0o755", "0o755", "0o644"]


def test_a_relative_path_is_from_here(work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(work)
    assert copy_in([Path("data/deep")], tmp_path / "in", forbidden=NOTHING) == ("deep",)


def _link(path: Path, target: str) -> Path:
    path.symlink_to(target)
    return path


def _socket(path: Path) -> Path:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    return path


def _fifo(path: Path) -> Path:
    os.mkfifo(path)
    return path


def _file(path: Path) -> Path:
    path.write_text("x")
    return path


REFUSED: list[tuple[str, Callable[[Path], Path], str]] = [
    ("S-08 a link", lambda work: _link(work / "l", "/etc/hostname"), "a link on the way"),
    ("S-08 a link to a neighbour", lambda work: _link(work / "l", "a.py"), "a link on the way"),
    ("S-08 a link as a folder on the way", lambda work: _link(work / "l", "data") / "deep", "a link on the way"),
    ("upwards", lambda work: work / "data" / ".." / "a.py", "upwards"),
    ("not there", lambda work: work / "nothing", "cannot be opened"),
    ("socket", lambda work: _socket(work / "s"), "a socket"),
    ("fifo", lambda work: _fifo(work / "p"), "a FIFO"),
    ("device", lambda _: Path("/dev/null"), "a device"),
    ("newline", lambda work: _file(work / "a\nb"), "control"),
    ("escape sequence", lambda work: _file(work / "a\x1b[2J"), "control"),
    ("socket in a folder", lambda work: _socket(work / "data" / "s").parent, "a socket"),
    ("fifo in a folder", lambda work: _fifo(work / "data" / "p").parent, "a FIFO"),
    ("link out of a folder", lambda work: _link(work / "data" / "l", "../a.py").parent, "leads out"),
    ("a name that turns text round", lambda work: _link(work / "data" / "a\u202eb", "/etc").parent, "leads out"),
    ("absolute link in a folder", lambda work: _link(work / "data" / "l", "/etc").parent, "leads out"),
]


@pytest.mark.parametrize(("make", "told"), [pytest.param(make, told, id=name) for name, make, told in REFUSED])
def test_what_is_refused(work: Path, tmp_path: Path, make: Callable[[Path], Path], told: str) -> None:
    with pytest.raises(LaunchError, match=told) as caught:
        copy_in([make(work)], tmp_path / "in", forbidden=NOTHING)
    assert str(caught.value).isprintable()


def test_a_link_that_stays_in_its_folder_is_kept_as_a_link(work: Path, tmp_path: Path) -> None:
    _link(work / "data" / "deep" / "up", "../other")
    copy_in([work / "data"], tmp_path / "in", forbidden=NOTHING)
    assert os.readlink(tmp_path / "in" / "data" / "deep" / "up") == "../other"


def test_two_of_one_name_are_refused(work: Path, tmp_path: Path) -> None:
    (work / "data" / "a.py").write_text("")
    with pytest.raises(LaunchError, match="same name"):
        copy_in([work / "a.py", work / "data" / "a.py"], tmp_path / "in", forbidden=NOTHING)


@pytest.mark.parametrize(
    ("bulk", "told"),
    [
        pytest.param(Bulk(entries=2), "more than 2 entries", id="entries"),
        pytest.param(Bulk(bytes=3), "more than 3 bytes", id="bytes"),
        pytest.param(Bulk(depth=1), "deeper than 1", id="depth"),
    ],
)
def test_the_bounds_hold(work: Path, tmp_path: Path, bulk: Bulk, told: str) -> None:
    with pytest.raises(LaunchError, match=told):
        copy_in([work / "data"], tmp_path / "in", forbidden=NOTHING, bulk=bulk)


def test_a_file_that_grows_without_end_is_bounded(tmp_path: Path) -> None:
    """/dev/zero is a device; a file of /proc has no size and no end that can be known before."""
    with pytest.raises(LaunchError, match="more than 4096 bytes"):
        copy_in([Path("/proc/kallsyms")], tmp_path / "in", forbidden=NOTHING, bulk=Bulk(bytes=4096))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for name in (".ssh", "project", "state/images", "run/docker"):
        (tmp_path / "home" / name).mkdir(parents=True)
    (tmp_path / "home" / "project" / "f").write_text("f")
    _socket(tmp_path / "home" / "run" / "docker" / "docker.sock")
    return tmp_path / "home"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        pytest.param("", "whole home", id="the home folder"),
        pytest.param("..", "whole home", id="what holds the home folder"),
        pytest.param("state", "own state", id="the state"),
        pytest.param("state/images", "own state", id="within the state"),
        pytest.param("run/docker/docker.sock", "engine's socket", id="S-01 an engine's socket"),
        pytest.param("run/docker", "engine's socket", id="S-01 its folder"),
        pytest.param("run", "engine's socket", id="S-01 above its folder"),
    ],
)
def test_what_opens_the_machine_is_refused(home: Path, tmp_path: Path, name: str, told: str) -> None:
    socket_path = home / "run" / "docker" / "docker.sock"
    never = forbidden({"HOME": str(home), "DOCKER_HOST": f"unix://{socket_path}"}, state=(home / "state",))
    given = home.parent if name == ".." else home / name
    with pytest.raises(LaunchError, match=told):
        copy_in([given], tmp_path.parent / f"{tmp_path.name}-in", forbidden=never)


@pytest.mark.parametrize("path", ["/", "/run"])
def test_the_customary_sockets_close_what_holds_them(tmp_path: Path, path: str) -> None:
    with pytest.raises(LaunchError, match="engine's socket"):
        copy_in([Path(path)], tmp_path / "in", forbidden=forbidden({}))


def test_a_folder_of_the_home_may_be_named(home: Path, tmp_path: Path) -> None:
    assert copy_in([home / "project"], tmp_path / "in", forbidden=forbidden({"HOME": str(home)})) == ("project",)


def test_a_swapped_link_never_brings_in_what_it_leads_to(tmp_path: Path) -> None:
    """S-09: while they are copied, a thread puts a link in place of a file and of a folder on the way, and back."""
    secret = tmp_path / "secret"
    (secret / "sub").mkdir(parents=True)
    for path in (secret / "f", secret / "sub" / "f"):
        path.write_text("SECRET")
    work = tmp_path / "work"
    (work / "sub").mkdir(parents=True)
    for path in (work / "f", work / "sub" / "f"):
        path.write_text("plain")
    links = {name: tmp_path / f"link-{name}" for name in ("f", "sub")}
    for name, path in links.items():
        path.symlink_to(secret / name)
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            for name, path in links.items():
                aside = tmp_path / "aside"
                (work / name).rename(aside)
                path.rename(work / name)
                (work / name).rename(path)
                aside.rename(work / name)

    swapping = threading.Thread(target=swap)
    swapping.start()
    seen = {"copied": 0, "refused": 0}
    try:
        for number in range(300):
            target = tmp_path / "in"
            try:
                copy_in([work / "f", work / "sub" / "f", work][number % 3 : number % 3 + 1], target, forbidden=NOTHING)
                seen["copied"] += 1
            except LaunchError:
                seen["refused"] += 1
            texts = [path.read_text() for path in target.rglob("f") if path.is_file() and not path.is_symlink()]
            assert "SECRET" not in texts
            shutil.rmtree(target)
    finally:
        over.set()
        swapping.join()
    assert all(seen.values()), seen

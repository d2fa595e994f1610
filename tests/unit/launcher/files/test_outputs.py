"""What comes out of a sandbox: a stranger's files, one by one (S-10)."""

import os
import tarfile
from pathlib import Path

import pytest

from tests.unit.launcher.image.making import Row, file, folder, hard, link, listing, source, special, tar
from tidegate.errors import LaunchError
from tidegate_launcher.files.copying import Bulk
from tidegate_launcher.files.outputs import Collected, collect, collect_tar


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A folder as a sandbox may leave it."""
    folder_of = tmp_path / "made"
    (folder_of / "plots").mkdir(parents=True)
    (folder_of / "plots" / "one.svg").write_text("<svg/>")
    (folder_of / "result.json").write_text("{}")
    (folder_of / "run").write_text("#!/bin/sh")
    (folder_of / "run").chmod(0o4755)
    return folder_of


def collected(made: Path, out: Path, *, bulk: Bulk | None = None, overwrite: bool = False) -> Collected:
    descriptor = os.open(made, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return collect(descriptor, out, bulk=bulk, overwrite=overwrite)
    finally:
        os.close(descriptor)


def test_files_come_out_and_none_can_be_run(made: Path, tmp_path: Path) -> None:
    got = collected(made, tmp_path / "out")
    assert got.untrusted_paths == ("plots/one.svg", "result.json", "run")
    assert (got.bytes, got.refused) == (17, ())
    modes = {oct(path.stat().st_mode & 0o7777) for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert modes == {"0o644"}


def test_what_is_no_file_is_refused_by_itself(made: Path, tmp_path: Path) -> None:
    (made / "passwd").symlink_to("/etc/passwd")
    (made / "etc").symlink_to("/etc")
    os.mkfifo(made / "pipe")
    got = collected(made, tmp_path / "out")
    reasons = {one.untrusted_path: one.reason for one in got.refused}
    assert reasons == {"passwd": "it is a link", "etc": "it is a link", "pipe": "it is a FIFO"}
    assert set(listing(tmp_path / "out")) == {"plots", "plots/one.svg", "result.json", "run"}


@pytest.mark.parametrize(
    ("name", "told"),
    [
        pytest.param("a\nb", "not printable", id="newline"),
        pytest.param("a\x1b[2Jb", "not printable", id="escape sequence"),
        pytest.param("a\u202eb", "not printable", id="text turned round"),
        pytest.param("a\x9bb", "not printable", id="C1 control"),
        pytest.param(os.fsdecode(b"a\xff"), "no UTF-8", id="no UTF-8"),
        pytest.param(".bashrc", "hidden", id="hidden"),
        pytest.param("-rf", "option", id="dash"),
        pytest.param("n" * 201, "too long", id="long"),
    ],
)
def test_a_name_that_does_something_is_refused(made: Path, tmp_path: Path, name: str, told: str) -> None:
    (made / name).write_text("x")
    (made / f"{'' if name[0] in '.-' else 'z'}{name}folder"[:250]).mkdir()
    got = collected(made, tmp_path / "out")
    assert told in got.refused[0].reason
    assert all(one.untrusted_path.isprintable() for one in got.refused)
    assert {"result.json", "run"} <= set(got.untrusted_paths)


def test_what_is_there_stays_unless_told(made: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "run").write_text("mine")
    assert [one.untrusted_path for one in collected(made, out).refused] == ["run"]
    assert (out / "run").read_text() == "mine"
    assert collected(made, out, overwrite=True).refused == ()
    assert (out / "run").read_text() == "#!/bin/sh"


def test_a_link_in_the_users_folder_is_never_written_through(made: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "f").write_text("mine")
    out = tmp_path / "out"
    out.mkdir()
    (out / "run").symlink_to(elsewhere / "f")
    (out / "plots").symlink_to(elsewhere)
    got = collected(made, out, overwrite=True)
    assert [one.untrusted_path for one in got.refused] == ["plots"]
    assert listing(elsewhere) == {"f": "mine"}
    assert (out / "run").read_text() == "#!/bin/sh"


def test_a_link_as_the_users_folder_is_refused(made: Path, tmp_path: Path) -> None:
    """S-08: an earlier run may have left it."""
    (tmp_path / "real").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "real")
    for out in (tmp_path / "out", tmp_path / "out" / "below"):
        with pytest.raises(LaunchError, match="link in its path"):
            collected(made, out)
    assert listing(tmp_path / "real") == {}


@pytest.mark.parametrize(
    ("bulk", "told"),
    [
        pytest.param(Bulk(entries=2), "more than 2 entries", id="entries"),
        pytest.param(Bulk(bytes=7), "more than 7 bytes", id="bytes"),
    ],
)
def test_past_a_bound_nothing_more_is_looked_at(made: Path, tmp_path: Path, bulk: Bulk, told: str) -> None:
    got = collected(made, tmp_path / "out", bulk=bulk)
    assert got.cut_short
    assert told in got.refused[0].reason
    assert got.refused_count == 1
    assert set(listing(tmp_path / "out")) == {"plots", "plots/one.svg"}


def test_a_folder_that_is_too_deep_is_left(made: Path, tmp_path: Path) -> None:
    assert collected(made, tmp_path / "out", bulk=Bulk(depth=0)).cut_short


ROWS: list[Row] = [
    file("good", b"1"),
    folder("d"),
    file("d/too", b"2"),
    file("../up", b"x"),
    file("/abs", b"x"),
    link("l", "/etc/passwd"),
    hard("h", "../../etc/passwd"),
    special("dev", tarfile.CHRTYPE),
    special("p", tarfile.FIFOTYPE),
    file("e\x1b[2J", b"x"),
    file(".ssh/authorized_keys", b"x"),
]


def test_a_tar_is_unpacked_by_the_confined_process_and_refused_one_by_one(tmp_path: Path) -> None:
    got = collect_tar(source(tar(ROWS)), tmp_path / "out", scratch=tmp_path)
    assert listing(tmp_path / "out") == {"d": "/", "d/too": "2", "good": "1"}
    refused = {one.untrusted_path for one in got.refused}
    assert {"../up", "/abs", "h", ".ssh"} <= refused
    assert got.refused_count >= 8
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_an_image_archive_is_only_files_here(tmp_path: Path) -> None:
    collect_tar(source(tar([file("index.json", b"{}")])), tmp_path / "out", scratch=tmp_path)
    assert listing(tmp_path / "out") == {"index.json": "{}"}

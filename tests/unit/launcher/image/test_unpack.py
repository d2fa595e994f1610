"""Hostile and plain tars, each unpacked by the real confined process (S-10)."""

import contextlib
import gzip
import io
import lzma
import os
import stat
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from backports import zstd

from tests.unit.launcher.image.making import (
    SMALL,
    Row,
    file,
    folder,
    hard,
    link,
    listing,
    source,
    special,
    tar,
    unpacked,
)
from tidegate.errors import LaunchError
from tidegate_launcher.image.caps import Caps
from tidegate_launcher.image.report import Orders
from tidegate_launcher.image.unpack import unpack

ROOT = [
    folder("etc"),
    file("etc/passwd", b"root"),
    link("bin", "usr/bin"),
    folder("usr/bin"),
    file("usr/bin/sh", b"#!", 0o755),
]


@pytest.mark.parametrize(
    "pack",
    [
        pytest.param(bytes, id="plain"),
        pytest.param(gzip.compress, id="gz"),
        pytest.param(lzma.compress, id="xz"),
        pytest.param(zstd.compress, id="zst"),
    ],
)
def test_a_root_is_what_the_tar_says(tmp_path: Path, pack: object) -> None:
    assert callable(pack)
    report = unpacked(pack(tar(ROOT)), tmp_path / "s")
    expected = {"bin": "-> usr/bin", "etc": "/", "etc/passwd": "root", "usr": "/", "usr/bin": "/", "usr/bin/sh": "#!"}
    assert listing(tmp_path / "s" / "root") == expected
    assert report.bytes == 6


REFUSED: list[tuple[str, list[Row], str]] = [
    ("dot dot", [file("../out", b"x")], "leads out"),
    ("dot dot within", [file("etc/../../out", b"x")], "leads out"),
    ("absolute", [file("/etc/cron.d/x", b"x")], "absolute"),
    ("hard link out", [hard("h", "../../etc/passwd")], "leads out"),
    ("hard link absolute", [hard("h", "/etc/passwd")], "absolute"),
    ("hard link to nothing", [hard("h", "nothing")], "hard link"),
    ("hard link through a link out", [link("a", "/etc"), hard("h", "a/passwd")], "hard link"),
    ("links that go round", [link("a", "b"), link("b", "a"), file("a/x", b"x")], "lead round"),
    ("a link that deepens itself", [folder("d"), link("d/e", "../d/" + "x/" * 19), file("d/e/y/z", b"")], "too deep"),
    ("below a file", [file("f", b"x"), file("f/g", b"x")], "below a file"),
    ("newline", [file("a\nb", b"x")], "control"),
    ("escape sequence", [file("a\x1b]52;c;x\x07", b"x")], "control"),
    ("C1 control", [file("a\x9bb", b"x")], "control"),
    ("too long a part", [file("n" * 256, b"x")], "too long"),
    ("too long a path", [file("/".join(["n" * 200] * 21), b"x")], "too long"),
    ("too deep", [file("/".join(["n"] * 21), b"x")], "deeper"),
    ("too many", [file(f"f{number}") for number in range(201)], "more than 200 entries"),
    ("too large", [file("f", bytes(range(256)) * 16385)], "more than"),
    ("empty link", [link("l", "")], "no path"),
    ("unknown kind", [special("x", b"V")], "unknown kind"),
]


@pytest.mark.parametrize(("rows", "told"), [pytest.param(rows, told, id=name) for name, rows, told in REFUSED])
def test_a_hostile_entry_is_refused(tmp_path: Path, rows: list[Row], told: str) -> None:
    with pytest.raises(LaunchError, match=told) as caught:
        unpacked(tar(rows), tmp_path / "s", caps=SMALL)
    assert str(caught.value).isprintable()  # S-22: what is told on a terminal does not drive it
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s"]


def test_a_name_with_a_nul_is_refused(tmp_path: Path) -> None:
    data = tar([file("x" * 120 + "Z", b"x")]).replace(b"x" * 120 + b"Z", b"x" * 120 + b"\0")
    with pytest.raises(LaunchError, match=r"control character|no whole tar"):
        unpacked(data, tmp_path / "s")


def test_a_link_out_is_followed_inside_as_the_sandbox_would(tmp_path: Path) -> None:
    """«Symlink, then write through it»: the file lands below the root, for the link's `/` is the root."""
    outside = tmp_path / "outside"
    outside.mkdir()
    rows = [link("a", str(outside)), file("a/x", b"1"), link("b", "../../../../b2"), file("b/y", b"2")]
    unpacked(tar(rows), tmp_path / "s")
    assert list(outside.iterdir()) == []
    assert (tmp_path / "s" / "root" / str(outside)[1:] / "x").read_text() == "1"
    assert (tmp_path / "s" / "root" / "b2" / "y").read_text() == "2"


def test_a_file_never_writes_through_a_link_or_a_hard_link_of_its_name(tmp_path: Path) -> None:
    rows = [file("kept", b"old"), hard("h", "kept"), file("h", b"new"), link("l", "kept"), file("l", b"new")]
    unpacked(tar(rows), tmp_path / "s")
    assert listing(tmp_path / "s" / "root") == {"h": "new", "kept": "old", "l": "new"}


def test_the_later_of_two_entries_holds(tmp_path: Path) -> None:
    rows = [folder("d"), file("d/inner"), file("f", b"one"), file("f", b"two"), file("d", b"now a file"), folder("f")]
    unpacked(tar(rows), tmp_path / "s")
    assert listing(tmp_path / "s" / "root") == {"d": "now a file", "f": "/"}


def test_devices_and_fifos_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = [special("dev/null", tarfile.CHRTYPE), special("dev/sda", tarfile.BLKTYPE), special("p", tarfile.FIFOTYPE)]
    report = unpacked(tar([*rows, file("f")]), tmp_path / "s")
    assert report.left_out == {"device": 2, "FIFO": 1}
    assert list(listing(tmp_path / "s" / "root")) == ["f"]


def test_no_right_to_gain_or_to_write_is_kept(tmp_path: Path) -> None:
    """S-12: no set-uid, set-gid or sticky bit; nothing that others may write; the owner can always read."""
    rows = [
        file("su", b"", 0o4777),
        file("sg", b"", 0o2777),
        folder("tmp", 0o1777),
        folder("shut", 0),
        file("none", b"", 0),
    ]
    unpacked(tar(rows), tmp_path / "s")
    root = tmp_path / "s" / "root"
    modes = {path.name: oct(stat.S_IMODE(path.stat().st_mode)) for path in root.iterdir()}
    assert modes == {"su": "0o755", "sg": "0o755", "tmp": "0o755", "shut": "0o700", "none": "0o400"}


def test_a_files_time_stays_for_compiled_modules(tmp_path: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as made:
        for name, moment in (("then", 1_000_000_000), ("before", -5)):
            entry = tarfile.TarInfo(name)
            entry.mtime = moment
            made.addfile(entry)
    unpacked(out.getvalue(), tmp_path / "s")
    root = tmp_path / "s" / "root"
    assert ((root / "then").stat().st_mtime, (root / "before").stat().st_mtime) == (1_000_000_000, 0)


def test_a_bomb_is_refused_by_its_ratio(tmp_path: Path) -> None:
    data = gzip.compress(tar([file("zeros", bytes(96 * 1024 * 1024))]), 9)
    with pytest.raises(LaunchError, match="decompression bomb"):
        unpacked(data, tmp_path / "s", caps=Caps(ratio=100))


def test_a_bomb_in_a_header_is_refused(tmp_path: Path) -> None:
    head = tarfile.TarInfo("x")
    head.type, head.size = tarfile.XHDTYPE, 1 << 40
    with pytest.raises(LaunchError, match="header"):
        unpacked(head.tobuf(tarfile.GNU_FORMAT) + bytes(10240), tmp_path / "s")


def test_a_million_entries_end_at_the_cap(tmp_path: Path) -> None:
    one = tar([file("f")])[:512]
    began = time.monotonic()
    with pytest.raises(LaunchError, match="more than 1000 entries"):
        unpacked(gzip.compress(one * 1_000_000, 1), tmp_path / "s", caps=Caps(entries=1000, ratio=10_000))
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("data", "told"),
    [
        pytest.param(b"", "no entry|no whole tar", id="nothing"),
        pytest.param(b"no tar at all" * 100, "no whole tar", id="no tar"),
        pytest.param(bytes(10240), "no entry", id="an end alone"),
        pytest.param(tar([file("f", b"x" * 2000)])[:1024], "ends within|no whole tar|unexpected", id="cut in a file"),
        pytest.param(tar(ROOT)[: 512 * 2], "no whole tar", id="cut between entries"),
        pytest.param(tar([file("f")])[:512] + b"\1" * 512 + bytes(1024), "no whole tar", id="a broken header later"),
        pytest.param(gzip.compress(tar(ROOT))[:-20], "broken", id="gz cut"),
        pytest.param(b"\x28\xb5\x2f\xfdgarbage", "broken", id="zst broken"),
    ],
)
def test_half_an_archive_is_none(tmp_path: Path, data: bytes, told: str) -> None:
    with pytest.raises(LaunchError, match=told):
        unpacked(data, tmp_path / "s")


def test_a_sparse_file_is_refused(tmp_path: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as made:
        entry = tarfile.TarInfo("sparse")
        entry.size = 4
        entry.pax_headers = {"GNU.sparse.map": "0,1,8589934591,1", "GNU.sparse.size": "8589934592"}
        made.addfile(entry, io.BytesIO(b"abcd"))
    with pytest.raises(LaunchError, match="sparse"):
        unpacked(out.getvalue(), tmp_path / "s")


def test_a_source_that_hangs_is_ended(tmp_path: Path) -> None:
    reader, writer = os.pipe()

    @contextlib.contextmanager
    def slow() -> Iterator[Iterator[bytes]]:
        try:
            yield iter(lambda: os.read(reader, 1), b"")
        finally:
            os.close(writer)

    folder_of = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(LaunchError, match="over 1 s"):
        unpack(slow(), Orders(folder=folder_of), seconds=1)
    os.close(folder_of)
    os.close(reader)


def test_a_source_that_fails_is_told_as_it_is(tmp_path: Path) -> None:
    def failing() -> Iterator[bytes]:
        yield tar(ROOT)[:512]
        raise LaunchError("the engine cannot save the image")

    folder_of = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(LaunchError, match="the engine cannot save"):
        unpack(contextlib.nullcontext(failing()), Orders(folder=folder_of), seconds=30)
    os.close(folder_of)


def test_progress_is_told(tmp_path: Path) -> None:
    told: list[int] = []
    folder_of = os.open(tmp_path, os.O_RDONLY)

    def chunks() -> Iterator[bytes]:
        data = tar(ROOT)
        yield data[:512]
        end = time.monotonic() + 30
        while not told and time.monotonic() < end:
            yield b""
        yield data[512:]

    unpack(contextlib.nullcontext(chunks()), Orders(folder=folder_of), progress=told.append)
    os.close(folder_of)
    assert told[0] == 512


def test_files_of_a_sandbox_are_refused_one_by_one(tmp_path: Path) -> None:
    rows = [file("good", b"1"), file("../bad", b"2"), file("/abs", b"3"), hard("h", "nothing"), file("better", b"4")]
    report = unpacked(tar(rows), tmp_path / "s", kind="files")
    assert listing(tmp_path / "s" / "root") == {"better": "4", "good": "1"}
    assert [one.path for one in report.refused] == ["../bad", "/abs", "h"]


def test_the_archive_is_given_as_a_stream(tmp_path: Path) -> None:
    data = tar(ROOT)
    folder_of = os.open(tmp_path, os.O_RDONLY)
    with source(data):
        unpack(contextlib.nullcontext(iter([data[:100], data[100:700], data[700:]])), Orders(folder=folder_of))
    os.close(folder_of)
    assert (tmp_path / "root" / "etc" / "passwd").read_text() == "root"

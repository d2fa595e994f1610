"""The kernel that was fetched: taken only while it is what was recorded."""

import hashlib
from pathlib import Path

import msgspec
import pytest

from tidegate.errors import LaunchError
from tidegate_launcher.microvm.kernel import RECORD, Recorded, find_kernel, kernel_folder

PARTS = {"vmlinuz": b"kernel", "busybox": b"busy", "one.ko": b"1", "two.ko": b"2", "net.ko": b"3"}


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    environ = {"TIDEGATE_CACHE": str(tmp_path)}
    folder = kernel_folder(environ)
    folder.mkdir()
    for name, data in PARTS.items():
        (folder / name).write_bytes(data)
    recorded = Recorded(
        release="6.1", packages=("p",), modules=("two.ko", "one.ko"), network=("net.ko",),
        sha256={name: hashlib.sha256(data).hexdigest() for name, data in PARTS.items()},
    )  # fmt: skip
    (folder / RECORD).write_bytes(msgspec.json.encode(recorded))
    return environ


def test_what_was_recorded_is_found_with_its_modules_in_order(environ: dict[str, str]) -> None:
    found = find_kernel(environ)
    assert (found.path.read_bytes(), found.busybox) == (b"kernel", b"busy")
    assert (found.modules, found.network) == ((b"2", b"1"), (b"3",))


@pytest.mark.parametrize("name", PARTS)
def test_a_part_that_was_changed_or_is_gone_is_refused(environ: dict[str, str], name: str) -> None:
    path = kernel_folder(environ) / name
    path.write_bytes(b"other")
    with pytest.raises(LaunchError, match="not what was fetched"):
        find_kernel(environ)
    path.unlink()
    with pytest.raises(LaunchError, match="is gone"):
        find_kernel(environ)


def test_without_one_it_says_how_to_get_one(environ: dict[str, str], tmp_path: Path) -> None:
    (kernel_folder(environ) / RECORD).write_text("{")
    with pytest.raises(LaunchError, match="record cannot be read"):
        find_kernel(environ)
    with pytest.raises(LaunchError, match="no kernel") as fault:
        find_kernel({"TIDEGATE_CACHE": str(tmp_path / "none")})
    assert "make setup" in fault.value.hint

"""What the set-up keeps of the packages that a machine's kernel comes in."""

import importlib.util
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidegate.errors import LaunchError
from tidegate_launcher.microvm.kernel import MODULES, NETWORK, Recorded, find_kernel, kernel_folder

TOOL = Path(__file__).parents[3] / "tools" / "microvm_record.py"


@pytest.fixture(scope="module")
def adopt() -> Callable[..., Recorded]:
    spec = importlib.util.spec_from_file_location("microvm_record", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.adopt  # type: ignore[no-any-return]


def _unpacked(folder: Path, *, packed: bool, without: str = "") -> Path:
    modules = folder / "usr" / "lib" / "modules" / "6.1.0-cloud" / "kernel"
    for name in (*MODULES, *NETWORK):
        if name == without:
            continue
        path = modules / f"{name}.ko{'.xz' if packed else ''}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(lzma.compress(name.encode()) if packed else name.encode())
    for name in ("boot/vmlinuz-6.1.0-cloud", "bin/busybox"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(name.encode())
    return folder


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "xz"])
def test_a_kernel_that_was_adopted_is_found_with_its_modules(
    adopt: Callable[..., Recorded], tmp_path: Path, *, packed: bool
) -> None:
    environ = {"TIDEGATE_CACHE": str(tmp_path / "cache")}
    recorded = adopt(_unpacked(tmp_path, packed=packed), ("one", "two"), kernel_folder(environ))
    found = find_kernel(environ)
    assert (recorded.release, recorded.packages) == ("6.1.0-cloud", ("one", "two"))
    assert found.modules == tuple(name.encode() for name in MODULES)
    assert found.network == tuple(name.encode() for name in NETWORK)
    assert found.busybox == b"bin/busybox"


def test_a_module_that_the_kernel_has_built_in_is_not_missed(adopt: Callable[..., Recorded], tmp_path: Path) -> None:
    environ = {"TIDEGATE_CACHE": str(tmp_path / "cache")}
    adopt(_unpacked(tmp_path, packed=False, without=MODULES[0]), (), kernel_folder(environ))
    assert find_kernel(environ).modules == tuple(name.encode() for name in MODULES[1:])


def test_packages_without_a_kernel_are_refused(adopt: Callable[..., Recorded], tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="no kernel"):
        adopt(tmp_path, (), tmp_path / "cache")

"""What a machine starts with: Debian's kernel for clouds, the modules that it needs here, and busybox.

The set-up fetches them once (`tools/microvm.sh`) and writes down what they are; a launch takes only what is still that.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from tidegate.errors import LaunchError
from tidegate_launcher.cache import cache_folder

__all__ = ["BUSYBOX", "MODULES", "NETWORK", "RECORD", "VMLINUZ", "Kernel", "Recorded", "find_kernel", "kernel_folder"]

VMLINUZ: Final = "vmlinuz"
BUSYBOX: Final = "busybox"
RECORD: Final = "kernel.json"
MODULES: Final = (
    "drivers/virtio/virtio_ring", "drivers/virtio/virtio", "drivers/virtio/virtio_pci_legacy_dev",
    "drivers/virtio/virtio_pci_modern_dev", "drivers/virtio/virtio_pci", "drivers/block/virtio_blk",
    "drivers/char/virtio_console", "fs/overlayfs/overlay",
)  # fmt: skip
"""In the order in which they are loaded; what a kernel has built in is no file, and is not missed."""
NETWORK: Final = ("net/core/failover", "drivers/net/net_failover", "drivers/net/virtio_net")
"""Beside them, where there is a network."""
_HINT: Final = "as root on Debian: tools/microvm.sh fetches it, as `make setup` does"


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """What was fetched: the kernel's release, the packages it is from, and the SHA-256 of each file in the folder.

    The modules are in the order in which they are loaded; `network` are loaded after the rest, where there is one.
    """

    release: str
    packages: tuple[str, ...]
    modules: tuple[str, ...]
    network: tuple[str, ...]
    sha256: dict[str, str]


class Kernel(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel that was found and is what was recorded; its modules as in the record."""

    path: Path
    busybox: bytes
    modules: tuple[bytes, ...]
    network: tuple[bytes, ...]
    recorded: Recorded


def kernel_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder that the set-up fetches into."""
    return cache_folder(environ) / "microvm"


def find_kernel(environ: Mapping[str, str]) -> Kernel:
    """Return the kernel, every hash checked. Raises `LaunchError`."""
    folder = kernel_folder(environ)
    try:
        recorded = msgspec.json.decode((folder / RECORD).read_bytes(), type=Recorded)
    except OSError as fault:
        raise LaunchError(
            f"there is no kernel for a machine: {fault.strerror}", where=str(folder), hint=_HINT
        ) from fault
    except msgspec.DecodeError as fault:
        raise LaunchError("the kernel's record cannot be read", where=str(folder / RECORD), hint=_HINT) from fault
    _checked(folder, VMLINUZ, recorded)
    return Kernel(
        path=folder / VMLINUZ,
        busybox=_checked(folder, BUSYBOX, recorded),
        modules=tuple(_checked(folder, name, recorded) for name in recorded.modules),
        network=tuple(_checked(folder, name, recorded) for name in recorded.network),
        recorded=recorded,
    )


def _checked(folder: Path, name: str, recorded: Recorded) -> bytes:
    path = folder / name
    try:
        data = path.read_bytes()
    except OSError as fault:
        raise LaunchError(f"a part of the kernel is gone: {fault.strerror}", where=str(path), hint=_HINT) from fault
    if hashlib.sha256(data).hexdigest() != recorded.sha256.get(name):
        raise LaunchError("a part of the kernel is not what was fetched", where=str(path), hint=f"remove it; {_HINT}")
    return data

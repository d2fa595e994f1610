"""Which kernel the boundary «microvm» starts: takes what it needs out of unpacked packages, and has it run here.

microvm_record.py UNPACKED PACKAGE…     fills the folder of the cache; exit 1, and why, when no machine comes up
microvm_record.py --told                prints the record on one line; exit 1 when there is none
"""

import hashlib
import lzma
import os
import sys
import time
from pathlib import Path

import msgspec

from tidegate.errors import LaunchError
from tidegate_launcher.microvm.kernel import (
    BUSYBOX,
    MODULES,
    NETWORK,
    RECORD,
    VMLINUZ,
    Recorded,
    find_kernel,
    kernel_folder,
)
from tidegate_launcher.microvm.qemu import find_qemu, try_machine

__all__ = ["adopt", "told"]


def adopt(unpacked: Path, packages: tuple[str, ...], folder: Path) -> Recorded:
    """Copy the kernel, its modules and busybox into a folder, and write down what they are. Raises `LaunchError`."""
    kernel = next(iter(sorted((unpacked / "boot").glob("vmlinuz-*"))), None)
    if kernel is None:
        raise LaunchError("the packages hold no kernel", where=str(unpacked))
    release = kernel.name.removeprefix("vmlinuz-")
    modules = next(unpacked.glob(f"**/lib/modules/{release}/kernel"))
    parts = {VMLINUZ: kernel.read_bytes(), BUSYBOX: next(unpacked.glob("**/bin/busybox")).read_bytes()}
    drivers, network = _taken(modules, MODULES), _taken(modules, NETWORK)
    parts |= drivers | network
    folder.mkdir(parents=True, exist_ok=True)
    for file, data in parts.items():
        fresh = folder / f".{file}"
        fresh.write_bytes(data)
        fresh.rename(folder / file)
    recorded = Recorded(
        release=release,
        packages=packages,
        modules=tuple(drivers),
        network=tuple(network),
        sha256={name: hashlib.sha256(data).hexdigest() for name, data in parts.items()},
    )
    (folder / f".{RECORD}").write_bytes(msgspec.json.encode(recorded))
    (folder / f".{RECORD}").rename(folder / RECORD)
    return recorded


def _taken(folder: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    found = {}
    for name in names:
        plain, packed = folder / f"{name}.ko", folder / f"{name}.ko.xz"
        if plain.exists():
            found[plain.name] = plain.read_bytes()
        elif packed.exists():
            found[plain.name] = lzma.decompress(packed.read_bytes())
    return found


def told(recorded: Recorded) -> str:
    """Return a record on one line."""
    return f"{recorded.release} ({', '.join(recorded.packages)}), sha256 {recorded.sha256[VMLINUZ][:16]}…"


def main() -> int:
    """Do what the arguments say."""
    try:
        if sys.argv[1] == "--told":
            print(told(find_kernel(os.environ).recorded))
            return 0
        folder = kernel_folder(os.environ)
        adopt(Path(sys.argv[1]), tuple(sys.argv[2:]), folder)
        begun = time.monotonic()
        try:
            try_machine(find_qemu(), find_kernel(os.environ), "tcg")
        except LaunchError:
            (folder / RECORD).unlink()
            raise
        print(f"a machine came up and ended in {time.monotonic() - begun:.1f} s, emulated")
    except LaunchError as fault:
        print(f"! {fault}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

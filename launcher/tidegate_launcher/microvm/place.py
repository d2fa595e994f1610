"""The place in which QEMU runs: in its control group first, then with nothing to see but what it is made of.

One small shell script, in a mount namespace of its own. It makes

- a tmpfs for what a machine leaves of /work, as large as that can be;
- a root for QEMU: /usr, read-only, the kernel, the machine's first root, /dev/null, and KVM if that is used.

Then it takes that root, lets go of the host's, and gives root up for good, in a user namespace without a network, in
which QEMU sees no process but itself. What it reads and writes beside are descriptors.
"""

import os
import stat
from pathlib import Path
from typing import Final

from tidegate.errors import LaunchError
from tidegate_launcher.job import GUEST_GID, GUEST_UID, Limits
from tidegate_launcher.microvm.qemu import KVM
from tidegate_launcher.program import find_program
from tidegate_launcher.stage import JOIN, WAIT, Stage, inodes, joining

__all__ = ["ERR", "INITRD", "KERNEL", "LEFT", "LEFT_NAME", "OUT", "left_bytes", "wrapped"]

KERNEL: Final = "/vm/kernel"
INITRD: Final = "/vm/initrd"
"""Where QEMU finds them."""
LEFT, OUT, ERR = 7, 8, 9
"""Descriptors that QEMU has beside what it is passed: for what is left of /work, and doubles of its streams."""
LEFT_NAME: Final = "left.tar"

_ENTRY_BYTES: Final = 4 * 512
"""Of a tar, besides a file's bytes: its header, a long name's, and what fills the last block."""
_MAKE: Final = """
stage=$1 size=$2 kernel=$3 kvm=$4 owner=$5
shift 5
at=$stage/place
root=$at/root
mount -t tmpfs -o size=1m,nr_inodes=1k,mode=0755,nosuid tmpfs "$at"
mkdir "$at/disk" "$root"
mount -t tmpfs -o "size=$size,nr_inodes=16,mode=0700,nosuid,nodev,noexec" tmpfs "$at/disk"
mkdir -m 0700 "$at/disk/work"
exec 7>"$at/disk/work/left.tar"
mount --bind "$root" "$root"
mkdir "$root/usr" "$root/etc" "$root/dev" "$root/proc" "$root/vm" "$root/old"
mount --bind /usr "$root/usr"
mount -o remount,bind,ro,nosuid,nodev "$root/usr"
for each in bin sbin lib lib32 lib64 libx32; do
    if [ -L "/$each" ]; then
        cp -P "/$each" "$root/$each"
    elif [ -d "/$each" ]; then
        mkdir "$root/$each"
        mount --bind "/$each" "$root/$each"
        mount -o remount,bind,ro,nosuid,nodev "$root/$each"
    fi
done
cp /etc/ld.so.cache "$root/etc"
: >"$root/vm/kernel"
: >"$root/vm/initrd"
mount --bind "$kernel" "$root/vm/kernel"
mount --bind "$stage/initrd" "$root/vm/initrd"
mknod -m 0666 "$root/dev/null" c 1 3
if [ "$kvm" != no ]; then
    mknod -m 0600 "$root/dev/kvm" c "${kvm%:*}" "${kvm#*:}"
    chown "$owner" "$root/dev/kvm"
fi
mount --bind /proc "$root/proc"
"""
_BEGIN: Final = """
cd "$root"
pivot_root . old
umount -l old
rmdir old
cd /
mount -o remount,bind,ro,nosuid /
exec "$@" 8>&1 9>&2
"""


def wrapped(
    stage: Stage, limits: Limits, kernel: Path, *, kvm: bool, groups: tuple[Path, ...], command: list[str]
) -> list[str]:
    """Return what starts QEMU in its place; it dies with the thread that starts it. Raises `LaunchError`."""
    owner = f"{GUEST_UID}:{GUEST_GID}"
    return [
        find_program("setpriv"), "--pdeathsig", "KILL", "--",
        find_program("unshare"), "--mount", "--propagation=slave", "--",
        find_program("sh"), "-c", JOIN + _MAKE + WAIT + _BEGIN, *joining(groups),
        str(stage.folder), str(left_bytes(limits)), str(kernel), _device() if kvm else "no", owner,
        "setpriv", f"--reuid={GUEST_UID}", f"--regid={GUEST_GID}", "--clear-groups", "--inh-caps=-all",
        "--no-new-privs", "--",
        "unshare", "--user", "--map-current-user", "--mount", "--net", "--ipc", "--uts", "--pid", "--fork",
        "--kill-child=KILL", "--mount-proc", "--",
        *command,
    ]  # fmt: skip


def left_bytes(limits: Limits) -> int:
    """Return how large a tar of all that fits the disk may be."""
    return limits.disk_bytes + inodes(limits) * _ENTRY_BYTES + 1024 * 1024


def _device() -> str:
    try:
        found = os.stat(KVM)
    except OSError as fault:
        raise LaunchError("there is no KVM on this machine", where=str(KVM)) from fault
    if not stat.S_ISCHR(found.st_mode):
        raise LaunchError("that is no device", where=str(KVM))
    return f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}"

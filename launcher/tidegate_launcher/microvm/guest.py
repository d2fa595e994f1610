"""What a machine unpacks as its first root: busybox, the modules, what the sandbox is given, and the first process.

The first process is a shell script. It makes the sandbox out of the kernel's own means, runs the command in it as
nobody, and says on the port `word`, which no command can open, what became of it:

| word | |
|---|---|
| `up` | all stands, the command is next |
| `absent` | there is no such program |
| `end CODE OOM BLOCKS INODES` | it ended; how often memory ran out, and what is left of the disk |

`out`, `err` and `in` are the command's streams, `left` takes a tar of /work. It is all a stranger's word: the host
holds the machine by limits of its own.
"""

import posixpath
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from tidegate_launcher.job import GUEST_GID, GUEST_UID, WORK, Job
from tidegate_launcher.microvm.cpio import Archive
from tidegate_launcher.microvm.kernel import Kernel
from tidegate_launcher.net.landing import GATE, SANDBOX
from tidegate_launcher.stage import inodes

__all__ = ["PORTS", "write_guest", "write_trial"]

PORTS: Final = ("word", "in", "out", "err", "left")
_TOOLS: Final = (
    "cat", "chown", "chroot", "hostname", "insmod", "ip", "ln", "mkdir", "mkfifo", "mknod", "mount", "poweroff", "rm",
    "sleep", "stat", "tar", "umount", "usleep",
)  # fmt: skip
_FOLDERS: Final = ("bin", "dev", "disk", "flow", "given", "lift", "lower", "modules", "network", "proc", "root", "sys")
_BLOCK: Final = 512

_START: Final = """#!/bin/busybox sh
set -eu
PATH=/bin
for each in /modules/*; do insmod "$each"; done
mount -t devtmpfs devtmpfs /dev
mount -t proc proc /proc
mount -t sysfs sysfs /sys
ports() { for each in word in out err left; do [ -e "/dev/port.$each" ] || return 1; done; }
tries=0
until ports; do
    tries=$((tries + 1))
    [ $tries -lt 1000 ]
    usleep 5000
    for each in /sys/class/virtio-ports/*; do
        name=
        [ ! -e "$each/name" ] || read -r name <"$each/name" || true
        [ -z "$name" ] || ln -sf "/dev/${each##*/}" "/dev/port.$name"
    done
done
exec 9>/dev/port.word
"""
_TRIAL: Final = """
echo up >&9
poweroff -f
"""
_RUN: Final = """
exec 2>/dev/port.err
trap 'poweroff -f' EXIT
. /job
hostname "$hostname"
ip link set lo up
if [ "$net" = veth ]; then
    for each in /network/*; do insmod "$each"; done
    echo 0 >/proc/sys/net/ipv6/conf/eth0/accept_ra
    echo 0 >/proc/sys/net/ipv6/conf/eth0/accept_dad
    echo 1 >/proc/sys/net/ipv6/conf/eth0/addr_gen_mode
    ip address add "$four/30" dev eth0
    ip address add "$six/126" dev eth0
    ip link set eth0 up
    ip route add default via "$gate_four" dev eth0
    ip -6 route add default via "$gate_six" dev eth0
fi
mount -t ext4 -o ro,nosuid,nodev /dev/vda /lower
mount -t tmpfs -o size=1m,nr_inodes=4k,mode=0755,nosuid,nodev tmpfs /lift
mkdir /lift/upper /lift/work
mount -t overlay -o nosuid,nodev,lowerdir=/lower,upperdir=/lift/upper,workdir=/lift/work overlay /root
mount -t tmpfs -o "size=$disk,nr_inodes=$inodes,mode=0755,nosuid,nodev" tmpfs /disk
mkdir -m 0700 /disk/work
mkdir -m 1777 /disk/tmp /disk/shm
chown "$owner" /disk/work
mkdir -p /root/proc /root/dev /root/tmp "/root$work"
mount -t proc -o nosuid,nodev,noexec proc /root/proc
mount -t tmpfs -o size=64k,mode=0755,nosuid tmpfs /root/dev
for each in null:3 zero:5 full:7 random:8 urandom:9; do mknod -m 0666 "/root/dev/${each%:*}" c 1 "${each#*:}"; done
mknod -m 0666 /root/dev/tty c 5 0
mkdir /root/dev/shm /root/dev/pts
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620,nosuid,noexec devpts /root/dev/pts
ln -s pts/ptmx /root/dev/ptmx
ln -s /proc/self/fd /root/dev/fd
ln -s fd/0 /root/dev/stdin
ln -s fd/1 /root/dev/stdout
ln -s fd/2 /root/dev/stderr
give() {
    if [ -d "/given/$1" ]; then
        mkdir -p "/root$2"
    else
        mkdir -p "/root${2%/*}"
        [ -e "/root$2" ] || : >"/root$2"
    fi
    mount -o bind "/given/$1" "/root$2"
    mount -o remount,bind,ro,nosuid,nodev "/root$2"
}
given
: >/root/dev/busybox
mount -o bind /bin/busybox /root/dev/busybox
found=$program
case $program in
    ./* | ../*) ;;
    *) found=$(PATH=$search /bin/busybox chroot /root /dev/busybox which "$program") || found= ;;
esac
umount /root/dev/busybox
rm /root/dev/busybox
mount -o bind /disk/work "/root$work"
mount -o bind /disk/tmp /root/tmp
mount -o bind /disk/shm /root/dev/shm
mount -o remount,ro,nosuid /root/dev
mount -o remount,ro,nosuid,nodev /root
group=/sys/fs/cgroup/job
mount -t cgroup2 cgroup2 /sys/fs/cgroup
echo '+memory +pids' >/sys/fs/cgroup/cgroup.subtree_control
mkdir $group
echo "$memory" >$group/memory.max
echo 1 >$group/memory.oom.group
echo "$pids" >$group/pids.max
echo 0 >/proc/sys/user/max_user_namespaces
ulimit -c 0
ulimit -n "$files"
ulimit -f "$blocks"
ulimit -u "$processes"
mkfifo -m 0600 /flow/in /flow/out /flow/err
chown "$owner" /flow/in /flow/out /flow/err
if [ -z "$found" ]; then
    echo absent >&9
    exit
fi
echo up >&9
cat /flow/out >/dev/port.out 9>&- &
out=$!
cat /flow/err >&2 9>&- &
err=$!
exec 2>/dev/null
from=/root/dev/null
if [ "$stdin" = yes ]; then
    cat /dev/port.in >/flow/in 9>&- &
    from=/flow/in
fi
code=0
(
    exec 9>&-
    echo 0 >$group/cgroup.procs && run
) <$from >/flow/out 2>/flow/err || code=$?
echo 1 >$group/cgroup.kill
populated() {
    while read -r name value; do
        [ "$name" != populated ] || return "$((1 - value))"
    done <$group/cgroup.events
}
while populated; do usleep 2000; done
wait $out $err
oom=0
while read -r name value; do
    [ "$name" != oom_kill ] || oom=$value
done <$group/memory.events
echo "end $code $oom $(stat -f -c '%a %d' /disk)" >&9
[ "$collect" = no ] || tar -C /disk/work -cf /dev/port.left .
"""


def write_guest(
    file: BinaryIO, kernel: Kernel, job: Job, given: Sequence[tuple[Path, str]], *, stdin: bool, collect: bool
) -> None:
    """Write it for a job. `given` is what is seen inside beside root and disk, as (source, target).

    Raises `LaunchError`.
    """
    archive = _started(file, kernel)
    for number, module in enumerate(kernel.network if job.net == "veth" else ()):
        archive.data(f"network/{number:02}.ko", module)
    archive.data("init", (_START + _RUN).encode(), mode=0o755)
    settings = "\n".join(_settings(job, [target for _, target in given], stdin=stdin, collect=collect)) + "\n"
    archive.data("job", settings.encode(), mode=0o600)
    for number, (source, _) in enumerate(given):
        archive.tree(f"given/{number}", source)
    archive.close()


def write_trial(file: BinaryIO, kernel: Kernel) -> None:
    """Write one that says that it is up, and ends."""
    archive = _started(file, kernel)
    archive.data("init", (_START + _TRIAL).encode(), mode=0o755)
    archive.close()


def _started(file: BinaryIO, kernel: Kernel) -> Archive:
    archive = Archive(file)
    for name in _FOLDERS:
        archive.folder(name)
    archive.data("bin/busybox", kernel.busybox, mode=0o755)
    for name in _TOOLS:
        archive.link(f"bin/{name}", "busybox")
    for number, module in enumerate(kernel.modules):
        archive.data(f"modules/{number:02}.ko", module)
    return archive


def _settings(job: Job, targets: Sequence[str], *, stdin: bool, collect: bool) -> Iterator[str]:
    """Yield what the script reads, each word quoted."""
    limits = job.limits
    environment = job.variables
    named = {
        "hostname": job.hostname, "owner": f"{GUEST_UID}:{GUEST_GID}", "work": WORK,
        "disk": limits.disk_bytes, "inodes": inodes(limits), "memory": limits.memory_bytes, "pids": limits.cgroup_pids,
        "processes": limits.pids, "files": limits.open_files, "blocks": limits.file_bytes // _BLOCK,
        "program": job.argv[0], "search": environment.get("PATH", "/usr/bin:/bin"),
        "net": job.net, "four": SANDBOX[0], "six": SANDBOX[1], "gate_four": GATE[0], "gate_six": GATE[1],
        "stdin": "yes" if stdin else "no", "collect": "yes" if collect else "no",
    }  # fmt: skip
    for name, value in named.items():
        yield f"{name}={shlex.quote(str(value))}"
    gives = [f"give {number} {shlex.quote(target)}" for number, target in enumerate(targets)]
    yield f"given() {{ :; {'; '.join([*gives, ':'])}; }}"
    words = [
        "/bin/busybox", "env", "-i", "--", *(f"{name}={value}" for name, value in environment.items()),
        "/bin/busybox", "setpriv", "--nnp",
        "/bin/busybox", "nsenter", "-r/root", f"-w/root{posixpath.normpath(job.cwd)}", "-S", str(GUEST_UID),
        "-G", str(GUEST_GID), "--",
    ]  # fmt: skip
    quoted = " ".join(shlex.quote(word) for word in words)
    yield f'run() {{ exec {quoted} "$found" {shlex.join(job.argv[1:])}; }}'

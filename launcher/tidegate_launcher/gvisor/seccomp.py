"""Which system calls the command may not make, of those that the guest's kernel has.

A list of what is denied: the kernel below is gVisor's own, and what it lacks it refuses by itself. This takes away
what it has and a command has no use for, so that less of that kernel can be attacked.

runsc loads it in `run`, and with `--oci-seccomp` only. In `exec` it loads none, and takes the rest of the process
from no specification either: uid 0 unless told. A session's commands must come from an init of ours in the sandbox,
never from `runsc exec` alone. Seen with release 20240729, which also answers EPERM whatever `errnoRet` says:
so `clone3` cannot be denied, since the C library goes on with `clone` only after ENOSYS, and its flags lie in memory
that a filter does not see.
"""

from typing import Final

from tidegate_launcher.oci.form import Seccomp, SeccompArg, SeccompSyscall
from tidegate_launcher.oci.seccomp import EPERM, NAMESPACE_FLAGS, architectures

__all__ = ["DENIED", "profile"]

_NAMESPACE_BITS: Final = tuple(1 << bit for bit in range(32) if NAMESPACE_FLAGS >> bit & 1)

DENIED: Final[dict[str, tuple[str, ...]]] = {
    "namespaces, in which a command would have capabilities again": ("unshare", "setns"),
    "the tree of mounts, which is the launcher's": (
        "mount", "umount2", "pivot_root", "chroot", "fsopen", "fsconfig", "fsmount", "fspick", "move_mount",
        "open_tree", "mount_setattr",
    ),
    "other processes' memory and registers": (
        "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "kcmp", "pidfd_getfd",
    ),
    "large parts of a kernel with a history of faults": (
        "bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register",
        "fanotify_init", "fanotify_mark",
    ),
    "the kernel's code and its log": (
        "init_module", "finit_module", "delete_module", "create_module", "kexec_load", "kexec_file_load", "syslog",
    ),
    "keys that are no part of a namespace": ("add_key", "request_key", "keyctl"),
    "files by number, past the folders above them": ("open_by_handle_at", "name_to_handle_at"),
    "the machine's own state": (
        "reboot", "swapon", "swapoff", "acct", "quotactl", "quotactl_fd", "settimeofday", "clock_settime",
        "clock_adjtime", "adjtimex", "sethostname", "setdomainname", "iopl", "ioperm", "vhangup", "lookup_dcookie",
        "nfsservctl", "mbind", "migrate_pages", "move_pages", "set_mempolicy",
    ),
}  # fmt: skip
"""Names by the reason for which they are denied."""


def profile(machine: str = "") -> Seccomp:
    """Return the filter for this machine, or one named as uname(2) does. One that is not known gets no exception."""
    denied = [_denied(*names) for names in DENIED.values()]
    # Each bit by itself: a rule holds when all of its conditions do, and any one flag is enough.
    flags = [_denied("clone", args=(_has(bit),)) for bit in _NAMESPACE_BITS]
    return Seccomp(
        default_action="SCMP_ACT_ALLOW",
        architectures=architectures(machine),
        syscalls=(*denied, *flags),
    )


def _denied(*names: str, args: tuple[SeccompArg, ...] = ()) -> SeccompSyscall:
    return SeccompSyscall(names=names, action="SCMP_ACT_ERRNO", errno_ret=EPERM, args=args)


def _has(bit: int) -> SeccompArg:
    return SeccompArg(index=0, value=bit, value_two=bit, op="SCMP_CMP_MASKED_EQ")

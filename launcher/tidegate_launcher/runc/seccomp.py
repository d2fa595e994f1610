"""Which system calls the command may make: all others fail as on a kernel that does not have them.

A list of what is allowed, unlike gVisor's: what is below is the host's own kernel, and a call that is new tomorrow is
one that nobody has looked at. ENOSYS is the answer, since the C library goes on without a call that is not there;
`clone3` among them, whose flags lie in memory that a filter does not see.

| call | allowed |
|---|---|
| clone | without a new namespace |
| socket, socketpair | unix; the former also IPv4 and IPv6: no packet, netlink, vsock or kernel crypto |
| personality | asking, and Linux's own |
| ptrace, process_vm_*, bpf, io_uring, keyctl, userfaultfd, perf, mounts, modules, clocks, … | not |
"""

from typing import Final

from tidegate_launcher.oci.form import Seccomp, SeccompArg, SeccompSyscall
from tidegate_launcher.oci.seccomp import ENOSYS, NAMESPACE_FLAGS, architectures

__all__ = ["ALLOWED", "profile"]

ALLOWED: Final[dict[str, tuple[str, ...]]] = {
    "files by name": (
        "access", "chdir", "chmod", "chown", "creat", "faccessat", "faccessat2", "fchdir", "fchmodat", "fchmodat2",
        "fchownat", "futimesat", "getcwd", "lchown", "link", "linkat", "lstat", "mkdir", "mkdirat", "mknod", "mknodat",
        "newfstatat", "open", "openat", "openat2", "readlink", "readlinkat", "rename", "renameat", "renameat2",
        "rmdir", "stat", "statfs", "statx", "symlink", "symlinkat", "truncate", "umask", "unlink", "unlinkat", "utime",
        "utimensat", "utimes",
    ),
    "their extended attributes": (
        "fgetxattr", "flistxattr", "fremovexattr", "fsetxattr", "getxattr", "lgetxattr", "listxattr", "llistxattr",
        "lremovexattr", "lsetxattr", "removexattr", "setxattr",
    ),
    "what is open": (
        "close", "close_range", "copy_file_range", "dup", "dup2", "dup3", "fadvise64", "fallocate", "fchmod", "fchown",
        "fcntl", "fdatasync", "flock", "fstat", "fstatfs", "fsync", "ftruncate", "getdents", "getdents64", "ioctl",
        "lseek", "memfd_create", "pipe", "pipe2", "pread64", "preadv", "preadv2", "pwrite64", "pwritev", "pwritev2",
        "read", "readahead", "readv", "sendfile", "splice", "sync", "sync_file_range", "syncfs", "tee", "vmsplice",
        "write", "writev",
    ),
    "waiting": (
        "epoll_create", "epoll_create1", "epoll_ctl", "epoll_pwait", "epoll_pwait2", "epoll_wait", "eventfd",
        "eventfd2", "inotify_add_watch", "inotify_init", "inotify_init1", "inotify_rm_watch", "poll", "ppoll",
        "pselect6", "select", "signalfd", "signalfd4", "timerfd_create", "timerfd_gettime", "timerfd_settime",
        "io_cancel", "io_destroy", "io_getevents", "io_pgetevents", "io_setup", "io_submit",
    ),
    "sockets that are there": (
        "accept", "accept4", "bind", "connect", "getpeername", "getsockname", "getsockopt", "listen", "recvfrom",
        "recvmmsg", "recvmsg", "sendmmsg", "sendmsg", "sendto", "setsockopt", "shutdown",
    ),
    "memory of its own": (
        "brk", "get_mempolicy", "madvise", "membarrier", "mincore", "mlock", "mlock2", "mlockall", "mmap", "mprotect",
        "mremap", "msync", "munlock", "munlockall", "munmap", "pkey_alloc", "pkey_free", "pkey_mprotect",
    ),
    "processes and threads, its own": (
        "arch_prctl", "execve", "execveat", "exit", "exit_group", "fork", "get_robust_list", "get_thread_area",
        "getpgid", "getpgrp", "getpid", "getppid", "getpriority", "getsid", "gettid", "kill", "pidfd_open",
        "pidfd_send_signal", "prctl", "prlimit64", "getrlimit", "setrlimit", "getrusage", "restart_syscall", "rseq",
        "set_robust_list", "set_thread_area", "set_tid_address", "setpgid", "setpriority", "setsid", "tgkill", "tkill",
        "vfork", "wait4", "waitid",
    ),
    "who it is, and what it may become, which is nothing": (
        "capget", "capset", "getegid", "geteuid", "getgid", "getgroups", "getresgid", "getresuid", "getuid",
        "setfsgid", "setfsuid", "setgid", "setgroups", "setregid", "setresgid", "setresuid", "setreuid", "setuid",
    ),
    "signals": (
        "pause", "rt_sigaction", "rt_sigpending", "rt_sigprocmask", "rt_sigqueueinfo", "rt_sigreturn",
        "rt_sigsuspend", "rt_sigtimedwait", "rt_tgsigqueueinfo", "sigaltstack",
    ),
    "time, to be read and waited for": (
        "alarm", "clock_getres", "clock_gettime", "clock_nanosleep", "getitimer", "gettimeofday", "nanosleep",
        "setitimer", "time", "timer_create", "timer_delete", "timer_getoverrun", "timer_gettime", "timer_settime",
        "times",
    ),
    "locks and what processes share, in its own namespace": (
        "futex", "futex_waitv", "mq_getsetattr", "mq_notify", "mq_open", "mq_timedreceive", "mq_timedsend",
        "mq_unlink", "msgctl", "msgget", "msgrcv", "msgsnd", "semctl", "semget", "semop", "semtimedop", "shmat",
        "shmctl", "shmdt", "shmget",
    ),
    "the scheduler, for its own processes": (
        "getcpu", "ioprio_get", "ioprio_set", "sched_get_priority_max", "sched_get_priority_min", "sched_getaffinity",
        "sched_getattr", "sched_getparam", "sched_getscheduler", "sched_rr_get_interval", "sched_setaffinity",
        "sched_setattr", "sched_setparam", "sched_setscheduler", "sched_yield",
    ),
    "a filter of its own, which can only take away": (
        "landlock_add_rule", "landlock_create_ruleset", "landlock_restrict_self", "seccomp",
    ),
    "the rest that programs ask": ("getrandom", "sysinfo", "uname"),
}  # fmt: skip
"""Names by what they are for. What one machine's kernel does not have is passed over."""

_UNIX, _IPV4, _IPV6 = 1, 2, 10
_PERSONALITIES: Final = (0, 0xFFFFFFFF)


def profile(machine: str = "") -> Seccomp:
    """Return the filter for this machine, or one named as uname(2) does."""
    return Seccomp(
        default_action="SCMP_ACT_ERRNO",
        default_errno_ret=ENOSYS,
        architectures=architectures(machine),
        syscalls=(
            *(_allowed(*names) for names in ALLOWED.values()),
            _allowed("clone", arg=SeccompArg(index=0, value=NAMESPACE_FLAGS, value_two=0, op="SCMP_CMP_MASKED_EQ")),
            *(_allowed("socket", arg=_is(family)) for family in (_UNIX, _IPV4, _IPV6)),
            _allowed("socketpair", arg=_is(_UNIX)),
            *(_allowed("personality", arg=_is(value)) for value in _PERSONALITIES),
        ),
    )


def _allowed(*names: str, arg: SeccompArg | None = None) -> SeccompSyscall:
    return SeccompSyscall(names=names, action="SCMP_ACT_ALLOW", args=() if arg is None else (arg,))


def _is(value: int) -> SeccompArg:
    return SeccompArg(index=0, value=value, op="SCMP_CMP_EQ")

"""A seccomp filter that takes from a process the calls that a server or a parser never needs.

A classic BPF program (seccomp(2)) on the call's number: what is listed fails with EPERM, all else passes. Also

| call | refused |
|---|---|
| clone | with a new namespace |
| clone3 | ENOSYS, since its flags lie behind a pointer; the C library then uses clone |
| socket | of any family but those given, at first unix, IPv4 and IPv6: no vsock, packet, netlink or kernel crypto |
| socket | of any protocol but the family's own, TCP and UDP: MPTCP's connections are the kernel's, and nobody's |
| prctl | making the process dumpable again |
| any call of another architecture, or of x32 | the process is killed, or EPERM |
"""

import ctypes
import errno
import platform
from collections.abc import Sequence
from typing import NamedTuple

from tidegate.syscall import syscall

__all__ = ["FAMILIES", "REFUSED", "compiled", "install", "supported"]

# name: (x86_64, aarch64); None where the architecture has no such call.
REFUSED: dict[str, tuple[int, int | None]] = {
    # other programs
    "execve": (59, 221),
    "execveat": (322, 281),
    # other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    # a second way to every call, past this filter
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    # namespaces and mounts
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    # the kernel itself
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "fanotify_init": (300, 262),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "syslog": (103, 116),
    "personality": (135, 92),
    "modify_ldt": (154, None),
    "iopl": (172, None),
    "ioperm": (173, None),
    "uselib": (134, None),
    # the machine
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "vhangup": (153, 58),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
}


class _Machine(NamedTuple):
    audit_arch: int
    column: int
    seccomp: int
    clone: int
    socket: int
    prctl: int


_MACHINES = {
    "x86_64": _Machine(0xC000003E, 0, 317, 56, 41, 157),
    "aarch64": _Machine(0xC00000B7, 1, 277, 220, 198, 167),
}
_CLONE3 = 435
_X32_BIT = 0x40000000
_NEW_NAMESPACES = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
FAMILIES = (1, 2, 10)
"""AF_UNIX, AF_INET, AF_INET6."""
_PROTOCOLS = (0, 6, 17)
"""What the family has for the type, TCP, UDP."""

_STARTING = frozenset({"execve", "execveat"})
_PR_SET_DUMPABLE = 4

_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NR, _ARCH, _ARG0, _ARG1, _ARG2 = 0, 4, 16, 24, 32
_SET_MODE_FILTER, _ALL_THREADS = 1, 1


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("filter", ctypes.POINTER(_Instruction)))


type _Step = tuple[int, int, int, int]


def supported() -> bool:
    """Tell whether this machine's call numbers are known."""
    return platform.machine() in _MACHINES


def install(*, families: Sequence[int] = FAMILIES) -> None:
    """Put the filter on every thread of this process, for good. Needs no_new_privs. Raises OSError.

    `families` are those of which a socket may be made; with none there is no network and no unix socket.
    """
    machine = _MACHINES[platform.machine()]
    steps = _program(machine, families)
    instructions = (_Instruction * len(steps))(*[_Instruction(*step) for step in steps])
    program = _Program(len(steps), instructions)
    stuck = syscall(machine.seccomp, _SET_MODE_FILTER, _ALL_THREADS, program)
    if stuck:
        raise OSError(errno.EBUSY, f"thread {stuck} has a filter of its own")


def compiled(*, families: Sequence[int] = FAMILIES) -> bytes:
    """Return the filter as a program installs it that starts a command: all of it, but for starting programs."""
    steps = _program(_MACHINES[platform.machine()], families, spared=_STARTING)
    return b"".join(bytes(_Instruction(*step)) for step in steps)


def _program(
    machine: _Machine, families: Sequence[int] = FAMILIES, *, spared: frozenset[str] = frozenset()
) -> list[_Step]:
    refuse = (_RETURN, 0, 0, _ERRNO | errno.EPERM)
    steps: list[_Step] = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, machine.audit_arch),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NR),
        (_AT_LEAST, 0, 1, _X32_BIT),
        refuse,
        (_EQUAL, 0, 1, _CLONE3),
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
    ]
    for name, numbers in REFUSED.items():
        number = numbers[machine.column]
        if number is not None and name not in spared:
            steps += [(_EQUAL, 0, 1, number), refuse]
    clone = [(_LOAD, 0, 0, _ARG0), (_ANY_BIT, 0, 1, _NEW_NAMESPACES), refuse]
    socket = [*_among(_ARG0, families, errno.EAFNOSUPPORT), *_among(_ARG2, _PROTOCOLS, errno.EPROTONOSUPPORT)]
    dumpable = [(_LOAD, 0, 0, _ARG0), (_EQUAL, 0, 3, _PR_SET_DUMPABLE), (_LOAD, 0, 0, _ARG1), (_EQUAL, 1, 0, 0), refuse]
    for number, body in ((machine.clone, clone), (machine.socket, socket), (machine.prctl, dumpable)):
        # Each body ends in its own answer: the accumulator no longer holds the call's number.
        block = [*body, (_RETURN, 0, 0, _ALLOW)]
        steps += [(_EQUAL, 0, len(block), number), *block]
    return [*steps, (_RETURN, 0, 0, _ALLOW)]


def _among(argument: int, known: Sequence[int], otherwise: int) -> list[_Step]:
    """Return the steps that go on with a call whose argument is known, and end any other with an error."""
    equal = [(_EQUAL, len(known) - place, 0, one) for place, one in enumerate(known)]
    return [(_LOAD, 0, 0, argument), *equal, (_RETURN, 0, 0, _ERRNO | otherwise)]

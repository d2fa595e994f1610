"""The parts of an OCI runtime specification that are used here (OCI runtime-spec 1.0.2, config.md, config-linux.md)."""

from typing import Final

import msgspec

__all__ = [
    "Capabilities",
    "Device",
    "Linux",
    "Mapping",
    "Mount",
    "Namespace",
    "Process",
    "Resources",
    "Rlimit",
    "Root",
    "Seccomp",
    "SeccompArg",
    "SeccompSyscall",
    "Spec",
    "User",
    "encode",
]

_VERSION: Final = "1.0.2"


class _Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=False):
    """A part of the specification: names are in camel case there."""


class User(_Part, frozen=True, kw_only=True):
    """Whom the command runs as."""

    uid: int
    gid: int
    additional_gids: tuple[int, ...] = ()


class Capabilities(_Part, frozen=True, kw_only=True):
    """The five sets, all of them empty unless said."""

    bounding: tuple[str, ...] = ()
    effective: tuple[str, ...] = ()
    inheritable: tuple[str, ...] = ()
    permitted: tuple[str, ...] = ()
    ambient: tuple[str, ...] = ()


class Rlimit(_Part, frozen=True, kw_only=True):
    """One setrlimit(2)."""

    type: str
    soft: int
    hard: int


class Process(_Part, frozen=True, kw_only=True):
    """The command and its rights."""

    user: User
    args: tuple[str, ...]
    env: tuple[str, ...]
    cwd: str
    rlimits: tuple[Rlimit, ...]
    capabilities: Capabilities = Capabilities()
    no_new_privileges: bool = True
    terminal: bool = False


class Root(_Part, frozen=True, kw_only=True):
    """The root filesystem, a folder of the host's."""

    path: str
    readonly: bool = True


class Mount(_Part, frozen=True, kw_only=True):
    """One mount inside."""

    destination: str
    type: str
    source: str
    options: tuple[str, ...]


class Namespace(_Part, frozen=True, kw_only=True, omit_defaults=True):
    """A namespace: a fresh one without a path."""

    type: str
    path: str = ""


class SeccompArg(_Part, frozen=True, kw_only=True, omit_defaults=True):
    """A condition on an argument: with SCMP_CMP_MASKED_EQ, `value` is the mask and `value_two` what it must leave."""

    index: int
    value: int
    op: str
    value_two: int = 0


class SeccompSyscall(_Part, frozen=True, kw_only=True, omit_defaults=True):
    """What becomes of some system calls."""

    names: tuple[str, ...]
    action: str
    errno_ret: int | None = None
    args: tuple[SeccompArg, ...] = ()


class Seccomp(_Part, frozen=True, kw_only=True, omit_defaults=True):
    """A filter on system calls."""

    default_action: str
    architectures: tuple[str, ...]
    syscalls: tuple[SeccompSyscall, ...]
    default_errno_ret: int | None = None


class Mapping(_Part, frozen=True, kw_only=True):
    """A user (or group) inside a user namespace, and whom the host takes it for."""

    inside: int = msgspec.field(name="containerID")
    outside: int = msgspec.field(name="hostID")
    size: int = 1


class Device(_Part, frozen=True, kw_only=True):
    """A rule for all devices, with which the runtime's own list of harmless ones begins."""

    allow: bool
    access: str


class Resources(_Part, frozen=True, kw_only=True):
    """What a runtime writes to the control group that it makes."""

    devices: tuple[Device, ...]


class Linux(_Part, frozen=True, kw_only=True, omit_defaults=True):
    """What only Linux has. `cgroups_path` is from the root of what the runtime sees of each tree of groups."""

    namespaces: tuple[Namespace, ...]
    seccomp: Seccomp
    masked_paths: tuple[str, ...] = ()
    readonly_paths: tuple[str, ...] = ()
    uid_mappings: tuple[Mapping, ...] = ()
    gid_mappings: tuple[Mapping, ...] = ()
    cgroups_path: str = ""
    resources: Resources | None = None


class Spec(_Part, frozen=True, kw_only=True):
    """A whole config.json."""

    process: Process
    root: Root
    hostname: str
    mounts: tuple[Mount, ...]
    linux: Linux
    oci_version: str = _VERSION


def encode(spec: Spec) -> bytes:
    """Return config.json. Raises UnicodeEncodeError for text that is no UTF-8."""
    return msgspec.json.encode(spec)

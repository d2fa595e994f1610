"""Which runsc is used: found, old enough to be refused, or tried once and remembered by its hash.

| asked | how |
|---|---|
| where | `TIDEGATE_RUNSC`, which then must be it; else PATH; else what the set-up fetched |
| new enough | release 20240729: systrap, and the size of a tmpfs |
| platform | a program of 132 bytes runs on each in turn, with 5 s for it: kvm can be there and hang for good |
| network | whether `rmem_default` shows in a fresh network namespace, which runsc takes for the host's own |

There is no other runtime to fall back to. What was found out holds for one file on one kernel.
"""

import contextlib
import hashlib
import os
import platform
import re
import secrets
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from tidegate.errors import LaunchError
from tidegate_launcher.cache import cache_folder
from tidegate_launcher.gvisor.seccomp import profile
from tidegate_launcher.job import GUEST_GID, GUEST_UID
from tidegate_launcher.oci.form import Linux, Namespace, Process, Root, Spec, User, encode
from tidegate_launcher.program import SYSTEM_PATH, asked, find_program

__all__ = ["FLOOR", "PLATFORMS", "PROBE_SECONDS", "Runtime", "find_runsc", "inspect_runsc", "parse_version"]

type Platform = Literal["systrap", "ptrace", "kvm"]

FLOOR: Final = 20240729
"""The oldest release taken: older ones lack systrap, and may ignore a tmpfs' size (google/gvisor#2536)."""
PLATFORMS: Final[tuple[Platform, ...]] = ("systrap", "ptrace", "kvm")
"""In the order in which they are tried; the first that works is used."""
PROBE_SECONDS: Final = 5.0

_RELEASE: Final = re.compile(r"runsc version \S*?(\d{8})(?:\.\d+)?\b")
_ANSWER: Final = 42
# _exit(42), as the smallest ELF there is for each machine.
_CODE: Final = {
    "x86_64": (62, bytes.fromhex("bf2a000000b8e70000000f050f0b")),
    "aarch64": (183, bytes.fromhex("400580d2c80b80d2010000d4")),
}
_HINT: Final = "install gVisor's runsc, or run `make setup`; then `tidegate doctor`"


class Runtime(msgspec.Struct, frozen=True, kw_only=True):
    """A runsc that works here. `hide_sysctl`: with a network, it must not see `rmem_default`.

    `file` is which file was looked at: device, inode, size and last change.
    """

    path: Path
    file: tuple[int, int, int, int]
    release: int
    sha256: str
    platform: Platform
    hide_sysctl: bool

    def is_still(self, path: Path) -> bool:
        """Whether the file at a path is the one that was looked at."""
        return self.path == path and self.file == _identity(path)


class _Known(msgspec.Struct, frozen=True, kw_only=True):
    """What was found out, and on which kernel: another one is asked anew."""

    kernel: str
    runtime: Runtime


def find_runsc(environ: Mapping[str, str]) -> Path:
    """Return the runsc to use. Raises `LaunchError` when there is none; never another runtime."""
    given = environ.get("TIDEGATE_RUNSC")
    if given:
        if not os.access(given, os.X_OK) or not Path(given).is_file():
            raise LaunchError("there is no program there", where=f"TIDEGATE_RUNSC={given}", hint=_HINT)
        return Path(given).resolve()
    folders = [*(environ.get("PATH") or SYSTEM_PATH).split(os.pathsep), str(cache_folder(environ) / "engine" / "bin")]
    # Not what lies in the folder that root happens to be in.
    found = shutil.which("runsc", path=os.pathsep.join(folder for folder in folders if os.path.isabs(folder)))
    if found is None:
        raise LaunchError("there is no runsc on this machine", hint=_HINT)
    return Path(found).resolve()


def inspect_runsc(
    path: Path,
    environ: Mapping[str, str],
    *,
    platforms: Sequence[Platform] = PLATFORMS,
    seconds: float = PROBE_SECONDS,
) -> Runtime:
    """Return what is known of this runsc here, finding it out when it is not. Raises `LaunchError`.

    `seconds` are for each question to it.
    """
    memory = cache_folder(environ) / "runsc.json"
    known = _recall(memory)
    if known is not None and known.runtime.is_still(path) and known.kernel == _kernel():
        return known.runtime
    identity, release = _identity(path), _release(path, seconds)
    if release < FLOOR:
        raise LaunchError(
            f"runsc is of {release}, and the oldest taken is {FLOOR}: older ones lack systrap and sizes of tmpfs",
            where=str(path),
            hint="install a newer runsc",
        )
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    runtime = Runtime(
        path=path,
        file=identity,
        release=release,
        sha256=digest,
        platform=_working(path, platforms, seconds),
        hide_sysctl=_sysctl_everywhere(),
    )
    _remember(memory, _Known(kernel=_kernel(), runtime=runtime))
    return runtime


def parse_version(text: str) -> int:
    """Return the date of a release from what `runsc --version` says. Raises `LaunchError`."""
    found = _RELEASE.search(text)
    if found is None:
        raise LaunchError("runsc says no version that is known", where=text[:80].strip(), hint="install a release")
    return int(found[1])


def _release(path: Path, seconds: float) -> int:
    code, said = asked([str(path), "--version"], seconds, hint=_HINT)
    if code is None:
        raise LaunchError("runsc did not say its version in time", where=str(path))
    return parse_version(said)


def _working(path: Path, platforms: Sequence[Platform], seconds: float) -> Platform:
    tried = []
    for name in platforms:
        failure = _try(path, name, seconds)
        if failure is None:
            return name
        tried.append(f"{name}: {failure}")
    raise LaunchError("runsc starts no sandbox here", where=str(path), hint="; ".join(tried))


def _try(path: Path, name: Platform, seconds: float) -> str | None:
    """Return why nothing runs on this platform, or None when it does."""
    with tempfile.TemporaryDirectory(prefix="tidegate-probe-") as folder:
        root = Path(folder) / "root"
        for inner in (root, root / "proc", root / "dev", root / "sys"):
            inner.mkdir(0o755)
        Path(folder).chmod(0o711)
        program = root / "probe"
        program.write_bytes(_elf())
        program.chmod(0o755)
        (Path(folder) / "config.json").write_bytes(encode(_probe_spec(root)))
        code, said = asked(
            [
                str(path), f"--root={folder}/state", f"--platform={name}", "--network=none", "--ignore-cgroups",
                "--overlay2=none", f"--log={folder}/log", "run", f"--bundle={folder}", secrets.token_hex(16),
            ],
            seconds, hint=_HINT,
        )  # fmt: skip
    if code is None:
        return f"no end within {seconds:g} s"
    return None if code == _ANSWER else (said.strip()[-200:] or f"exit code {code}")


def _probe_spec(root: Path) -> Spec:
    user = User(uid=GUEST_UID, gid=GUEST_GID)
    kinds = ("pid", "ipc", "uts", "mount", "network")
    return Spec(
        process=Process(user=user, args=("/probe",), env=(), cwd="/", rlimits=()),
        root=Root(path=str(root)),
        hostname="probe",
        mounts=(),
        linux=Linux(namespaces=tuple(Namespace(type=kind) for kind in kinds), seccomp=profile()),
    )


def _elf() -> bytes:
    """Return a program that ends with 42 (elf(5)): a header, one segment, a few instructions."""
    machine, code = _CODE.get(platform.machine(), (0, b""))
    if not code:
        raise LaunchError(f"gVisor is not known to work on {platform.machine()}")
    base, headers = 0x400000, 64 + 56

    def number(value: int, size: int) -> bytes:
        return value.to_bytes(size, "little")

    head = b"\x7fELF\x02\x01\x01" + bytes(9) + number(2, 2) + number(machine, 2) + number(1, 4)
    head += number(base + headers, 8) + number(64, 8) + bytes(8) + bytes(4)
    head += number(64, 2) + number(56, 2) + number(1, 2) + bytes(6)
    size = number(headers + len(code), 8)
    segment = number(1, 4) + number(5, 4) + bytes(8) + number(base, 8) * 2 + size * 2 + number(0x1000, 8)
    return head + segment + code


def _sysctl_everywhere() -> bool:
    command = [find_program("unshare"), "--net", "--", "test", "-e", "/proc/sys/net/core/rmem_default"]
    code, _ = asked(command, PROBE_SECONDS)
    return code == 0


def _identity(path: Path) -> tuple[int, int, int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns


def _kernel() -> str:
    return f"{platform.release()} {platform.version()} {platform.machine()}"


def _recall(memory: Path) -> _Known | None:
    try:
        descriptor = os.open(memory, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            return None  # others could have it say that a file of theirs was looked at
        try:
            return msgspec.json.decode(file.read(65536), type=_Known, dec_hook=lambda kind, value: kind(value))
        except msgspec.DecodeError:
            return None


def _remember(memory: Path, known: _Known) -> None:
    """Write it whole or not at all. A cache that cannot be written costs a probe each time, and nothing else."""
    with contextlib.suppress(OSError):
        memory.parent.mkdir(0o755, parents=True, exist_ok=True)
        fresh = memory.with_name(f".{memory.name}.{secrets.token_hex(8)}")
        fresh.touch(0o600)
        fresh.write_bytes(msgspec.json.encode(known, enc_hook=str))
        fresh.replace(memory)

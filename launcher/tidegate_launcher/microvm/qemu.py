"""Which QEMU is used, and whether it runs a machine here: shown by one that starts, within a time.

`/dev/kvm` can be there, and take a machine, and never run an instruction of it: only a kernel that has come up shows
that it works. There is no other accelerator to fall back to: emulation is another boundary, and asked for by its name.
"""

import contextlib
import os
import re
import tempfile
from pathlib import Path
from typing import Final

from tidegate.errors import LaunchError
from tidegate_launcher.microvm.guest import write_trial
from tidegate_launcher.microvm.kernel import Kernel
from tidegate_launcher.microvm.machine import KERNEL_BYTES, Accelerator, machine
from tidegate_launcher.microvm.word import heard
from tidegate_launcher.program import asked, find_program, version_of

__all__ = ["KVM", "TRIAL_SECONDS", "find_qemu", "parse_version", "try_machine"]

KVM: Final = Path("/dev/kvm")
TRIAL_SECONDS: Final[dict[Accelerator, float]] = {"kvm": 3.0, "tcg": 60.0}
"""For a kernel to come up in: by KVM that is a fraction of a second, else a few seconds on an idle machine."""

_FLOOR: Final = (7, 2)
"""The oldest taken, Debian 12's: older ones were never tried."""
_MACHINE: Final = "x86_64"


def find_qemu() -> Path:
    """Return QEMU's program. Raises `LaunchError` when there is none that is new enough."""
    if os.uname().machine != _MACHINE:
        raise LaunchError("a machine is made for x86_64 alone", where=os.uname().machine, hint="another --boundary")
    found = find_program(f"qemu-system-{_MACHINE}", package="qemu-system-x86")
    said = version_of(found, name="QEMU")
    if parse_version(said) < _FLOOR:
        raise LaunchError(f"{said.splitlines()[0]} is too old", where=found, hint="7.2 at the least")
    return Path(found)


def parse_version(text: str) -> tuple[int, int]:
    """Return the version that `qemu-system-x86_64 --version` says. Raises `LaunchError`."""
    found = re.match(r"QEMU emulator version (\d+)\.(\d+)", text)
    if found is None:
        raise LaunchError("QEMU says no version that is known", where=text[:80].strip())
    return int(found[1]), int(found[2])


def try_machine(program: Path, kernel: Kernel, accelerator: Accelerator, *, seconds: float | None = None) -> None:
    """Start a machine that says that it is up, and ends. Raises `LaunchError` when it does not within the time."""
    if accelerator == "kvm" and not KVM.exists():
        raise LaunchError("there is no KVM on this machine", where=str(KVM), hint=_instead(accelerator))
    seconds = TRIAL_SECONDS[accelerator] if seconds is None else seconds
    with tempfile.TemporaryDirectory(prefix="tidegate-trial-") as folder, contextlib.ExitStack() as undo:
        initrd = Path(folder) / "initrd"
        with initrd.open("wb") as file:
            write_trial(file, kernel)
        told, telling = os.pipe()
        undo.callback(os.close, told)
        word = undo.enter_context(open(telling, "wb", buffering=0))
        arguments = machine(
            accelerator, kernel=str(kernel.path), initrd=str(initrd), memory_bytes=KERNEL_BYTES, processors=1,
            ports={"word": word.fileno()},
        )  # fmt: skip
        code, said = asked([str(program), *arguments], seconds, passed=(word.fileno(),))
        if heard(told).up and code == 0:
            return
    why = f"no end within {seconds:g} s" if code is None else (said.strip()[-200:] or f"exit code {code}")
    raise LaunchError(f"no machine starts by {accelerator} here: {why}", where=str(program), hint=_instead(accelerator))


def _instead(accelerator: Accelerator) -> str:
    return "--boundary microvm-tcg is emulated, and many times slower" if accelerator == "kvm" else "tidegate doctor"

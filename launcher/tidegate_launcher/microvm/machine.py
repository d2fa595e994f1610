"""The machine: QEMU's arguments. What is not named here is not there: no screen, no sound, no USB.

| device | what it leads to |
|---|---|
| a disk, which cannot be written | the root's file system |
| a network card, where there is a link | a tap device, by which frames go to the wall |
| five serial ports | the streams of the command, what it left, the first process' word |

Ports are written to by the machine's own processor, each write whole before it goes on (`ioeventfd=off`, and a log in
the place of a back end that would queue): what a command said last is out before the machine ends.
"""

from collections.abc import Mapping
from typing import Final, Literal

from tidegate_launcher.microvm.guest import PORTS

__all__ = ["AROUND_BYTES", "KERNEL_BYTES", "Accelerator", "machine"]

type Accelerator = Literal["kvm", "tcg"]
"""`kvm`: the processor's own virtualisation. `tcg`: every instruction is translated, which is many times slower."""

KERNEL_BYTES: Final = 96 * 1024 * 1024
"""Memory for the machine's own kernel and first process, beside what the command may have."""
AROUND_BYTES: Final = 192 * 1024 * 1024
"""Memory for QEMU itself: its program, and the code that it translates."""

_ACCELERATORS: Final[dict[Accelerator, tuple[str, str]]] = {"kvm": ("kvm", "host"), "tcg": ("tcg,tb-size=64", "max")}
_MIB: Final = 1024 * 1024
_WORDS: Final = "quiet loglevel=0 panic=-1 oops=panic random.trust_cpu=on"
"""For the kernel: it ends when it falls, and says nothing meanwhile, since there is nobody to hear it."""


def machine(
    accelerator: Accelerator,
    *,
    kernel: str,
    initrd: str,
    memory_bytes: int,
    processors: int,
    ports: Mapping[str, int],
    disk: int | None = None,
    tap: int | None = None,
    stdin: bool = False,
) -> list[str]:
    """Return the arguments. `disk` and `tap` are descriptors; `ports` those that what is said on a port is written to.

    With `stdin`, the port `in` is given what this process has as standard input. No descriptor may be below 3.
    """
    accel, processor = _ACCELERATORS[accelerator]
    arguments = [
        "-M", "q35,usb=off,smbus=off,sata=off,vmport=off,graphics=off", "-accel", accel, "-cpu", processor,
        "-m", f"{-(-memory_bytes // _MIB)}M", "-smp", str(processors),
        "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-vga", "none",
        "-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
        "-kernel", kernel, "-initrd", initrd, "-append", _WORDS,
        "-device", f"virtio-serial-pci,ioeventfd=off,max_ports={len(PORTS) + 1}",
    ]  # fmt: skip
    if disk is not None:
        arguments += [
            "-add-fd", f"fd={disk},set={disk}",
            "-blockdev", f"driver=file,node-name=file,filename=/dev/fdset/{disk},read-only=on,locking=off",
            "-blockdev", "driver=raw,node-name=disk,file=file,read-only=on",
            "-device", "virtio-blk-pci,drive=disk",
        ]  # fmt: skip
    if tap is not None:
        # No ROM: it starts from no network. No acceleration in the host's kernel either.
        arguments += ["-netdev", f"tap,id=link,fd={tap},vhost=off", "-device", "virtio-net-pci,netdev=link,romfile="]
    for number, name in enumerate(PORTS, start=1):
        arguments += _port(number, name, ports.get(name), stdin=stdin)
    return arguments


def _port(number: int, name: str, descriptor: int | None, *, stdin: bool) -> list[str]:
    device = ["-device", f"virtserialport,nr={number},name={name},chardev={name}"]
    if name == "in" and stdin:
        return ["-chardev", "stdio,id=in,signal=off", *device]
    # A ring is always open and takes everything; its log is written before the next byte is taken.
    ring = f"ringbuf,id={name},size=4096"
    if descriptor is None:
        return ["-chardev", ring, *device]
    log = f"{ring},logfile=/dev/fdset/{descriptor},logappend=on"
    return ["-add-fd", f"fd={descriptor},set={descriptor}", "-chardev", log, *device]

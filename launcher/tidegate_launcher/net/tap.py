"""A virtual machine's end of a sandbox's link: a tap device, and a bridge from it to the link.

```
 the machine's eth0 ── QEMU ── tap0 ── bridge0 ── eth0 ──── veth ──── gate0, the wall
                               the sandbox's namespace
```

The machine has the addresses that the link had; in the namespace nothing has one, and no process is in it. What comes
out of the machine are frames: the wall stands where they come in at the gate's end, as for gVisor, whose network stack
sends frames too. The device ends with the descriptor, the bridge with the namespace.
"""

import fcntl
import os
import struct
from pathlib import Path
from typing import Final

from tidegate.errors import LaunchError
from tidegate_launcher.net.iproute import ip_batch
from tidegate_launcher.net.space import Space

__all__ = ["TUN", "open_tap"]

TUN: Final = Path("/dev/net/tun")
_TUNSETIFF: Final = 0x400454CA
_IFF_TAP: Final = 0x0002
_IFF_NO_PI: Final = 0x1000
_DEVICE: Final = "tap0"
# Without the header of checksums and segments: the host's kernel parses nothing of the machine's but frames.
_REQUEST: Final = struct.pack("16sH22x", _DEVICE.encode(), _IFF_TAP | _IFF_NO_PI)
_BRIDGE: Final = f"""\
address flush dev eth0
link add name bridge0 type bridge stp_state 0 mcast_snooping 0
link set bridge0 addrgenmode none
link set {_DEVICE} addrgenmode none
link set eth0 master bridge0
link set {_DEVICE} master bridge0
link set {_DEVICE} up
link set bridge0 up
"""


def open_tap(namespace: Path) -> int:
    """Return a descriptor of the device, made in a sandbox's namespace. Raises `LaunchError`."""
    with Space(os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)) as space:
        return space.within(_made)


def _made() -> int:
    try:
        tap = os.open(TUN, os.O_RDWR | os.O_CLOEXEC)
    except OSError as fault:
        hint = "the kernel needs CONFIG_TUN; without a link: --net none"
        raise LaunchError(f"no tap device can be made: {fault.strerror}", where=str(TUN), hint=hint) from fault
    try:
        fcntl.ioctl(tap, _TUNSETIFF, _REQUEST)
        ip_batch(_BRIDGE)
    except OSError as fault:
        os.close(tap)
        raise LaunchError(f"no tap device can be made: {fault.strerror}", where=str(TUN)) from fault
    except BaseException:
        os.close(tap)
        raise
    return tap

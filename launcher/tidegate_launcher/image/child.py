"""The process that unpacks: it confines itself, reads a stream from stdin, and says on stdout what came of it.

Started as `python -m tidegate_launcher.image.child ORDERS` by `unpack.py`, with an empty environment.
"""

import errno
import os
import sys
from itertools import chain

import msgspec

from tidegate.errors import LaunchError
from tidegate_launcher.image.confine import confine
from tidegate_launcher.image.entry import Entries
from tidegate_launcher.image.inflow import Inflow
from tidegate_launcher.image.report import Orders, Refusal, Report
from tidegate_launcher.image.tree import Tree

__all__: list[str] = []


def main() -> int:
    """Do as ordered; exit 0 when something was said."""
    orders = msgspec.json.decode(sys.argv[1], type=Orders)
    try:
        os.fchdir(orders.folder)
        confine(orders.bounds)
        said: Report | Refusal = _unpack(orders)
    except LaunchError as fault:
        said = Refusal(what=fault.what, where=fault.where, hint=fault.hint)
    except MemoryError:
        said = Refusal(what="unpacking it takes more memory than there is for it")
    except OSError as fault:
        full = fault.errno in (errno.ENOSPC, errno.EDQUOT)
        said = Refusal(
            what=f"it cannot be written: {fault.strerror}", hint="make room on the store's disk" if full else ""
        )
    sys.stdout.buffer.write(msgspec.json.encode(said))
    return 0


def _unpack(orders: Orders) -> Report:
    os.mkdir("root", 0o755)
    tree = Tree(os.open("root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), orders.caps)
    source = Inflow(sys.stdin.buffer, orders.caps)
    entries = Entries(source)
    walk = iter(entries)
    first = next((entry for entry in walk if entry.name.strip("./")), None)
    if first is None:
        raise LaunchError("it holds no entry")
    config, reference = None, ""
    for entry in chain([first], walk):
        tree.add(entry, entries.chunks(entry))
    source.drain()
    return Report(
        entries=tree.entries, bytes=tree.bytes, left_out=dict(tree.left_out), config=config, reference=reference
    )


if __name__ == "__main__":
    sys.exit(main())

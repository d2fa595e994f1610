"""The process that unpacks: it confines itself, reads a stream from stdin, and says on stdout what came of it.

Started as `python -m tidegate_launcher.image.child ORDERS` by `unpack.py`, with an empty environment.
"""

import errno
import os
import sys
from collections.abc import Iterator
from itertools import chain
from tarfile import TarInfo
from typing import Final

import msgspec

from tidegate.errors import LaunchError
from tidegate_launcher.image.archive import Chosen, apply, choose
from tidegate_launcher.image.blobs import Blobs, is_archive
from tidegate_launcher.image.carried import search, search_config
from tidegate_launcher.image.confine import confine
from tidegate_launcher.image.entry import Entries, EntryRefused
from tidegate_launcher.image.ground import prepare
from tidegate_launcher.image.inflow import Inflow
from tidegate_launcher.image.report import Noted, Orders, Refusal, Report
from tidegate_launcher.image.tree import Tree

__all__: list[str] = []

_MOST_REFUSED: Final = 100


def main() -> int:
    """Do as ordered; exit 0 when something was said."""
    orders = msgspec.json.decode(sys.argv[1], type=Orders)
    try:
        os.fchdir(orders.folder)
        os.umask(0o022)  # the tree is what the archive says, whoever imports it
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
    report = _files(entries, tree) if orders.kind == "files" else _image(entries, tree, orders)
    source.drain()
    return msgspec.structs.replace(report, entries=tree.entries, bytes=tree.bytes, left_out=dict(tree.left_out))


def _image(entries: Entries, tree: Tree, orders: Orders) -> Report:
    walk = iter(entries)
    first = next((entry for entry in walk if entry.name.strip("./")), None)
    if first is None:
        raise LaunchError("it holds no entry")
    whole = chain([first], walk)
    chosen = _archive(whole, entries, tree, orders) if is_archive(first) else None
    for entry in whole:
        tree.add(entry, entries.chunks(entry))
    config = chosen.config if chosen else None
    root = os.open("root", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    carried = (*search(root), *search_config(config))
    if orders.prepared:
        prepare(root)
    return Report(carried=carried, config=config, reference=chosen.reference if chosen else "")


def _files(entries: Entries, tree: Tree) -> Report:
    refused, count = [], 0
    for entry in entries:
        try:
            tree.add(entry, entries.chunks(entry))
        except EntryRefused as fault:
            count += 1
            if count <= _MOST_REFUSED:
                refused.append(Noted(entry.name, fault.what))
    return Report(refused=tuple(refused), refused_count=count)


def _archive(whole: Iterator[TarInfo], entries: Entries, tree: Tree, orders: Orders) -> Chosen:
    os.mkdir("blobs", 0o700)
    folder = os.open("blobs", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    blobs = Blobs(folder, orders.caps)
    for entry in whole:
        blobs.add(entry, entries.chunks(entry))
    chosen = choose(blobs, tag=orders.tag, machine=orders.machine)
    apply(blobs, chosen, tree, orders.caps)
    return chosen


if __name__ == "__main__":
    sys.exit(main())

"""The keeper's memory: shelves of sealed values. SQLite on one machine; a second store fits the protocol."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from tidegate.errors import KeeperError
from tidegate.keeper.seal import Seal
from tidegate.keeper.wire import decode_result, encode

__all__ = ["SqliteStore", "Store", "fetch", "keep", "walk"]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS shelf (name TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL, PRIMARY KEY (name, key))
WITHOUT ROWID
"""


class Store(Protocol):
    """Values by shelf and key. A write is on the disk when `put` returns, unless it says `hurried`."""

    def get(self, shelf: str, key: str) -> bytes | None:
        """Return a value, or None."""
        ...

    def put(self, shelf: str, key: str, value: bytes, *, hurried: bool = False) -> None:
        """Keep a value. Hurried ones survive a killed keeper, not a machine that loses power."""
        ...

    def drop(self, shelf: str, key: str) -> None:
        """Forget a value."""
        ...

    def items(self, shelf: str) -> Iterator[tuple[str, bytes]]:
        """Walk over a shelf."""
        ...

    def close(self) -> None:
        """End the use of the store."""
        ...


class SqliteStore:
    """The store in one SQLite file, values sealed. Raises `KeeperError` for what SQLite cannot do."""

    def __init__(self, path: Path, seal: Seal) -> None:
        self._seal = seal
        with _translated():
            self._db = sqlite3.connect(path, isolation_level=None)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA secure_delete = ON")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute(_SCHEMA)

    def get(self, shelf: str, key: str) -> bytes | None:
        """Return a value, or None."""
        with _translated():
            row = self._db.execute("SELECT value FROM shelf WHERE name = ? AND key = ?", (shelf, key)).fetchone()
        return None if row is None else self._seal.open(_place(shelf, key), row[0])

    def put(self, shelf: str, key: str, value: bytes, *, hurried: bool = False) -> None:
        """Keep a value."""
        sealed = self._seal.close(_place(shelf, key), value)
        with _translated():
            if hurried:
                self._db.execute("PRAGMA synchronous = NORMAL")
            try:
                self._db.execute("INSERT OR REPLACE INTO shelf VALUES (?, ?, ?)", (shelf, key, sealed))
            finally:
                if hurried:
                    self._db.execute("PRAGMA synchronous = FULL")

    def drop(self, shelf: str, key: str) -> None:
        """Forget a value."""
        with _translated():
            self._db.execute("DELETE FROM shelf WHERE name = ? AND key = ?", (shelf, key))

    def items(self, shelf: str) -> Iterator[tuple[str, bytes]]:
        """Walk over a shelf as it is now."""
        with _translated():
            rows = self._db.execute("SELECT key, value FROM shelf WHERE name = ?", (shelf,)).fetchall()
        for key, sealed in rows:
            yield key, self._seal.open(_place(shelf, key), sealed)

    def close(self) -> None:
        """Close the file."""
        self._db.close()


def keep(store: Store, shelf: str, key: str, value: msgspec.Struct, *, hurried: bool = False) -> None:
    """Keep a struct."""
    store.put(shelf, key, encode(value), hurried=hurried)


def fetch[T](store: Store, shelf: str, key: str, kind: type[T]) -> T | None:
    """Return a kept struct, or None."""
    value = store.get(shelf, key)
    return None if value is None else _read(value, kind, shelf)


def walk[T](store: Store, shelf: str, kind: type[T]) -> Iterator[tuple[str, T]]:
    """Walk over the structs of a shelf."""
    for key, value in store.items(shelf):
        yield key, _read(value, kind, shelf)


def _read[T](value: bytes, kind: type[T], shelf: str) -> T:
    try:
        return decode_result(value, kind)
    except msgspec.MsgspecError as fault:
        raise KeeperError("a kept value has an unknown form", where=f"store, shelf {shelf}") from fault


def _place(shelf: str, key: str) -> bytes:
    return f"{shelf}\0{key}".encode()


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as fault:
        raise KeeperError(f"the keeper's store failed: {fault}", where="store") from fault

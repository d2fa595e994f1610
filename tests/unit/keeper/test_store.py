import os
import stat
from pathlib import Path

import pytest

from tests.unit.keeper.made import TurnedClock
from tidegate.errors import KeeperError
from tidegate.keeper.keys import Keys
from tidegate.keeper.seal import Seal, load_seal
from tidegate.keeper.store import SqliteStore

VALUE = b"a value that must not be seen on the disk"


def _store(path: Path, key: bytes = b"k" * 32) -> SqliteStore:
    return SqliteStore(path / "store.db", Seal(key))


def test_a_value_comes_back_and_is_not_on_the_disk(tmp_path: Path) -> None:
    store = _store(tmp_path)
    store.put("shelf", "key", VALUE)
    store.put("shelf", "hurried", VALUE, hurried=True)
    store.close()
    store = _store(tmp_path)
    assert store.get("shelf", "key") == VALUE
    assert dict(store.items("shelf")) == {"key": VALUE, "hurried": VALUE}
    store.drop("shelf", "key")
    assert store.get("shelf", "key") is None
    assert all(VALUE not in path.read_bytes() for path in tmp_path.iterdir())


def test_another_key_opens_nothing(tmp_path: Path) -> None:
    _store(tmp_path).put("shelf", "key", VALUE)
    with pytest.raises(KeeperError, match="seal key"):
        _store(tmp_path, b"x" * 32).get("shelf", "key")


@pytest.mark.parametrize("at", [0, 5, 20, -1])
def test_a_changed_bit_or_a_moved_value_is_noticed(at: int) -> None:
    seal = Seal(b"k" * 32)
    sealed = bytearray(seal.close(b"here", VALUE))
    with pytest.raises(KeeperError):
        seal.open(b"there", bytes(sealed))
    sealed[at] ^= 1
    with pytest.raises(KeeperError):
        seal.open(b"here", bytes(sealed))


def test_the_seal_key_is_made_once_and_private(tmp_path: Path) -> None:
    path = tmp_path / "seal.key"
    sealed = load_seal(path, None).close(b"p", VALUE)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_seal(path, None).open(b"p", sealed) == VALUE
    path.chmod(0o644)
    with pytest.raises(KeeperError, match="read by others"):
        load_seal(path, None)


def test_a_given_seal_key_is_used_and_none_is_made(tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.write_bytes(os.urandom(40))
    load_seal(tmp_path / "seal.key", given)
    assert not (tmp_path / "seal.key").exists()
    given.write_bytes(b"short")
    with pytest.raises(KeeperError, match="fewer than 32"):
        load_seal(tmp_path / "seal.key", given)
    with pytest.raises(KeeperError, match="cannot be read"):
        load_seal(tmp_path / "seal.key", tmp_path / "missing")


def test_keys_are_made_once_and_are_three(tmp_path: Path) -> None:
    clock = TurnedClock()
    first = Keys(_store(tmp_path), clock)
    second = Keys(_store(tmp_path), clock)
    assert first.authority.pem() == second.authority.pem()
    assert first.audit.private_bytes_raw() == second.audit.private_bytes_raw()
    assert first.audit.public_key() != first.token_public[0]

"""Who each process is: as root, as one user, and as one half of two."""

import os
import pwd

import pytest

from tidegate.runtime.identity import Half, Identity, identities, own_half

KEEPER, GATE, MINTER = (Identity(number, number) for number in (64731, 64732, 64733))
OWN = Identity(1000, 1000)


@pytest.mark.parametrize(
    ("uid", "only", "expected"),
    [
        pytest.param(0, None, (KEEPER, GATE, MINTER, False), id="root"),
        pytest.param(0, "gate", (KEEPER, GATE, MINTER, False), id="root, one half"),
        pytest.param(1000, None, (OWN, OWN, OWN, True), id="one user for all"),
        pytest.param(1000, "keeper", (OWN, GATE, OWN, False), id="the keeper's half"),
        pytest.param(1000, "gate", (KEEPER, OWN, KEEPER, False), id="the gate's half"),
        pytest.param(64732, "keeper", (GATE, GATE, GATE, True), id="the keeper as the gate's user"),
    ],
)
def test_each_role_has_its_user(
    monkeypatch: pytest.MonkeyPatch, uid: int, only: Half | None, expected: tuple[object, ...]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    monkeypatch.setattr(os, "getegid", lambda: uid)
    monkeypatch.setattr(pwd, "getpwnam", {}.__getitem__)
    assert tuple(identities(only)) == expected


@pytest.mark.parametrize(("uid", "half"), [(64731, "keeper"), (64732, "gate"), (64733, None), (1000, None), (0, None)])
def test_a_halfs_user_knows_its_half(monkeypatch: pytest.MonkeyPatch, uid: int, half: Half | None) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    monkeypatch.setattr(pwd, "getpwnam", {}.__getitem__)
    assert own_half() == half

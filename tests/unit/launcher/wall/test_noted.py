"""What a wall was put up as, and whether it still is so: notes, devices and switches, in a folder of the test's own."""

import socket
from pathlib import Path
from typing import Any

import pytest

from tidegate.errors import LaunchError
from tidegate_launcher.wall import nft, noted

RULE = {
    "rule": {"family": "inet", "table": "tidegate-tg0", "chain": "closed", "comment": "everything else", "expr": []}
}
TABLE = {"table": {"family": "inet", "name": "tidegate-tg0"}}


class Scene:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.notes, self.devices = folder / "notes", folder / "net"
        self.devices.mkdir()
        self.listed: list[dict[str, Any]] = [TABLE, RULE]
        self.applied: list[list[str]] = []
        monkeypatch.setattr(noted, "NOTES", self.notes)
        monkeypatch.setattr(noted, "_DEVICES", self.devices)
        monkeypatch.setattr(socket, "if_nameindex", self.named)
        monkeypatch.setattr(socket, "if_nametoindex", self.index)
        monkeypatch.setattr(nft, "apply", lambda _: self.applied.append(self.there()))
        monkeypatch.setattr(nft, "read", lambda: nft.Ruleset(self.listed))
        self.device("tg0", 7)

    def named(self) -> list[tuple[int, str]]:
        return [(int((path / "ifindex").read_text()), path.name) for path in self.devices.iterdir()]

    def index(self, name: str) -> int:
        found = {there: index for index, there in self.named()}
        if name not in found:
            raise OSError("no such device")
        return found[name]

    def there(self) -> list[str]:
        return [path.name for path in self.notes.glob("*.json")]

    def device(self, name: str, index: int) -> Path:
        (self.devices / name).mkdir()
        (self.devices / name / "ifindex").write_text(f"{index}\n")
        return self.devices / name

    def put_up(self) -> int:
        return noted.put_up("tidegate-tg0", {}, device="tg0")

    def wrong(self) -> list[str]:
        return noted.wrong("tidegate-tg0", nft.Ruleset(self.listed), device="tg0")


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(tmp_path, monkeypatch)


def test_the_note_comes_after_the_rules_and_whole(scene: Scene) -> None:
    assert scene.put_up() == 1
    assert scene.applied == [[]], "while the rules were put up there was none"
    assert len(scene.there()) == 1
    assert not list(scene.notes.glob("*.new"))
    assert scene.wrong() == []


def test_rules_that_cannot_be_noted_are_not_put_up(scene: Scene) -> None:
    scene.notes.write_text("in the way")
    with pytest.raises(LaunchError, match="cannot be noted"):
        scene.put_up()
    assert scene.applied == []


def test_rules_that_do_not_stand_are_told_and_not_noted(scene: Scene) -> None:
    scene.listed = []
    with pytest.raises(LaunchError, match="do not stand"):
        scene.put_up()
    assert scene.there() == []


def test_without_a_note_there_was_no_wall(scene: Scene) -> None:
    with pytest.raises(LaunchError, match="no wall was put up here"):
        scene.wrong()
    scene.put_up()
    [note] = scene.notes.glob("*.json")
    note.write_text("{}")
    with pytest.raises(LaunchError, match="no wall was put up here"):
        scene.wrong()


def test_what_is_missing_strange_or_in_another_order_is_named(scene: Scene) -> None:
    other = {"rule": {**RULE["rule"], "comment": "hole"}}
    scene.listed = [TABLE, RULE, other]
    scene.put_up()
    scene.listed = [TABLE, other, RULE]
    assert scene.wrong() == ["the rules stand in another order"]
    scene.listed = [TABLE, other]
    assert scene.wrong() == ["missing: rule 'everything else' of chain closed"]
    scene.listed = [TABLE, RULE, other, {"rule": {**RULE["rule"], "comment": "a\x1b[2J\nb"}}]
    assert scene.wrong() == ["not ours: rule 'a\\x1b[2J\\nb' of chain closed"]


def test_when_all_of_it_is_gone_that_is_one_thing_to_say(scene: Scene) -> None:
    scene.put_up()
    scene.listed = []
    assert scene.wrong() == ["no rule of it stands any more: put the wall up again"]


def test_a_device_that_is_gone_renamed_another_or_in_a_bridge_is_told(scene: Scene) -> None:
    scene.put_up()
    device = scene.devices / "tg0"
    (device / "master").symlink_to(scene.device("br0", 9))
    assert scene.wrong() == ["the device is part of br0: its packets pass beside the rules"]
    (device / "upper_br0").symlink_to(scene.devices / "br0")
    assert scene.wrong() == ["the device is part of br0: its packets pass beside the rules"]
    (device / "master").unlink()
    (device / "upper_br0").unlink()
    device.rename(scene.devices / "other0")
    assert scene.wrong() == ["the device has another name now: its rules hold nothing"]
    assert not noted.gone("tidegate-tg0", "tg0")
    (scene.devices / "other0").rename(scene.devices.parent / "away")
    assert scene.wrong() == ["the device is gone"]
    assert noted.gone("tidegate-tg0", "tg0")
    scene.device("tg0", 8)
    assert scene.wrong() == ["this is another device of the same name: put the wall up again"]
    assert not noted.gone("tidegate-tg0", "tg0"), "packets come by it, past the rules at the link"


def test_a_device_whose_wall_was_taken_away_first_is_gone_with_its_name(scene: Scene) -> None:
    scene.put_up()
    noted.forget("tidegate-tg0")
    assert not noted.gone("tidegate-tg0", "tg0")
    (scene.devices / "tg0").rename(scene.devices.parent / "away")
    assert noted.gone("tidegate-tg0", "tg0")


@pytest.mark.parametrize(
    ("chain", "told"),
    [
        ({"hook": "ingress", "dev": "tg0"}, True),
        ({"hook": "ingress", "dev": ["tg1", "tg0"]}, True),
        ({"hook": "ingress"}, True),
        ({"hook": "ingress", "dev": "tg1"}, False),
        ({"hook": "prerouting"}, False),
    ],
)
def test_another_table_at_the_device_is_told(scene: Scene, chain: dict[str, Any], told: bool) -> None:
    scene.put_up()
    scene.listed.append({"chain": {"family": "netdev", "table": "beside", "name": "first", **chain}})
    assert scene.wrong() == (["table netdev beside takes packets at the device beside the wall"] if told else [])


def test_a_device_upon_the_device_is_told(scene: Scene) -> None:
    """What is sent to its hardware address comes in by it, and not by ours."""
    scene.put_up()
    for name in ("macvlan0", "tg0.5"):
        (scene.devices / "tg0" / f"upper_{name}").symlink_to(scene.devices)
    assert scene.wrong() == [
        f"{name} stands upon the device: what is sent to it passes beside the rules" for name in ("macvlan0", "tg0.5")
    ]


def test_a_table_is_ours_by_what_was_noted_and_not_by_its_name(scene: Scene) -> None:
    scene.put_up()
    scene.listed.append({"table": {"family": "netdev", "name": "tidegate-tg1"}})
    scene.listed.append({"chain": {"family": "netdev", "table": "tidegate-tg1", "name": "source", "hook": "ingress"}})
    assert scene.wrong() == ["table netdev tidegate-tg1 takes packets at the device beside the wall"]
    noted.put_up("tidegate-tg1", {}, device="tg1")
    assert scene.wrong() == [], "an nft that does not say of which device a chain is"

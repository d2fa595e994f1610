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


def _at(hook: str, *expressions: dict[str, Any], at: str = "first") -> list[dict[str, Any]]:
    place = {"family": "ip", "table": "beside"}
    chain = {"chain": {**place, "name": "first", "type": "filter", "hook": hook, "prio": -150}}
    return [chain, {"chain": {**place, "name": "called"}}, {"rule": {**place, "chain": at, "expr": list(expressions)}}]


def _by(key: str, op: str, right: Any) -> dict[str, Any]:
    return {"match": {"op": op, "left": {"meta": {"key": key}}, "right": right}}


@pytest.mark.parametrize(
    ("beside", "told"),
    [
        pytest.param(_at("prerouting", {"tproxy": {"family": "ip", "port": 9999}}), "tproxy", id="tproxy"),
        pytest.param(_at("input", {"dup": {"addr": "10.99.0.2", "dev": "uplink"}}), "dup", id="a copy"),
        pytest.param(_at("output", {"dup": {"addr": "10.99.0.2", "dev": "uplink"}}), "", id="of what leaves"),
        pytest.param(_at("output", {"dup": {}}, at="called"), "", id="of a table where nothing comes in"),
        pytest.param(_at("prerouting", {"dup": {}}, at="called"), "dup", id="in a chain that is called"),
        pytest.param(_at("prerouting", {"xt": {"type": "target", "name": "TEE"}}), "TEE", id="iptables"),
        pytest.param(_at("prerouting", {"xt": None}), "", id="an nft that does not say what"),
        pytest.param(_at("prerouting", {"xt": {"type": "match", "name": "addrtype"}}), "", id="another word"),
        pytest.param(
            _at("prerouting", {"mangle": {"key": {"payload": {"protocol": "udp", "field": "dport"}}, "value": 22}}),
            "another destination",
            id="another port",
        ),
        pytest.param(_at("prerouting", {"mangle": {"key": {"meta": {"key": "mark"}}, "value": 1}}), "", id="a mark"),
        pytest.param(_at("prerouting", {"dnat": {"addr": "10.77.0.1", "port": 22}}), "", id="dnat, which ours drop"),
        pytest.param(_at("prerouting", {"accept": None}), "", id="accept, which is no end"),
        pytest.param(_at("prerouting", _by("iifname", "==", "eth0"), {"dup": {}}), "", id="of another device"),
        pytest.param(_at("prerouting", _by("iifname", "==", "tg*"), {"dup": {}}), "dup", id="of several by a pattern"),
        pytest.param(_at("prerouting", _by("iif", "==", {"set": ["lo", "tg0"]}), {"dup": {}}), "dup", id="of a set"),
        pytest.param(_at("prerouting", _by("iifname", "==", "@some"), {"dup": {}}), "dup", id="of a set elsewhere"),
        pytest.param(_at("prerouting", _by("iifname", "!=", "tg0"), {"dup": {}}), "", id="of all others"),
        pytest.param(_at("prerouting", {"dup": {}}, _by("iifname", "==", "eth0")), "dup", id="before it is asked"),
    ],
)
def test_a_table_that_leads_packets_past_the_wall_is_told(
    scene: Scene, beside: list[dict[str, Any]], told: str
) -> None:
    scene.put_up()
    scene.listed += beside
    assert scene.wrong() == ([f"table ip beside ({told}) may lead packets past the wall"] if told else [])


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

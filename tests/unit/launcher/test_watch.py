"""The wall's watch: what it reports of what it sees, with rules and log at its seams."""

from collections.abc import Mapping
from typing import Any

import pytest

from tidegate.errors import LaunchError, TidegateError
from tidegate_launcher import nft, noted
from tidegate_launcher.nflog import Dropped
from tidegate_launcher.watch import Place, Watch

QUIC = Dropped("tg0", "everything else", "10.77.0.2", "udp", "192.0.2.7", 443)
COUNTER = "closed: everything else"


class Log:
    def __init__(self) -> None:
        self.packets: list[Dropped] = []

    def fileno(self) -> int:
        return -1

    def read(self) -> list[Dropped]:
        packets, self.packets = self.packets, []
        return packets


class Scene:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log = Log()
        self.counts: nft.Counts = {COUNTER: (100, 6400)}
        self.wrong: list[str] = []
        self.fault: LaunchError | None = None
        self.reports: list[Mapping[str, Any]] = []
        self.said: list[str] = []
        self.deaf = False
        self.now = 0.0
        monkeypatch.setattr(nft, "read", lambda table: self._read())
        monkeypatch.setattr(noted, "wrong", lambda table, rules, *, device: self.wrong)
        self.watch = Watch(self.log, [Place("tidegate-tg0", "tg0")], self._send, self.said.append)
        self.turn()

    def _read(self) -> tuple[list[dict[str, Any]], nft.Counts]:
        if self.fault is not None:
            raise self.fault
        return [], self.counts

    def _send(self, report: Mapping[str, Any]) -> None:
        if self.deaf:
            raise TidegateError("no gate is running there")
        self.reports.append(report)

    def turn(self, packets: list[Dropped] | None = None, counted: int | None = None) -> Mapping[str, Any] | None:
        """Let two seconds pass; return the report of their end."""
        if packets is not None:
            self.log.packets = packets
        if counted is not None:
            self.counts = {COUNTER: (counted, 0)}
        self.now += 2.0
        self.watch.turn(self.now)
        return self.reports[-1] if self.reports else None


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch)


def times(report: Mapping[str, Any] | None) -> dict[str | None, int]:
    assert report is not None
    return {drop["client"]: drop["times"] for drop in report["drops"]}


def test_what_stood_before_is_not_reported(scene: Scene) -> None:
    assert scene.reports == [{"watches": ["tg0"], "problems": [], "drops": [], "ending": False}]


def test_repeats_are_one_with_their_count(scene: Scene) -> None:
    report = scene.turn([QUIC, QUIC], counted=102)
    assert times(report) == {"10.77.0.2": 2}
    assert times(scene.turn()) == {}


def test_what_the_log_left_out_counts_by_its_rule(scene: Scene) -> None:
    assert times(scene.turn([QUIC, QUIC], counted=150)) == {"10.77.0.2": 2, None: 48}


def test_nothing_counts_twice_when_the_log_is_ahead_of_the_counters(scene: Scene) -> None:
    total = 0
    for packets, counted in ((3, 102), (0, 103), (1, 104), (0, 110)):
        report = scene.turn([QUIC] * packets, counted=counted)
        total += sum(times(report).values())
    assert total == 10


def test_counters_that_began_anew_are_not_counted_back(scene: Scene) -> None:
    assert times(scene.turn(counted=5)) == {}
    assert times(scene.turn(counted=7)) == {None: 2}


def test_a_flood_of_different_packets_is_bounded_and_still_counted(scene: Scene) -> None:
    flood = [QUIC._replace(port=port) for port in range(1000)]
    report = scene.turn(flood, counted=1100)
    assert report is not None
    assert len(report["drops"]) <= 65
    assert sum(drop["times"] for drop in report["drops"]) == 1000


def test_another_links_packets_are_not_ours(scene: Scene) -> None:
    assert times(scene.turn([QUIC._replace(device="tg1")])) == {}


def test_what_is_wrong_is_said_once_and_reported_while_it_lasts(scene: Scene) -> None:
    scene.wrong = ["missing: rule 'own ip' of chain source"]
    for _ in range(2):
        report = scene.turn()
        assert report is not None
        assert report["problems"] == ["tg0: missing: rule 'own ip' of chain source"]
    assert scene.said == ["tg0: missing: rule 'own ip' of chain source"]
    scene.wrong = []
    assert (scene.turn() or {})["problems"] == []


def test_a_wall_that_is_being_replaced_is_not_broken(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [["missing: table tidegate-tg0"], []]
    monkeypatch.setattr(noted, "wrong", lambda table, rules, *, device: found.pop(0))
    assert (scene.turn() or {})["problems"] == []
    assert found == []


def test_rules_that_cannot_be_read_are_a_problem(scene: Scene) -> None:
    scene.fault = LaunchError("nft did not answer within 20 s")
    assert "nft did not answer" in (scene.turn() or {})["problems"][0]


def test_what_a_deaf_gate_did_not_take_is_told_later(scene: Scene) -> None:
    scene.deaf = True
    scene.turn([QUIC], counted=101)
    scene.turn([QUIC], counted=102)
    assert scene.said == ["the gate does not take reports: no gate is running there"]
    scene.deaf = False
    assert times(scene.turn()) == {"10.77.0.2": 2}

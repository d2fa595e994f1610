"""The wall's watch: what it reports of what it sees, with rules and log at its seams."""

import os
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from tidegate.errors import LaunchError, TidegateError
from tidegate.keeper import protocol
from tidegate.runtime.walls import WatchReport
from tidegate_launcher.wall import nft, noted
from tidegate_launcher.wall.half import Absent, Half
from tidegate_launcher.wall.link import ANOTHER_SOURCE
from tidegate_launcher.wall.nflog import GATE_USER, USERS, Dropped
from tidegate_launcher.wall.watch import Place, Watch

QUIC = Dropped("tg0", "everything else", "10.77.0.2", "udp", "192.0.2.7", 443)
COUNTER = "closed: everything else"


class Log:
    def __init__(self) -> None:
        self.packets: list[Dropped] = []
        self.silent = os.pipe()

    def fileno(self) -> int:
        return self.silent[0]

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
        self.gone = False
        monkeypatch.setattr(nft, "read", self._read)
        monkeypatch.setattr(noted, "gone", lambda table, device: self.gone)
        monkeypatch.setattr(noted, "wrong", lambda table, standing, *, device: self.wrong)
        monkeypatch.setattr(noted, "made_for", lambda table: ("listen.tls 10.77.0.1:443",))
        self.half = Half(self._send)
        self.watch = Watch(self.log, [Place("tidegate-tg0", "tg0", "tg0")], [self.half], self.said.append)
        self.turn()

    def _read(self) -> nft.Ruleset:
        if self.fault is not None:
            raise self.fault
        rules = [
            {
                "rule": {
                    "table": "tidegate-tg0",
                    "chain": chain,
                    "comment": comment,
                    "expr": [{"counter": _counter(count)}],
                }
            }
            for (chain, _, comment), count in ((name.partition(": "), count) for name, count in self.counts.items())
        ]
        return nft.Ruleset(rules)

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


def _counter(count: tuple[int, int]) -> dict[str, int]:
    return {"packets": count[0], "bytes": count[1]}


def problems(report: Mapping[str, Any] | None) -> dict[str, list[str]]:
    assert report is not None
    return {place["name"]: place["problems"] for place in report["places"]}


def times(report: Mapping[str, Any] | None) -> dict[str | None, int]:
    assert report is not None
    return {drop["client"]: drop["times"] for drop in report["drops"]}


def test_what_stood_before_is_not_reported(scene: Scene) -> None:
    [report] = scene.reports
    place = {"name": "tg0", "problems": [], "made_for": ("listen.tls 10.77.0.1:443",)}
    assert (report["places"], report["drops"], report["ending"]) == ([place], [], False)


def test_it_says_which_namespace_it_looks_at(scene: Scene) -> None:
    assert scene.reports[0]["space"] == os.stat("/proc/self/ns/net").st_ino


def test_what_one_half_does_not_take_keeps_nothing_from_the_other(scene: Scene) -> None:
    def refuse(_: Mapping[str, Any]) -> None:
        raise TidegateError("the gate did not answer")

    scene.watch._halves = [Half(refuse), scene.half]
    told = [scene.turn([QUIC], counted=101 + turn) for turn in range(3)]
    assert [report["number"] for report in told if report] == [2, 3, 4]
    assert [times(report) for report in told] == [{"10.77.0.2": 1}] * 3
    assert scene.said == ["reports wait until they are taken: the gate did not answer"]


def test_a_half_that_is_not_there_is_nothing_to_speak_of_beside_one_that_is(scene: Scene) -> None:
    def nobody(_: Mapping[str, Any]) -> None:
        raise Absent("no gate is running there")

    scene.watch._halves = [scene.half, Half(nobody)]
    scene.turn()
    assert scene.said == []
    scene.watch.end()
    assert scene.watch.run() is True
    assert scene.reports[-1]["ending"]


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
    assert len(report["drops"]) <= 65, "there is room for so many"
    assert sum(drop["times"] for drop in report["drops"]) == 1000


def test_another_links_packets_are_not_ours(scene: Scene) -> None:
    assert times(scene.turn([QUIC._replace(device="tg1")])) == {}


def test_what_is_wrong_is_said_once_and_reported_while_it_lasts(scene: Scene) -> None:
    scene.wrong = ["missing: rule 'own ip' of chain source"]
    for _ in range(2):
        assert problems(scene.turn()) == {"tg0": ["missing: rule 'own ip' of chain source"]}
    assert scene.said == ["tg0: missing: rule 'own ip' of chain source"]
    scene.wrong = []
    assert problems(scene.turn()) == {"tg0": []}


def test_very_much_that_is_wrong_is_counted_in_a_report(scene: Scene) -> None:
    """A report that is too long for the gate would be lost, each second."""
    scene.wrong = [f"missing: rule '{number}' of chain held" for number in range(200)]
    told = problems(scene.turn())["tg0"]
    assert (len(told), told[-1]) == (20, "181 more")
    assert len(scene.said) == 200
    scene.wrong = scene.wrong[:20]
    assert problems(scene.turn())["tg0"] == scene.wrong


def test_a_wall_that_is_being_replaced_is_not_broken(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [["missing: table tidegate-tg0"], []]
    monkeypatch.setattr(noted, "wrong", lambda table, standing, *, device: found.pop(0))
    assert problems(scene.turn()) == {"tg0": []}
    assert found == []


def test_rules_that_cannot_be_read_are_a_problem(scene: Scene) -> None:
    scene.fault = LaunchError("nft did not answer within 20 s")
    assert "nft did not answer" in problems(scene.turn())["tg0"][0]
    scene.fault = None
    assert times(scene.turn(counted=103)) == {None: 3}, "what was dropped meanwhile, and nothing from before"


def test_a_link_that_is_gone_is_watched_no_more_and_is_no_problem(scene: Scene) -> None:
    scene.gone = True
    assert problems(scene.turn()) == {}
    assert scene.said == ["tg0: the link is gone, and watched no more"]


def test_a_link_that_comes_back_is_watched_again(scene: Scene) -> None:
    """Between two looks, or later: by the new one packets come past the rules at the link."""
    scene.watch._places.append(Place("tidegate-tg1", "tg1", "tg1"))
    scene.gone = True
    for _ in range(2):
        assert problems(scene.turn()) == {}
    scene.gone = False
    scene.wrong = ["this is another device of the same name: put the wall up again"]
    assert problems(scene.turn()) == {"tg0": scene.wrong, "tg1": scene.wrong}
    assert scene.said.count("tg0: the link is gone, and watched no more") == 1


def test_it_ends_by_itself_with_the_last_of_its_links(scene: Scene) -> None:
    """Though other rules stand: in a namespace without a link nobody is held by them, and a new one has none yet."""
    scene.watch._places.append(Place("tidegate-the-user-of-the-gate", GATE_USER, None))
    scene.gone = True
    assert scene.watch.run() is False
    assert scene.reports[-1]["ending"]


def test_told_to_end_it_says_so(scene: Scene) -> None:
    scene.watch.end()
    assert scene.watch.run() is True


def test_a_report_that_was_not_taken_comes_again_as_it_was(scene: Scene) -> None:
    scene.deaf = True
    sent: list[Mapping[str, Any]] = []
    scene.half._send = lambda report: (sent.append(report), scene._send(report))
    scene.turn([QUIC], counted=101)
    scene.turn([QUIC], counted=102)
    scene.deaf = False
    scene.turn()
    assert sent[0] == sent[1] == sent[2]
    scene.turn()
    assert sent[3]["number"] == sent[0]["number"] + 1
    assert sum(drop["times"] for report in (sent[2], sent[3]) for drop in report["drops"]) == 2


def test_many_drops_of_many_links_come_in_several_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    scene.watch._places = [Place(f"tidegate-tg{number}", f"tg{number}", f"tg{number}") for number in range(60)]
    flood = [
        QUIC._replace(device=f"tg{number}", port=port, address=f"192.0.2.{port}")
        for number in range(60)
        for port in range(9)
    ]
    scene.turn(flood)
    for _ in range(8):
        scene.turn()
    assert max(len(report["drops"]) for report in scene.reports) <= 100
    assert sum(drop["times"] for report in scene.reports for drop in report["drops"]) == 540
    for report in scene.reports:
        taken = msgspec.json.decode(msgspec.json.encode(report), type=WatchReport)
        assert len(msgspec.json.encode(report)) < 64 * 1024
        assert taken.number == report["number"]


def test_one_links_noise_takes_nothing_from_anothers_record(scene: Scene) -> None:
    scene.watch._places.append(Place("tidegate-tg1", "tg1", "tg1"))
    other = QUIC._replace(device="tg1")
    report = scene.turn([QUIC._replace(port=port) for port in range(500)] + [other])
    assert report is not None
    assert [drop["address"] for drop in report["drops"] if drop["device"] == "tg1"] == ["192.0.2.7"]


def test_what_the_gates_user_was_kept_from_is_told(scene: Scene) -> None:
    scene.watch._places.append(Place("tidegate-the-user-of-the-gate", GATE_USER, None))
    report = scene.turn([QUIC._replace(device=GATE_USER, rule="metadata ip", address="169.254.169.254")])
    assert report is not None
    assert [drop["device"] for drop in report["drops"]] == [GATE_USER]


def test_what_a_deaf_gate_did_not_take_is_told_later(scene: Scene) -> None:
    scene.deaf = True
    scene.turn([QUIC], counted=101)
    scene.turn([QUIC], counted=102)
    assert scene.said == ["reports wait until they are taken: no gate is running there"]
    scene.deaf = False
    assert [times(scene.turn()) for _ in range(2)] == [{"10.77.0.2": 1}, {"10.77.0.2": 1}]


def test_both_sides_have_one_word_for_what_they_tell_apart() -> None:
    told = (protocol.GATE_USER, protocol.USERS, protocol.ANOTHER_SOURCE)
    assert told == (GATE_USER, USERS, ANOTHER_SOURCE)

"""Reading: merged, filtered, followed."""

import os
from itertools import islice
from pathlib import Path
from types import NoneType, UnionType
from typing import Literal, NewType, Union, get_args, get_origin

import msgspec
import pytest

from tests.unit.audit.making import ALICE, BOB, SignedLog, allow, deny, files, http
from tidegate.audit.event import BLOCKS, Block, CallScope, Dns, Subject
from tidegate.audit.query import Filter, Reader, parse_time
from tidegate.audit.recorder import Recorder
from tidegate.audit.redact import loggable
from tidegate.audit.writer import ChainWriter
from tidegate.policy.reasons import Reason, Verdict


def shown(directory: Path, **wanted: str) -> list[tuple[str, int]]:
    return [(one.record.chain, one.record.seq) for one in Reader(directory, Filter(**wanted)).read()]


def two_gates(directory: Path) -> SignedLog:
    log = SignedLog(directory)
    one, two = log.gate("gate-1"), log.gate("gate-2")
    for number in range(3):
        log.clock.forward(1)
        allow(one, ALICE, host=f"h{number}.example.com")
        log.clock.forward(1)
        deny(two, BOB, host="evil.example")
    two.event(BOB, "d", Dns(name=loggable("q.example.com")), verdict=Verdict.ALLOW)
    return log


def filled(kind: object) -> object:
    """Return a value of a type; of a choice one that is not None."""
    if isinstance(kind, NewType):
        kind = kind.__supertype__
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return inner[0]
    if origin in (Union, UnionType):
        return filled(next(one for one in inner if one is not NoneType))
    if origin is tuple:
        return (filled(inner[0]),)
    if origin is dict:
        return {filled(inner[0]): filled(inner[1])}
    return {str: "x", int: 1, float: 1.5, bool: True}[kind]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.kind)
def test_every_field_that_a_block_can_have_is_read(tmp_path: Path, block: type[Block]) -> None:
    whole = block(**{field.name: filled(field.type) for field in msgspec.structs.fields(block)})
    SignedLog(tmp_path).gate("gate-1").event(ALICE, "d", whole)
    (entry,) = (one for one in Reader(tmp_path, Filter(flow="d")).read())
    assert entry.record.type == block.kind
    assert entry.block() == msgspec.json.decode(msgspec.json.encode(whole))


def test_chains_are_merged_by_time(tmp_path: Path) -> None:
    two_gates(tmp_path)
    assert shown(tmp_path, type="http") == [
        ("gate-1", 1), ("gate-2", 1), ("gate-1", 2), ("gate-2", 2), ("gate-1", 3), ("gate-2", 3),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        pytest.param({"session": "s-alice"}, 3, id="session"),
        pytest.param({"verdict": "deny"}, 3, id="verdict"),
        pytest.param({"reason": "not_in_allowlist"}, 3, id="reason"),
        pytest.param({"host": "h1.example.com"}, 1, id="host"),
        pytest.param({"host": "*.example.com"}, 4, id="hosts below, over http and dns"),
        pytest.param({"host": "example.com"}, 0, id="a suffix is no match"),
        pytest.param({"type": "dns"}, 1, id="type"),
        pytest.param({"flow": "d"}, 1, id="flow"),
        pytest.param({"since": "2030-01-02T03:04:08", "type": "http"}, 4, id="since"),
        pytest.param({"until": "2030-01-02T03:04:08", "type": "http"}, 2, id="until"),
        pytest.param({"host": "*.example.com", "verdict": "deny"}, 0, id="both"),
    ],
)
def test_filters(tmp_path: Path, wanted: dict[str, str], count: int) -> None:
    two_gates(tmp_path)
    assert len(shown(tmp_path, **wanted)) == count


def test_V_12_a_clock_that_steps_back_does_not_reorder_a_chain(tmp_path: Path) -> None:
    log = SignedLog(tmp_path)
    recorder = log.gate()
    for step in (10.0, -3600.0, 5.0):
        log.clock.wall_now += step
        allow(recorder)
    assert [seq for chain, seq in shown(tmp_path) if chain == "gate-1"] == [0, 1, 2, 3]


def test_lines_that_are_no_records_are_counted_and_left_out(tmp_path: Path) -> None:
    two_gates(tmp_path)
    with files(tmp_path / "gate-1")[0].open("ab") as file:
        file.write(b"garbage\n[]\n\xff\n")
    reader = Reader(tmp_path, Filter(type="http"))
    assert len(list(reader.read())) == 6
    assert reader.skipped == 3


def test_following_shows_what_is_added_once_and_new_chains_too(tmp_path: Path) -> None:
    log = SignedLog(tmp_path)
    recorder = log.gate()
    steps = [lambda: allow(recorder), lambda: deny(log.gate("gate-2")), lambda: None]

    allow(recorder)
    following = Reader(tmp_path, Filter(type="http")).follow(pause=lambda: steps.pop(0)())
    seen = [(entry.record.chain, entry.record.seq) for entry in islice(following, 3)]
    assert seen == [("gate-1", 1), ("gate-1", 2), ("gate-2", 1)]


def test_a_line_half_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    log = SignedLog(tmp_path)
    recorder = log.gate()
    allow(recorder)
    path = files(tmp_path / "gate-1")[0]
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    reader = Reader(tmp_path, Filter(type="http"))
    assert list(reader.read()) == []
    path.write_bytes(whole)
    assert len(list(reader.read())) == 1


def test_a_line_is_given_as_it_was_written(tmp_path: Path) -> None:
    recorder = SignedLog(tmp_path).gate()
    subject = Subject(session="s")
    recorder.http_decision(subject, "f", http(), verdict=Verdict.DENY, reason=Reason.METADATA)
    (entry,) = Reader(tmp_path, Filter(session="s")).read()
    assert entry.line in files(tmp_path / "gate-1")[0].read_bytes().splitlines()


CALLS = (("web", "c1"), ("web", "c2"), ("a:b", "c1"), ("x\x1b[2J", "c3"))


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        pytest.param({"call": "web"}, [0, 1], id="a tool"),
        pytest.param({"call": "c1"}, [0, 2], id="an id"),
        pytest.param({"call": "web:c2"}, [1], id="both"),
        pytest.param({"call": "a:b:c1"}, [2], id="a tool with a colon"),
        pytest.param({"call": "x\x1b[2J:c3"}, [3], id="as the model said it"),
        pytest.param({"call": "x\\x1b[2J"}, [3], id="as the log has it"),
        pytest.param({"call": "we"}, [], id="a part"),
        pytest.param({"session": "s-parent"}, [None, 0, 1, 2, 3], id="a session with its calls"),
        pytest.param({"session": "s-1"}, [1], id="one call's session"),
        pytest.param({"session": "s-parent", "call": "c2"}, [1], id="in a session"),
    ],
)
def test_calls_are_found_by_what_they_are_called(
    tmp_path: Path, wanted: dict[str, str], found: list[int | None]
) -> None:
    recorder = SignedLog(tmp_path).gate()
    deny(recorder, Subject(session="s-parent"))
    for number, (tool, id) in enumerate(CALLS):
        call = CallScope(loggable(tool), loggable(id), "s-parent")
        deny(recorder, Subject(session=f"s-{number}", call=call))
    recorder.close()
    sessions = [entry.record.session for entry in Reader(tmp_path, Filter(**wanted)).read()]
    assert sessions == ["s-parent" if at is None else f"s-{at}" for at in found]


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2030-01-02T03:04:05Z", "2030-01-02T03:04:05.000000Z"),
        ("2030-01-02T05:04:05+02:00", "2030-01-02T03:04:05.000000Z"),
        ("2030-01-02", "2030-01-02T00:00:00.000000Z"),
        ("90s", "2030-01-02T03:02:35.000000Z"),
        ("2h", "2030-01-02T01:04:05.000000Z"),
        ("7d", "2029-12-26T03:04:05.000000Z"),
    ],
)
def test_times(text: str, time: str) -> None:
    assert parse_time(text, 1893553445.0) == time


@pytest.mark.parametrize("text", ["", "yesterday", "2h ago", "5", "2030-13-01"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_time(text, 0.0)


def test_a_pipe_or_a_link_in_the_place_of_a_segment_holds_no_reader(tmp_path: Path) -> None:
    two_gates(tmp_path)
    before = shown(tmp_path)
    for number, chain in enumerate(("gate-8", "gate-9")):
        (tmp_path / chain).mkdir()
        at = tmp_path / chain / "000000000000.jsonl"
        os.mkfifo(at) if number else at.symlink_to(next((tmp_path / "gate-1").iterdir()))
    reader = Reader(tmp_path, Filter())
    assert len(list(reader.read())) == len(before)
    assert {fault.where: fault.what for fault in reader.unread.values()} == {
        "gate-8/000000000000.jsonl": "a link stands in its place",
        "gate-9/000000000000.jsonl": "this is no regular file",
    }
    assert reader.skipped == 0


def test_a_chain_that_no_keeper_announced_is_marked(tmp_path: Path) -> None:
    two_gates(tmp_path)
    forged = Recorder(ChainWriter(tmp_path, "gate-0-0123456789ab", fsync="never"))
    allow(forged)
    reader = Reader(tmp_path, Filter())
    marked = {entry.record.chain for entry in reader.read() if entry.unannounced}
    assert marked == reader.unannounced == {"gate-0-0123456789ab"}


def test_a_file_that_is_cut_is_told_once_and_followed_on_from_there(tmp_path: Path) -> None:
    two_gates(tmp_path)
    path = files(tmp_path / "gate-1")[0]
    reader = Reader(tmp_path, Filter())
    whole = len(list(reader.read()))
    first, *_, last = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first)
    assert (list(reader.read()), whole > 0) == ([], True)
    path.write_bytes(first + last)
    assert len(list(reader.read())) == 1
    assert [fault.what for fault in reader.unread.values()] == ["this was cut below what had been read"]


def test_what_is_taken_away_between_two_looks_is_no_fault(tmp_path: Path) -> None:
    two_gates(tmp_path)
    path = files(tmp_path / "gate-2")[0]
    reader = Reader(tmp_path, Filter(type="http"))
    entries = reader.read()
    path.unlink()
    path.parent.rmdir()
    assert {entry.record.chain for entry in entries} == {"gate-1"}
    assert reader.unread == {}

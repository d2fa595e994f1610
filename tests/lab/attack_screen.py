"""The worked attack on one screen: what each place gave away, the gate's log of it, and the probe's card in short."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.lab.attack import CHANNELS, COLLECTOR, METADATA, Attack, Haul, attack_runtime
from tests.lab.internet import ATTACKER
from tests.lab.roots import engine_cache
from tests.lab.screen import Screen, require
from tidegate_launcher import probe

__all__ = ["EXPECTED", "show_attack", "wrong_with"]

EXPECTED: Final = {
    "plain container": {"file", "env", "metadata"},
    "gVisor": {"env", "metadata"},
    "gVisor, home mounted": {"file", "env", "metadata"},
    "gVisor + Tidegate": set[str](),
}
"""What each place gives away: without a gate, all that it was given and all that its network has."""
_ROW: Final = "{:<20}  {:<4} {:<9} {:<11} {:<8} {:<7} {}"
_REASONS: Final = {"metadata", "not_in_allowlist", "blocked_address"}
"""What stands in the log of the last place: the metadata, the server by its name, the server by its address."""


def show_attack(screen: Screen, made: Attack, curl: Callable[..., tuple[int, str]]) -> None:
    """Run the attack in each place, and the probe in the last; `curl` is a client's that reads pages by the gate."""
    _show_runsc(screen)
    with screen.step("a page that carries an injection") as say:
        status, page = curl(made.page())
        require(status == 200, f"status {status}")
        lines = len(made.write(page).read_text().splitlines())
        say(f"{lines} lines of Python, taken as they are")
    screen.note(_ROW.format("run in", "task", "~/.aws", "environment", "metadata", "posted", "stopped by"))
    for place, run in made.places():
        haul = run()
        screen.verdict(_ROW.format(place, *_cells(haul)), wrong_with(haul))
    screen.note("No record of the first three; the mount is the bug, not the boundary.")
    if haul.session:
        _show_records(screen, made, haul)
    with screen.step("tidegate run … probe.py") as say:
        report = made.probe(Path(probe.__file__))
        count = report["count"]
        require(count["open"] == 0, f"{count['open']} ways out are open: {_open(report)}")
        require(count["closed"] > 200, f"only {count['closed']} were tried for certain")
        say(f"0 open, {count['closed']} closed, {count['not testable']} not testable")
    with screen.step("what is left of it") as say:
        left = made.left()
        require(not left, ", ".join(left))
        say("nothing")


def wrong_with(haul: Haul) -> str:
    """Return in what a place was not as it must be, or nothing."""
    if haul.fault:
        return haul.fault.strip().splitlines()[-1][:200]
    if not haul.task:
        return f"the task was not done: {haul.said.get('task', '')[:100]}"
    expected = EXPECTED[haul.place]
    if haul.read != expected:
        return f"read: {_list(haul.read)}"
    if haul.posted != expected:
        return f"posted: {_list(haul.posted)}"
    reached = {METADATA, COLLECTOR} if expected else set()
    if haul.met != reached:
        return f"reached: {', '.join(sorted(haul.met)) or 'nothing'}"
    return ""


def _cells(haul: Haul) -> tuple[str, ...]:
    return (
        "done" if haul.task else "-",
        "READ" if "file" in haul.read else "not there",
        "READ" if "env" in haul.read else "placeholder",
        "READ" if "metadata" in haul.read else "refused",
        f"{len(haul.posted)} of {len(CHANNELS)}" if haul.posted else "nothing",
        _stopped_by(haul),
    )


def _stopped_by(haul: Haul) -> str:
    if not haul.posted:
        return "the gate" if haul.session else "?"
    return "nothing" if "file" in haul.read else "no mount"


def _list(channels: frozenset[str]) -> str:
    return ", ".join(channel for channel in CHANNELS if channel in channels) or "nothing"


def _open(report: dict[str, Any]) -> str:
    return ", ".join(str(way["way"]) for way in report["ways"] if way["state"] == probe.OPEN)[:100]


def _show_records(screen: Screen, made: Attack, haul: Haul) -> None:
    """Show the gate's log of the last place: each way that was tried, and what it was refused for."""
    lines: list[str] = []
    with screen.step("tidegate log --verdict deny") as say:
        made.running.wait_audit(
            lambda found: {line.get("reason") for line in found} >= _REASONS, session=haul.session, verdict="deny"
        )
        lines = made.running.cli("log", "--session", haul.session, "--verdict", "deny").stdout.splitlines()[1:]
        require(any(line.split()[3:5] == ["POST", ATTACKER] for line in lines), "the post is not in the log")
        say(f"{len(lines)} lines of session {haul.session}")
    for line in lines:
        screen.note(re.sub(" {2,}", " ", line.partition(" ")[2]))


def _show_runsc(screen: Screen) -> None:
    """Show which runsc it is, and that it is the one of the set-up."""
    with screen.step("runsc") as say:
        found, noted = attack_runtime(), engine_cache() / "runsc.json"
        known = json.loads(noted.read_text()) if noted.exists() else {"sha256": found.sha256}
        require(known["sha256"] == found.sha256, "not the one that the set-up has noted: run `make setup`")
        say(f"{found.release}, {found.platform}, sha256 {found.sha256[:12]}")

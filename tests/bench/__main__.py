"""`make bench`: direct, stock `mitmdump -q` and Tidegate with everything on, interleaved; then launches against runsc.

Under load client and upstream share one CPU, the proxy has the other; for the reload line it has both. Never a test: a
missed target is shown and leaves the exit status alone. Exit 1: figures are missing or must not be used.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import yaml

from tests.bench import still
from tests.bench.contender import Contender, direct, mitmdump, tidegate, wall
from tests.bench.launch import suite as launches
from tests.bench.load import Invalid, Job, Result, command, parse, run
from tests.bench.memory import PeakMemory
from tests.bench.questions import questions
from tests.bench.report import LAUNCHES, RESULTS, store, table
from tests.bench.rounds import Rounds, order
from tests.bench.suite import BULK, CAPTURED, CAPTURED_KEPT, JOBS, KEPT, Line, answered, lines
from tests.bench.upstream import AWAY, Upstream, upstream
from tests.lab.world import GATE, why_no_world, world

_CLIENT_CORE, _PROXY_CORE = 0, 1
_ROUNDS, _LAUNCH_ROUNDS = 3, 15
_WAYS = {"mitmdump": mitmdump, "tidegate": tidegate}


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench ARGS=…", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--rounds", type=int, help=f"rounds of each job (default {_ROUNDS}; of launches {_LAUNCH_ROUNDS})"
    )
    parser.add_argument("--quick", action="store_true", help="one short round: does it run at all?")
    parser.add_argument("--only", action="append", default=[], metavar="WORD", help="jobs whose name holds WORD")
    parser.add_argument("--into", type=Path, default=RESULTS, metavar="FOLDER", help="where all figures are kept")
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        choices=sorted(_WAYS),
        help="leave a proxy out; tidegate: launches too",
    )
    return parser.parse_args(argv)


def _say(text: str) -> None:
    print(f"· {text}", file=sys.stderr, flush=True)


class _Bench:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.rounds_wanted = 1 if arguments.quick else arguments.rounds or _ROUNDS
        self.launch_rounds_wanted = 1 if arguments.quick else arguments.rounds or _LAUNCH_ROUNDS
        self.scale = 0.3 if arguments.quick else 1.0
        self.only: list[str] = arguments.only
        self.jobs = self.wanted(JOBS)
        self.rounds: dict[Job, Rounds[Result]] = {}
        self.growth_mb: dict[tuple[Job, str], float] = {}
        self.faults: list[str] = []

    def wanted(self, jobs: Sequence[Job]) -> list[Job]:
        """Return those that were asked for."""
        return [job for job in jobs if self.wants(job.name)]

    def wants(self, name: str) -> bool:
        """Whether what has this name was asked for."""
        return not self.only or any(word in name for word in self.only)

    def measure(self, job: Job, contenders: Sequence[Contender], server: Upstream) -> None:
        these = self.rounds[job] = Rounds()
        for number, contender in order(contenders, self.rounds_wanted):
            peak = PeakMemory(contender.pids() if contender.inspects and job in BULK else [])
            try:
                result = run(job, contender, server, core=_CLIENT_CORE, scale=self.scale)
            except (Invalid, subprocess.TimeoutExpired) as fault:
                these.add(contender.name, None)
                self.faults.append(f"{job.name}, {contender.name}, round {number + 1}: {fault}")
                _say(f"{self.faults[-1]}")
                continue
            these.add(contender.name, result)
            if contender.inspects and job in BULK:
                key = (job, contender.name)
                self.growth_mb[key] = max(self.growth_mb.get(key, 0.0), peak.growth_mb)
            cpu = f", {result.cpu_us:,.0f} µs CPU" if contender.inspects else ""
            _say(f"{job.name}, {contender.name}: {result.requests} good, p50 {result.p50_ms:.2f} ms{cpu}")


def _reload_line(contender: Contender, server: Upstream, bench: _Bench) -> Line:
    """Reload a policy of 10,000 rules under load: how long, and was a request lost?

    On both CPUs: pinned to one, supervisor and keeper would wait for the worker that is being loaded.
    """
    gate = contender.gate
    if gate is None:
        raise TypeError("only a gate reloads")
    for pid in contender.pids():
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(ProcessLookupError):  # a thread may have ended meanwhile
                os.sched_setaffinity(int(thread), {_CLIENT_CORE, _PROXY_CORE})
    load = subprocess.Popen(
        ["taskset", "-c", str(_CLIENT_CORE), *command(KEPT, contender, server)], stdout=subprocess.PIPE, text=True
    )
    time.sleep(1.0)
    config = yaml.safe_load(gate.config_file.read_text())
    config["policies"]["bench"]["allow"] += still.large_rules(still.LARGE)
    gate.config_file.write_text(yaml.safe_dump(config))
    began = time.perf_counter()
    status, answer = gate.admin("POST", "/v1/reload")
    took = time.perf_counter() - began
    output, _ = load.communicate(timeout=60)
    result = parse(output)
    lost = result.errors
    if status >= 300:
        bench.faults.append(f"reload of a large policy: {status} {answer}")
    shown = f"{took:.2f} s, {lost} lost"
    met = took < 1 and lost == 0 and status < 300
    return Line(f"reload, {still.LARGE:,} rules", "under load", "–", "–", shown, "–", "< 1 s, none lost", met)


def _behind_a_wall(bench: _Bench) -> list[Line]:
    """Measure one gate with and without its client knowing of it, and its responder, between namespaces."""
    jobs, asked = bench.wanted(CAPTURED), not bench.only or "responder" in bench.only
    if not (jobs or asked):
        return []
    why = why_no_world()
    if why is not None:
        _say(f"left out, what is behind a wall: {why}")
        return []
    with (
        world(addresses=[AWAY]) as place,
        upstream(core=_CLIENT_CORE, place=place) as server,
        tidegate(server, core=_PROXY_CORE, place=place) as contender,
    ):
        for job in jobs:
            if job is CAPTURED_KEPT:
                wall(contender, "up")
            dialled = server.host if job is CAPTURED_KEPT else GATE
            bench.measure(job, [contender, contender.without_proxy(dialled)], server)
            wall(contender, "down")  # it lets a link connect 200 times a second, and ask 500 times
        return answered(questions(contender, core=_CLIENT_CORE, seconds=3.0 * bench.scale)) if asked else []


def _still_lines(ready_seconds: float | None) -> list[Line]:
    cost = still.decision_cost()
    spread = cost.large_us / cost.small_us
    loaded, version = still.load_seconds(), still.version_seconds()
    found = [
        Line(
            "one decision",
            f"{still.SMALL} and {still.LARGE:,} rules",
            "–",
            "–",
            f"{cost.small_us:.1f} and {cost.large_us:.1f} µs",
            f"{spread:.2f}×",
            "< 20 µs, ±20 %",
            max(cost.small_us, cost.large_us) < 20 and 0.8 <= spread <= 1.2,
        ),
        Line("load and compile", f"{still.LARGE:,} rules", "–", "–", f"{loaded:.2f} s", "–", "< 1 s", loaded < 1),
        Line("tidegate --version", "", "–", "–", f"{version * 1e3:.0f} ms", "–", "< 150 ms", version < 0.15),
    ]
    if ready_seconds is not None:
        shown = f"{ready_seconds:.2f} s"
        found.append(Line("up to ready", "", "–", "–", shown, "–", "< 2 s", ready_seconds < 2))
    return found


def _on_loopback(bench: _Bench, without: Sequence[str]) -> list[Line]:
    """Measure the jobs of all contenders, and return the lines of what is no job."""
    extra: list[Line] = []
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(upstream(core=_CLIENT_CORE))
        contenders = [direct()]
        for name, way in _WAYS.items():
            if name not in without:
                contenders.append(stack.enter_context(way(server, core=_PROXY_CORE)))
        _say("measuring " + ", ".join(contender.name for contender in contenders))
        for job in bench.jobs:
            bench.measure(job, contenders, server)
        gates = [contender for contender in contenders if contender.gate]
        if not bench.only:
            extra += _still_lines(gates[0].ready_seconds if gates else None)
            extra += [_reload_line(contender, server, bench) for contender in gates]
    return extra


def main(argv: Sequence[str]) -> int:
    """Measure, print the table, store the figures."""
    arguments = _arguments(argv)
    if (os.cpu_count() or 1) < 2:
        print("two CPUs are needed: one for the client, one for the proxy", file=sys.stderr)
        return 1
    bench = _Bench(arguments)
    began = time.monotonic()
    extra = _on_loopback(bench, arguments.without) if bench.jobs or not bench.only else []
    extra += _behind_a_wall(bench) if "tidegate" not in arguments.without else []
    names = [name for name in launches.ALL if bench.wants(name) and "tidegate" not in arguments.without]
    launched = launches.measure(names, bench.launch_rounds_wanted, _say)
    bench.faults += launched.faults
    found = lines(bench.rounds, bench.growth_mb) + extra
    given = vars(arguments) | {"into": str(arguments.into)}
    path = store(arguments.into, found + launched.lines, bench.rounds, launched.rounds, bench.faults, given)
    if found:
        print(table(found))
        print(f"\nratio: mitmdump over Tidegate, round by round; {bench.rounds_wanted} rounds, interleaved.\n")
    if launched.lines:
        print(table(launched.lines, LAUNCHES))
        print(f"\nratio: launcher over runsc, round by round; {bench.launch_rounds_wanted} rounds, interleaved.")
    print(f"{time.monotonic() - began:.0f} s; all figures: {path}")
    for fault in bench.faults:
        print(f"not usable: {fault}")
    return 1 if bench.faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

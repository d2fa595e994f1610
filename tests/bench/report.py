"""The table for people, and the file for later."""

import dataclasses
import json
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.bench.load import Job, Result
from tests.bench.rounds import Rounds
from tests.bench.suite import Line

__all__ = ["LAUNCHES", "LOAD", "RESULTS", "store", "table"]

RESULTS = Path(__file__).parent / "results"
_MET = {True: "ok", False: "MISSED", None: ""}


LOAD = ("direct", "mitmdump -q", "Tidegate")
LAUNCHES = ("runsc run", "", "launcher")
"""What the three columns of figures are; one without a name is left out."""


def table(lines: Sequence[Line], columns: tuple[str, str, str] = LOAD) -> str:
    """Return the lines as an aligned table; a job's name stands on its first line only."""
    rows = [("", "", *columns, "ratio (low–high)", "target", "")]
    last = ""
    for line in lines:
        name = "" if line.job == last else line.job
        rows.append((name, line.figure, line.direct, line.rival, line.ours, line.ratio, line.target, _MET[line.met]))
        last = line.job
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(_row(row, widths) for row in rows)


def _row(row: tuple[str, ...], widths: Sequence[int]) -> str:
    # Words to the left, figures to the right.
    cells = [
        cell.ljust(width) if column < 2 or column > 5 else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cell for cell, width in zip(cells, widths, strict=True) if width).rstrip()


def store(
    folder: Path,
    lines: Sequence[Line],
    rounds: Mapping[Job, Rounds[Result]],
    launches: Mapping[str, Rounds[float]],
    faults: Sequence[str],
    arguments: Mapping[str, object],
) -> Path:
    """Write everything to a file of its own in `folder` and return its path. Launches are in seconds, memory in MB."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / time.strftime("%Y-%m-%dT%H%M%S.json")
    content = {
        "machine": {"system": platform.platform(), "processor": _processor(), "python": platform.python_version()},
        "arguments": dict(arguments),
        "lines": [dataclasses.asdict(line) for line in lines],
        "rounds": {
            job.name: {
                contender: [dataclasses.asdict(result) if result else None for result in results]
                for contender, results in these.results.items()
            }
            for job, these in rounds.items()
        },
        "launches": {name: these.results for name, these in launches.items()},
        "faults": list(faults),
    }
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    return path


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()

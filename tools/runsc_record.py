"""Which runsc a set-up uses: has it run something here, and writes down what it is.

runsc_record.py PATH SOURCE     prints the record as JSON; exit 1, and why, when it cannot be used
runsc_record.py --told FILE     prints a record on one line
"""

import json
import os
import sys
from pathlib import Path

from tidegate.errors import LaunchError
from tidegate_launcher.gvisor.runsc import inspect_runsc

__all__ = ["record", "told"]


def record(path: Path, source: str) -> dict[str, str | int]:
    """Return what is known of a runsc. Raises `LaunchError`: it is too old, or nothing runs on it here."""
    found = inspect_runsc(path, os.environ)
    return {
        "path": str(found.path),
        "source": source,
        "release": found.release,
        "sha256": found.sha256,
        "platform": found.platform,
    }


def told(known: dict[str, str | int]) -> str:
    """Return a record on one line."""
    return f"{known['release']} ({known['source']}), {known['platform']}, sha256 {str(known['sha256'])[:16]}…"


def main() -> int:
    """Do what the arguments say."""
    if sys.argv[1] == "--told":
        print(told(json.loads(Path(sys.argv[2]).read_text())))
        return 0
    try:
        print(json.dumps(record(Path(sys.argv[1]), sys.argv[2])))
    except LaunchError as fault:
        print(f"! {sys.argv[1]}: {fault}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

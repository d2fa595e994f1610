"""Starts a gate whose workers are `faulty_worker`: `python -O -P faulty_gate.py … up …`, as the lab's prefix.

No feature of the product: the supervisor is the real one, but for the name of the module that its workers run.
"""

import functools
import sys

from tidegate.cli.main import main
from tidegate.runtime import supervisor
from tidegate.runtime.fleet import Fleet

if __name__ == "__main__":
    vars(supervisor)["Fleet"] = functools.partial(Fleet, module="faulty_worker")
    sys.argv = ["tidegate", *sys.argv[sys.argv.index("up") :]]
    sys.exit(main())

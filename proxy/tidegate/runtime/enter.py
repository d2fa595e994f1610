"""Enter a child's module with its rights already dropped: `enter PARENT UID GID MODULE ARGUMENT…`.

The module is imported as the caller and run as the identity; it must have a `main()` that reads `sys.argv`.
"""

import importlib
import os
import sys

from tidegate.errors import TidegateError
from tidegate.runtime.confine import become, die_with_parent, keep_imports, limit
from tidegate.runtime.identity import Identity

__all__ = ["main"]


def main() -> None:
    """Import, drop, run. Exits with the module's own code, or 1 with one line on stderr."""
    parent, uid, gid = (int(word) for word in sys.argv[1:4])
    name = sys.argv[4]
    identity = Identity(uid, gid)
    try:
        die_with_parent(parent)
        limit()
        module = importlib.import_module(name)
        keep_imports(identity)
        become(identity, parent=parent)
        sys.argv = [name, *sys.argv[5:]]
        code = module.main()
    except TidegateError as fault:
        if os.environ.get("TIDEGATE_TRACEBACK"):
            raise
        sys.exit(f"tidegate: error: {name}: {fault}")
    sys.exit(code)


if __name__ == "__main__":
    main()

"""`python -m tidegate.keeper`."""

from tidegate.keeper.process import main

__all__ = ["main"]

if __name__ == "__main__":
    raise SystemExit(main())

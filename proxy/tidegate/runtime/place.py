"""Where a fault happened, in words that hold nothing of what was being handled (C-32)."""

import traceback
from pathlib import Path

__all__ = ["fault_place"]


def fault_place(fault: BaseException) -> str:
    """Return `Kind at file:line in function` of the innermost frame; never the message, which may hold bytes."""
    frames = traceback.extract_tb(fault.__traceback__)
    if not frames:
        return type(fault).__name__
    last = frames[-1]
    ours = next((frame for frame in reversed(frames) if "tidegate" in frame.filename), last)
    return f"{type(fault).__name__} at {Path(ours.filename).name}:{ours.lineno} in {ours.name}"

"""How far the memory of processes rises while something runs."""

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

__all__ = ["PeakMemory", "resident_mb"]


class PeakMemory:
    """Remembers the resident size of `pids` now; `growth_mb` is the largest rise of one of them since."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._before: dict[int, float] = {}
        for pid in pids:
            with contextlib.suppress(OSError):
                # «5» resets the high-water mark to the present size (proc(5), clear_refs).
                Path(f"/proc/{pid}/clear_refs").write_text("5")
            size = resident_mb(pid, "VmRSS")
            if size is not None:
                self._before[pid] = size

    @property
    def growth_mb(self) -> float:
        """Return the largest rise in MB, peaks in between included."""
        peaks = {pid: resident_mb(pid, "VmHWM") for pid in self._before}
        return max((peak - self._before[pid] for pid, peak in peaks.items() if peak is not None), default=0.0)


def resident_mb(pid: int, field: Literal["VmRSS", "VmHWM"]) -> float | None:
    """Return what a process holds now (`VmRSS`), or has held at the most (`VmHWM`); None when it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) / 1000 for line in lines if line.startswith(f"{field}:")), None)

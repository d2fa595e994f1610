"""A clock for tests: it stands still until it is moved."""

from dataclasses import dataclass

__all__ = ["SteppedClock"]


@dataclass
class SteppedClock:
    """Stands still until it is moved; 2030-01-02T03:04:05Z at first."""

    wall_now: float = 1893553445.0
    boot_now: float = 1000.0

    def wall(self) -> float:
        return self.wall_now

    def boot(self) -> float:
        return self.boot_now

    def forward(self, seconds: float) -> None:
        self.wall_now += seconds
        self.boot_now += seconds

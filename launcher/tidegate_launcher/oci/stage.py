"""The folders of one launch by a runtime of containers: what is below is the runtime's own."""

from pathlib import Path
from typing import Self

from tidegate.errors import LaunchError
from tidegate_launcher import stage
from tidegate_launcher.stage import Stage

__all__ = ["RuntimeStage"]


class RuntimeStage(Stage, frozen=True):
    """The folders of one launch, with those of its runtime."""

    @classmethod
    def make(cls, scratch: Path, name: str) -> Self:
        """Make them in the launch's scratch. Raises `LaunchError`."""
        made = cls(stage.make_stage(scratch, name).folder)
        try:
            for folder in (made.state, made.bundle):
                folder.mkdir(0o700)
        except OSError as fault:
            raise LaunchError(f"no place for a sandbox: {fault.strerror}", where=str(made.folder)) from fault
        return made

    @property
    def state(self) -> Path:
        """The runtime's own state root."""
        return self.folder / "state"

    @property
    def bundle(self) -> Path:
        """The folder with config.json."""
        return self.folder / "bundle"

    @property
    def log(self) -> Path:
        """What the runtime says of itself."""
        return self.folder / "runtime.log"

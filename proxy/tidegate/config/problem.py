"""What is wrong in a configuration: one problem, and all of them at once."""

import msgspec

from tidegate.errors import ConfigError

__all__ = ["ConfigErrors", "Problem"]


class Problem(msgspec.Struct, frozen=True, order=True):
    """One thing to mend. `key` is a path such as `policies.triage.allow[2].host`."""

    file: str
    line: int
    key: str
    message: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{where}: {self.key}: {self.message}" if self.key else f"{where}: {self.message}"


class ConfigErrors(ConfigError):
    """Every problem of a configuration; nothing of it is applied (invariant 8)."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = sorted(set(problems))
        super().__init__("\n".join(map(str, self.problems)), hint="nothing was applied")

    def __str__(self) -> str:
        return self.what

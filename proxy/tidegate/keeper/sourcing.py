"""From a source in the settings to the secret itself."""

from collections.abc import Mapping
from pathlib import Path
from typing import final

from tidegate.config.model import CommandSource, EnvSource, FileSource
from tidegate.credentials.sources.env import read_env
from tidegate.credentials.sources.file import read_file
from tidegate.errors import ConfigError, CredentialError
from tidegate.keeper.minting import MinterLink
from tidegate.keeper.settings import Rulebook
from tidegate.secret import Secret

__all__ = ["Sourcing"]


@final
class Sourcing:
    """Fetches secrets: variables and files here, commands by the minter."""

    def __init__(self, environ: Mapping[str, str], minter: MinterLink | None) -> None:
        self._environ = environ
        self.minter = minter

    async def fetch(self, book: Rulebook, credential: str) -> Secret:
        """Return the credential's secret as it is now; raises `CredentialError`."""
        short = book.settings.credentials[credential].unsafe_short_secret
        match book.source(credential):
            case EnvSource(variable=variable):
                return read_env(variable, self._environ, unsafe_short=short)
            case FileSource(path=path):
                return read_file(Path(path), unsafe_short=short)
            case CommandSource(argv=argv, timeout_seconds=seconds):
                if self.minter is None:
                    raise CredentialError("there is no minter to run commands", where=f"credentials.{credential}")
                return await self.minter.command(argv, timeout_seconds=seconds, unsafe_short=short)

    async def check(self, book: Rulebook) -> None:
        """Read every variable and file once; raises `ConfigError` that names all that cannot be used.

        Commands run at the first use: a vendor that is away must not stop a reload.
        """
        problems = []
        for name, source in book.settings.sources.items():
            if isinstance(source, CommandSource) or name not in book.settings.credentials:
                continue
            try:
                await self.fetch(book, name)
            except CredentialError as fault:
                problems.append(f"credentials.{name}.source: {fault}")
        if problems:
            raise ConfigError("; ".join(problems))

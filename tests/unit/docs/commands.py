"""The commands that the pages show, read by the command line's own parser."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click

from tidegate.cli.main import cli

__all__ = ["leaf_commands", "parse", "shown_commands"]

_FENCE = re.compile(r"```(?:sh|console)\n(.*?)```", re.DOTALL)
_CALL = re.compile(r"(?:^|[\s|;&(])(tidegate(?: [^|;&)\n>]+)?)")


def leaf_commands() -> Iterator[str]:
    """Yield the path of every command."""
    yield from _leaves("tidegate", cli)


def _leaves(path: str, command: click.Command) -> Iterator[str]:
    if not isinstance(command, click.Group):
        yield path
        return
    for name in command.list_commands(click.Context(command)):
        inner = command.get_command(click.Context(command), name)
        assert inner is not None
        yield from _leaves(f"{path} {name}", inner)


def shown_commands(page: Path) -> list[str]:
    """Return every `tidegate …` in the page's shell blocks, fenced or indented, and in its running text."""
    text = page.read_text()
    indented = "\n".join(re.findall(r"^ {4}((?:tidegate|eval|\$ ).*)$", text, re.MULTILINE))
    blocks = [*_FENCE.findall(text), indented]
    lines = [line.partition("  #")[0] for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    calls = [call.strip() for line in lines if not line.startswith("#") for call in _CALL.findall(line)]
    return calls + _inline(text)


def _inline(text: str) -> list[str]:
    """Return what stands in backticks in running text, where it is a whole command and no part of one."""
    plain = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    found = [" ".join(call.split()) for call in re.findall(r"`(tidegate [a-z][^`]*)`", plain)]
    named = set(leaf_commands())
    # «…» stands for what the reader fills in, `a|b` is a choice; the name of a command alone is no call of it.
    return [call.partition(" >")[0] for call in found if "…" not in call and "|" not in call and call not in named]


def parse(call: str) -> None:
    """Parse a command; raises click's own error for what is none. Nothing is run."""
    words = shlex.split(call.rstrip('"'))[1:]
    command: click.Command = cli
    context = click.Context(cli, info_name="tidegate")
    while isinstance(command, click.Group):
        while words and words[0] in ("-v", "--version", "--help", "-h"):
            words.pop(0)
        if not words:
            return
        name, *words = words
        found = command.get_command(context, name)
        if found is None:
            raise click.UsageError(f"no command {name!r}")
        command = found
    command.make_context(command.name, list(words), parent=context)

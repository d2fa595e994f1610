"""Which package index this machine's own clients are configured for: asked of the clients, at lock time only.

| client | asked | built-in default |
|---|---|---|
| pip | `pip config list` (files and environment) | from `pip download --help` |
| npm | `npm config get registry`, and scopes from `npm config list` | what npm itself answers |
| apt | `apt-get indextargets` | none |
| cargo | `$CARGO_HOME/config.toml`, `CARGO_REGISTRIES_*` | none |
| go | `go env GOPROXY GOSUMDB` | what go itself answers |
| maven | `~/.m2/settings.xml` | none |

Every client runs in `/`, so that no workspace's own file is read: what a sandbox can write must not
choose where sandboxes may go. An entry under `registries:` in the configuration stands in for all of it.
"""

import json
import re
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from tidegate.errors import ConfigError

__all__ = ["CLIENTS", "Found", "Machine", "Run", "discover", "run_client"]

type Run = Callable[[Sequence[str]], str | None]


class Found(msgspec.Struct, frozen=True):
    """An index, and where it is configured. The URL never holds a password."""

    url: str
    where: str
    needed: bool = True
    """False: the client works without it, so it may be left out where it cannot be reached."""


class Machine(msgspec.Struct, frozen=True):
    """What discovery may look at; tests give another one."""

    run: Run
    environ: Mapping[str, str]
    home: Path


def run_client(argv: Sequence[str], *, environ: Mapping[str, str], timeout_seconds: float = 60.0) -> str | None:
    """Return what a client prints, None when it is not installed or fails."""
    wide = {**environ, "COLUMNS": "1000", "LC_ALL": "C.UTF-8", "NO_COLOR": "1", "GOWORK": "off"}
    try:
        done = subprocess.run(
            argv, cwd="/", env=wide, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_seconds, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None


def discover(client: str, machine: Machine, *, registries: Mapping[str, str]) -> list[Found]:
    """Return the client's indexes; raise `ConfigError` when none is configured."""
    given = registries.get(client)
    found = [Found(given, f"registries.{client}")] if given else list(_READERS[client](machine))
    web = [_without_user(index) for index in found if index.url.startswith(("https://", "http://"))]
    if not web:
        raise ConfigError(
            f"{client} is not installed here, or has no index configured",
            hint=f'configure {client}, or say registries: {{{client}: "https://…"}} in the configuration',
        )
    return list(dict.fromkeys(web))


def _without_user(found: Found) -> Found:
    """Drop user and password: the lock is committed (invariant 5)."""
    parts = urlsplit(found.url)
    if "@" not in parts.netloc:
        return found
    return Found(parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl(), found.where, found.needed)


_PIP_LINE: Final = re.compile(r"(\S+)\.(index-url|extra-index-url|find-links)='(.*)'", re.DOTALL)
_PIP_DEFAULT: Final = re.compile(r"--index-url\s.*?\(default (https?://[^\s)]+)\)", re.DOTALL)


def _pip(machine: Machine) -> Iterator[Found]:
    for pip in (["pip"], ["pip3"], [sys.executable, "-m", "pip"]):
        if (listed := machine.run([*pip, "config", "list"])) is not None:
            break
    else:
        return
    main = False
    for line in listed.splitlines():
        match = _PIP_LINE.fullmatch(line.strip())
        if match is None:
            continue
        section, key, value = match.groups()
        main = main or key == "index-url"
        for url in value.replace("\\n", " ").split():
            yield Found(url, f"pip config list: {section}.{key}")
    if not main:
        shown = _PIP_DEFAULT.search(machine.run([*pip, "download", "--help"]) or "")
        if shown is not None:
            yield Found(shown[1], "the built-in default of pip")


def _npm(machine: Machine) -> Iterator[Found]:
    main = (machine.run(["npm", "config", "get", "registry"]) or "").strip()
    if main:
        yield Found(main, "npm config get registry")
    try:
        listed = json.loads(machine.run(["npm", "config", "list", "--json"]) or "{}")
    except ValueError:
        return
    for key, value in sorted(listed.items()):
        if key.startswith("@") and key.endswith(":registry") and isinstance(value, str):
            yield Found(value, f"npm config list: {key}")


def _apt(machine: Machine) -> Iterator[Found]:
    listed = machine.run(["apt-get", "indextargets", "--format", "$(REPO_URI)"]) or ""
    for url in dict.fromkeys(listed.split()):
        yield Found(url, "apt-get indextargets")


def _cargo(machine: Machine) -> Iterator[Found]:
    folder = Path(machine.environ.get("CARGO_HOME") or machine.home / ".cargo")
    for name in ("config.toml", "config"):
        try:
            config = tomllib.loads((folder / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as fault:
            raise ConfigError(f"cannot be read: {fault}", where=str(folder / name)) from fault
        for table, key in (("source", "registry"), ("registries", "index")):
            for entry, values in config.get(table, {}).items():
                if isinstance(values, dict) and isinstance(values.get(key), str):
                    yield Found(values[key].removeprefix("sparse+"), f"{folder / name}: {table}.{entry}")
        break
    for name, value in sorted(machine.environ.items()):
        if name.startswith("CARGO_REGISTRIES_") and name.endswith("_INDEX"):
            yield Found(value.removeprefix("sparse+"), f"${name}")


def _go(machine: Machine) -> Iterator[Found]:
    listed = machine.run(["go", "env", "GOPROXY", "GOSUMDB"])
    if listed is None:
        return
    proxies, _, sums = listed.partition("\n")
    for url in re.split(r"[,|]", proxies.strip()):
        yield Found(url, "go env GOPROXY")  # «direct» and «off» are no URLs, and drop out
    words = sums.split()
    if words and words[0] != "off":
        # «name», «name+key», or «name url» (go help environment).
        url = words[1] if len(words) > 1 else f"https://{words[0].partition('+')[0]}"
        yield Found(url, "go env GOSUMDB", needed=False)  # a proxy may serve it as well


def _maven(machine: Machine) -> Iterator[Found]:
    path = machine.home / ".m2" / "settings.xml"
    try:
        root = ET.fromstring(path.read_text(encoding="utf-8"))  # noqa: S314 - the operator's own file
    except FileNotFoundError:
        return
    except (OSError, ValueError, ET.ParseError) as fault:
        raise ConfigError(f"cannot be read: {fault}", where=str(path)) from fault
    for kind in ("mirror", "repository", "pluginRepository"):
        for element in root.iter():
            if element.tag.rpartition("}")[2] != kind:
                continue
            for child in element:
                if child.tag.rpartition("}")[2] == "url" and child.text:
                    yield Found(child.text.strip(), f"{path}: {kind}")


_READERS: Final[Mapping[str, Callable[[Machine], Iterator[Found]]]] = {
    "pip": _pip,
    "npm": _npm,
    "apt": _apt,
    "cargo": _cargo,
    "go": _go,
    "maven": _maven,
}
CLIENTS: Final = tuple(_READERS)

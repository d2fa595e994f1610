"""`policy lock`: from the clients' indexes to the hosts that sandboxes may read from.

An index may send its files from another host, which is part of no configuration; so the index
itself is asked, once, over the same checked way as everything else (`fetch`):

| client | asked | the hosts of |
|---|---|---|
| pip | the page of one small project | its file links |
| npm | the record of one small package | its tarball |
| cargo | `config.json` of a sparse index | `dl` |
| apt, go, maven | nothing | |

Then every host is looked up, and refused where only the user may let it in: `addresses`.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from html.parser import HTMLParser
from typing import Final, Literal
from urllib.parse import urljoin, urlsplit

import msgspec

from tidegate.config.discover import Found, Machine, discover
from tidegate.config.form import FileForm, LockedHostForm, PolicyForm, UseForm
from tidegate.config.presets import load_preset
from tidegate.errors import ConfigError, TidegateError
from tidegate.policy.names import SCHEME_PORTS, Authority, parse_authority, parse_pattern

__all__ = ["Fetched", "LockResult", "Vetted", "Wanted", "make_lock", "wanted"]

PROBES: Final = {"pip": "six", "npm": "once"}
"""Small, old projects that nearly every full index has."""


class Fetched(msgspec.Struct, frozen=True):
    """A page: every URL that was asked on the way to it, and its text."""

    urls: tuple[str, ...]
    text: str


class Wanted(msgspec.Struct, frozen=True):
    """A client that some policy uses, with the `addresses` that every use gives."""

    client: str
    preset: str
    addresses: tuple[str, ...]


class LockResult(msgspec.Struct, frozen=True):
    """The hosts for the lock, what to tell the user, and what stands in the way."""

    hosts: dict[str, tuple[LockedHostForm, ...]]
    notes: tuple[str, ...]
    problems: tuple[str, ...]


type Fetch = Callable[[str, tuple[str, ...]], Awaitable[Fetched]]
"""(url, networks allowed beside the public ones) -> page; raises `TidegateError`."""


class Vetted(msgspec.Struct, frozen=True):
    """What is wrong with the addresses of a host, in words, or nothing; `special` is what the user may allow."""

    problem: str = ""
    special: tuple[str, ...] = ()


type Vet = Callable[[Authority, tuple[str, ...]], Awaitable[Vetted]]
"""(host and port, networks allowed beside the public ones) -> verdict."""


def wanted(policies: Mapping[str, PolicyForm]) -> list[Wanted]:
    """Return the clients that the policies use by preset; raise `ConfigError` for an unknown preset."""
    found: dict[str, Wanted] = {}
    for policy in policies.values():
        for use in policy.use:
            given = UseForm(preset=use) if isinstance(use, str) else use
            client = load_preset(given.preset).discover
            if client is None:
                continue
            known = found.get(client)
            # A host that only one of two policies may reach inside the network stays shut for the other at run time.
            addresses = tuple(dict.fromkeys((*(known.addresses if known else ()), *given.addresses)))
            found[client] = Wanted(client, given.preset, addresses)
    return [found[client] for client in sorted(found)]


async def make_lock(
    wants: Sequence[Wanted],
    form: FileForm,
    machine: Machine,
    *,
    fetch: Fetch,
    vet: Vet,
    probes: Mapping[str, str] = PROBES,
) -> LockResult:
    """Ask, look up, and return the lock's hosts; nothing is written here."""
    hosts: dict[str, tuple[LockedHostForm, ...]] = {}
    notes: list[str] = []
    problems: list[str] = []
    for want in wants:
        try:
            indexes = discover(want.client, machine, registries=form.registries)
            entries = [(_entry(index), index.needed) for index in indexes]
        except ConfigError as fault:
            problems.append(f"{want.client}: {fault}")
            continue
        gate = _Gate(want, vet)
        # The index is vetted before it is asked anything (invariant 1).
        kept = await gate.pass_through(entries)
        if not gate.problems:
            beside = await _file_hosts(want, indexes, fetch, probes.get(want.client, ""), notes)
            known = {_place(entry) for entry in kept}
            kept += await gate.pass_through([(entry, True) for entry in beside if _place(entry) not in known])
        notes += gate.notes
        problems += gate.told()
        hosts[want.client] = _merged(kept)
    return LockResult(hosts, tuple(notes), tuple(problems))


def _place(entry: LockedHostForm) -> tuple[str, int]:
    return entry.host.text, entry.port


def _merged(entries: Sequence[LockedHostForm]) -> tuple[LockedHostForm, ...]:
    found: dict[tuple[str, int], LockedHostForm] = {}
    for entry in entries:
        found.setdefault(_place(entry), entry)
    return tuple(found.values())


def _entry(found: Found) -> LockedHostForm:
    parts = urlsplit(found.url)
    protocol: Literal["https", "http"] = "https" if parts.scheme == "https" else "http"
    try:
        port = parts.port or SCHEME_PORTS[protocol]
    except ValueError as fault:
        raise ConfigError(f"{found.url} has no port that can be used", where=found.where) from fault
    host = parse_pattern(parts.hostname or "")
    return LockedHostForm(host=host, protocol=protocol, port=port, found=found.where)


class _Gate:
    """Vets the hosts of one client, and gathers what the user would have to allow."""

    def __init__(self, want: Wanted, vet: Vet) -> None:
        self.problems: list[str] = []
        self.notes: list[str] = []
        self._want = want
        self._vet = vet
        self._special: list[str] = []

    async def pass_through(self, entries: Sequence[tuple[LockedHostForm, bool]]) -> list[LockedHostForm]:
        """Return the entries that a rule could reach; `True` beside one says that it must be among them."""
        kept = []
        for entry, needed in entries:
            vetted = await self._vetted(entry)
            if not vetted.problem:
                kept.append(entry)
                continue
            self._special += vetted.special
            text = f"{self._want.client}: {entry.host} ({entry.found}) {vetted.problem}"
            if needed or vetted.special:
                self.problems.append(text)
            else:
                self.notes.append(f"{text}; left out")
        return kept

    async def _vetted(self, entry: LockedHostForm) -> Vetted:
        text = f"[{entry.host}]" if ":" in entry.host.text else str(entry.host)
        authority = parse_authority(f"{text}:{entry.port}", default_port=None)
        if not isinstance(authority, Authority):
            return Vetted("is not a host")
        return await self._vet(authority, self._want.addresses)

    def told(self) -> list[str]:
        """Return the problems, with the line that would allow every special address among them."""
        if not self._special:
            return self.problems
        addresses = ", ".join(
            f'"{it}"' if ":" in it else it for it in dict.fromkeys((*self._want.addresses, *self._special))
        )
        line = f"use: [{{preset: {self._want.preset}, addresses: [{addresses}]}}]"
        return [*self.problems, f"  If this is your own mirror, add to the policy:\n    {line}"]


async def _file_hosts(
    want: Wanted, indexes: Sequence[Found], fetch: Fetch, probe: str, notes: list[str]
) -> list[LockedHostForm]:
    found: list[LockedHostForm] = []
    for index in indexes:
        question = _question(want.client, index.url, probe)
        if not question:
            continue
        try:
            page = await fetch(question, want.addresses)
            links = [*page.urls, *_LINKS[want.client](page)]
            urls = [url for url in links if url.startswith(("https://", "http://"))]
            # An https index may not hand its files over in the clear.
            kept = [url for url in urls if url.startswith("https://") or index.url.startswith("http://")]
            hosts = _merged([_entry(Found(url, f"file links of {index.where}")) for url in kept])
        except (TidegateError, ValueError, msgspec.MsgspecError) as fault:
            notes.append(
                f"{want.client}: asked {question} for the hosts of its files: {fault}; only the index itself is locked"
            )
            continue
        notes.append(
            f"{want.client}: asked {question} once; its files come from {', '.join(str(host.host) for host in hosts)}"
        )
        found += hosts
    return found


def _question(client: str, url: str, probe: str) -> str:
    base = url.rstrip("/")
    match client:
        case "pip":
            return f"{base}/{probe}/"
        case "npm":
            return f"{base}/{probe}"
        case "cargo":
            return f"{base}/config.json"
        case _:
            return ""


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.base = ""
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        href = dict(attrs).get("href") or ""
        if tag == "a" and href:
            self.found.append(href)
        elif tag == "base" and href and not self.base:
            self.base = href


def _pip_links(page: Fetched) -> list[str]:
    links = _Links()
    links.feed(page.text)
    base = urljoin(page.urls[-1], links.base)
    return [urljoin(base, link) for link in links.found]


class _Dist(msgspec.Struct):
    tarball: str = ""


class _Version(msgspec.Struct):
    dist: _Dist = msgspec.field(default_factory=_Dist)


class _Package(msgspec.Struct):
    versions: dict[str, _Version] = {}


class _Index(msgspec.Struct):
    dl: str = ""


def _npm_links(page: Fetched) -> list[str]:
    record = msgspec.json.decode(page.text, type=_Package)
    return [version.dist.tarball for version in record.versions.values()]


def _cargo_links(page: Fetched) -> list[str]:
    # The template may have {crate} and the like in its path, never in its host.
    return [msgspec.json.decode(page.text, type=_Index).dl.partition("{")[0]]


_LINKS: Final[Mapping[str, Callable[[Fetched], list[str]]]] = {
    "pip": _pip_links,
    "npm": _npm_links,
    "cargo": _cargo_links,
}

"""The configuration as a whole: flag over environment over file, checked, or refused with every reason.

| source | form |
|---|---|
| flag | `listen.http` -> text |
| environment | `TIDEGATE_LISTEN_HTTP`; `TIDEGATE_LISTEN_HTTP_FILE` names a file that holds the value |
| file | `listen: {http: …}` |

Policies, credentials and sessions come from the file alone.
"""

import hashlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv6Network
from pathlib import Path
from typing import Final

import msgspec
import yaml

from tidegate.collector import no_collection
from tidegate.config.credential import credential_source, credential_spec
from tidegate.config.discover import CLIENTS
from tidegate.config.form import FileForm, LockForm, PolicyForm
from tidegate.config.lockfile import lock_path, read_lock
from tidegate.config.model import AuditSettings, SessionSpec, Settings, SourceSpec
from tidegate.config.origin import Overlay, apply_overlays, key_line, overlays
from tidegate.config.policy import PolicyBuilder
from tidegate.config.problem import ConfigErrors, Problem
from tidegate.config.read import Reading, reader
from tidegate.config.shapes import is_name
from tidegate.config.source import compose
from tidegate.config.ways import ways_problems
from tidegate.credentials.spec import CredentialSpec
from tidegate.nearest import did_you_mean
from tidegate.policy.lint import lint
from tidegate.policy.rules import PolicySpec

__all__ = ["Loaded", "load", "load_all", "load_text", "read_form"]

_encoder: Final = msgspec.msgpack.Encoder(order="deterministic")
_MAPPED: Final = IPv6Network("::ffff:0:0/96")


@dataclass(frozen=True)
class Loaded:
    """A configuration that can be used, and what to know about it."""

    settings: Settings
    form: FileForm
    root: yaml.Node | None
    """The file as nodes, for `config show --origin`."""
    file: str
    overlays: tuple[Overlay, ...] = ()
    warnings: list[Problem] = field(default_factory=list)
    files: tuple[Path, ...] = ()
    """Every file that it was made from, the lock included: what a watcher watches."""

    def where(self, *key: str) -> str:
        """Return `file:line` of a key."""
        return f"{self.file}:{key_line(self.root, key)}"


def load(path: Path | None, *, environ: Mapping[str, str], flags: Mapping[str, object]) -> Settings:
    """Return the settings; raise `ConfigErrors` with every problem there is."""
    return load_all(path, environ=environ, flags=flags).settings


def load_all(
    path: Path | None,
    *,
    environ: Mapping[str, str],
    flags: Mapping[str, object],
    now: float | None = None,
    lock: LockForm | None = None,
) -> Loaded:
    """Return the settings with their origins and warnings; `lock` stands in for the file's own one."""
    with no_collection():
        return _Load(path, environ, flags, time.time() if now is None else now, lock).run()


def load_text(data: bytes, path: Path | None, *, environ: Mapping[str, str]) -> Settings:
    """Return the settings of this text, as if it were all that stood in the file. Raises `ConfigErrors`."""
    part = _Load(path, environ, {}, 0.0, None)
    part.data = data
    return part.run().settings


def read_form(path: Path, *, environ: Mapping[str, str]) -> tuple[FileForm, dict[str, PolicyForm]]:
    """Return the file and its policies as written, for `policy lock`, which runs before a lock is there."""
    load = _Load(path, environ, {}, 0.0, None)
    form = load.read()
    policies = {name: policy for name, (_, policy) in load.policy_forms(form).items()}
    if load.problems:
        raise ConfigErrors(load.problems)
    return form, policies


class _Load:
    """One load: reads, builds, checks, and gathers problems until the end."""

    def __init__(
        self,
        path: Path | None,
        environ: Mapping[str, str],
        flags: Mapping[str, object],
        now: float,
        lock: LockForm | None,
    ) -> None:
        self.path = path
        self.file = str(path) if path else "(no file)"
        self.environ = environ
        self.flags = flags
        self.now = now
        self.lock = lock
        self.problems: list[Problem] = []
        self.warnings: list[Problem] = []
        self.lines: dict[str, int] = {}
        self.folder = path.absolute().parent if path else Path.cwd()
        self.files: list[Path] = [path] if path else []
        self.root: yaml.Node | None = None
        self.laid: list[Overlay] = []
        self.data: bytes | None = None

    def read(self) -> FileForm:
        """Read file, environment and flags; nothing is built yet."""
        self.root = compose(self._bytes(), self.file) if self.path else None
        form = self._form(self.root)
        self.laid, faults = overlays(self.environ, self.flags)
        self.problems += faults
        # A relative path in the file starts at the file, one given beside it where the command was given.
        return _absolute(apply_overlays(_absolute(form, self.folder), self.laid), Path.cwd())

    def run(self) -> Loaded:
        form = self.read()
        for key, message in ways_problems(form.listen, form.dns):
            self._refuse(key, message)
        self._registries(form)
        specs, sources = self._credentials(form)
        policies = self._policies(form, specs)
        sessions = self._sessions(form, specs)
        self._check_counts(policies, sessions)
        self._lint(policies, specs)
        if self.problems:
            raise ConfigErrors(self.problems)
        settings = self._settings(form, policies, specs, sources, sessions)
        return Loaded(settings, form, self.root, self.file, tuple(self.laid), self.warnings, tuple(self.files))

    def _bytes(self) -> bytes:
        if self.data is not None:
            return self.data
        try:
            return self.path.read_bytes() if self.path else b""
        except OSError as fault:
            raise ConfigErrors([Problem(self.file, 0, "", f"cannot be read: {fault.strerror}")]) from None

    def _form(self, root: yaml.Node | None) -> FileForm:
        if root is None:
            if self.path:
                self.problems.append(Problem(self.file, 0, "version", "is missing"))
            return FileForm(version=1)
        reading = Reading(self.file)
        form = reader(FileForm)(root, reading, None)
        self.problems += reading.problems
        self.lines = _lines(root)
        return form if isinstance(form, FileForm) else FileForm(version=1)

    def _refuse(self, key: str, message: str) -> None:
        self.problems.append(Problem(self.file, self.lines.get(key, 0), key, message))

    def _registries(self, form: FileForm) -> None:
        for client, url in form.registries.items():
            if client not in CLIENTS:
                self._refuse(f"registries.{client}", f"no such client{did_you_mean(client, CLIENTS)}")
            elif not url.startswith(("https://", "http://")):
                self._refuse(f"registries.{client}", "must be a URL, https:// or http://")

    def _credentials(self, form: FileForm) -> tuple[dict[str, CredentialSpec], dict[str, SourceSpec]]:
        specs: dict[str, CredentialSpec] = {}
        sources: dict[str, SourceSpec] = {}
        for name, given in form.credentials.items():
            key = f"credentials.{name}"
            self._check_name(name, key)
            spec = credential_spec(name, given)
            source = credential_source(given.source, self.folder)
            for message in spec if isinstance(spec, list) else []:
                self.problems.append(Problem(self.file, given.line_, key, message))
            if isinstance(source, str):
                self.problems.append(Problem(self.file, given.line_, key, source))
            if isinstance(spec, CredentialSpec):
                specs[name] = spec
            if not isinstance(source, str):
                sources[name] = source
        return specs, sources

    def _check_name(self, name: str, key: str) -> None:
        if not is_name(name):
            self._refuse(key, "a name is made of a-z, 0-9, - and _, at most 63 of them")

    def _policies(self, form: FileForm, specs: dict[str, CredentialSpec]) -> dict[str, PolicySpec]:
        lock = self.lock
        if lock is None and self.path is not None:
            self.files.append(lock_path(self.path))
            lock = self._lock(lock_path(self.path))
        builder = PolicyBuilder(specs, lock, now=self.now)
        policies = {name: builder.build(name, policy, file) for name, (file, policy) in self.policy_forms(form).items()}
        self.problems += builder.problems
        return policies

    def _lock(self, path: Path) -> LockForm | None:
        try:
            return read_lock(path)
        except ConfigErrors as fault:
            self.problems += fault.problems
            return None

    def policy_forms(self, form: FileForm) -> dict[str, tuple[str, PolicyForm]]:
        """Return name -> (file, policy as written)."""
        found = {}
        for name, given in form.policies.items():
            self._check_name(name, f"policies.{name}")
            file, policy = self._policy_file(name, given) if isinstance(given, str) else (self.file, given)
            if policy is not None:
                found[name] = (file, policy)
        return found

    def _policy_file(self, name: str, text: str) -> tuple[str, PolicyForm | None]:
        """Read a policy from a file of its own; a relative path starts at the configuration's folder."""
        path = (self.path.parent if self.path else Path()) / text
        self.files.append(path)
        try:
            root = compose(path.read_bytes(), str(path))
        except OSError as fault:
            self._refuse(f"policies.{name}", f"{path} cannot be read: {fault.strerror}")
            return str(path), None
        except ConfigErrors as fault:
            self.problems += fault.problems
            return str(path), None
        reading = Reading(str(path))
        policy = reader(PolicyForm)(root, reading, (((None, "policies"), name))) if root else PolicyForm()
        self.problems += reading.problems
        return str(path), policy if isinstance(policy, PolicyForm) else None

    def _sessions(self, form: FileForm, specs: dict[str, CredentialSpec]) -> dict[str, SessionSpec]:
        origins: dict[str, str] = {}
        for name, session in form.sessions.items():
            key = f"sessions.{name}"
            self._check_name(name, key)
            # Names as written, since a policy that could not be read has problems of its own.
            known = [entry[9:] for entry in self.lines if entry.startswith("policies.") and entry.count(".") == 1]
            if session.policy not in known:
                self._refuse(f"{key}.policy", f"no such policy: {session.policy}{did_you_mean(session.policy, known)}")
            for credential in session.credentials:
                if f"credentials.{credential}" not in self.lines:
                    self._refuse(
                        f"{key}.credentials",
                        f"no such credential: {credential}{did_you_mean(credential, form.credentials)}",
                    )
            self._check_places(key, session, specs)
            if session.from_ is not None:
                other = origins.setdefault(session.from_, name)
                if other != name:
                    self._refuse(f"{key}.from", f"{session.from_} is already the source of {other}")
                if _mapped(session.from_):
                    self._refuse(f"{key}.from", f"{session.from_} comes as IPv4: write it as an IPv4 network")
        return form.sessions

    def _check_places(self, key: str, session: SessionSpec, specs: dict[str, CredentialSpec]) -> None:
        """Refuse two credentials of one session in one variable: the sandbox could hold only one of them."""
        taken: dict[str, str] = {}
        for name in session.credentials:
            variable = specs[name].placeholder.env if name in specs else ""
            if variable and taken.setdefault(variable, name) != name:
                self._refuse(f"{key}.credentials", f"{taken[variable]} and {name} both want the variable {variable}")

    def _check_counts(self, policies: dict[str, PolicySpec], sessions: dict[str, SessionSpec]) -> None:
        """Refuse more sessions than their policy or owner may have: those of the file live all at once."""
        owned: dict[tuple[str, str], int] = {}
        for name, session in sessions.items():
            spec = policies.get(session.policy)
            if spec is None:
                continue
            for scope, who, most in (
                ("policy", session.policy, spec.budgets_policy.sessions),
                ("owner", session.owner, spec.budgets_owner.sessions),
            ):
                count = owned[scope, who] = owned.get((scope, who), 0) + 1
                if most is not None and count > most:
                    self._refuse(f"sessions.{name}", f"{scope} {who} may have {most} sessions at once")

    def _lint(self, policies: dict[str, PolicySpec], specs: dict[str, CredentialSpec]) -> None:
        for finding in lint(policies.values(), credentials={name: spec.scope for name, spec in specs.items()}):
            file, _, line = finding.where.rpartition(":")
            place = (file, int(line)) if line.isdigit() else (self.file, self._line_of(finding.where))
            problem = Problem(*place, "" if line.isdigit() else finding.where, f"{finding.message} [{finding.code}]")
            (self.problems if finding.severity == "error" else self.warnings).append(problem)

    def _line_of(self, key: str) -> int:
        """Return the line of a key, or of the nearest one above it that has one."""
        while key and key not in self.lines:
            key = key.rpartition(".")[0]
        return self.lines.get(key, 0)

    def _settings(
        self,
        form: FileForm,
        policies: dict[str, PolicySpec],
        specs: dict[str, CredentialSpec],
        sources: dict[str, SourceSpec],
        sessions: dict[str, SessionSpec],
    ) -> Settings:
        state = form.state_dir or _default_state(self.environ)
        settings = Settings(
            state_dir=state,
            listen=form.listen,
            workers=form.workers,
            audit=_in_state(form.audit, state),
            resolver=form.resolver,
            dns=form.dns,
            wall=form.wall,
            deny_cidrs=form.deny_cidrs,
            upstream=form.upstream,
            limits=form.limits,
            policies=policies,
            credentials=specs,
            sources=sources,
            sessions=sessions,
        )
        return msgspec.structs.replace(settings, hash=hashlib.sha256(_encoder.encode(settings)).hexdigest())


def _absolute(form: FileForm, base: Path) -> FileForm:
    upstream, audit = form.upstream, form.audit
    roots = upstream.ca_file if upstream.ca_file == "system" else str(base / upstream.ca_file)
    extra = tuple(str(base / name) for name in upstream.extra_ca_files)
    folder = audit.dir if _stands_in_state(audit) else str(base / audit.dir)
    return msgspec.structs.replace(
        form,
        state_dir=str(base / form.state_dir) if form.state_dir else None,
        upstream=msgspec.structs.replace(upstream, ca_file=roots, extra_ca_files=extra),
        audit=msgspec.structs.replace(audit, dir=folder),
    )


def _stands_in_state(audit: AuditSettings) -> bool:
    return audit.dir == "STATE" or audit.dir.startswith("STATE/")


def _in_state(audit: AuditSettings, state: str) -> AuditSettings:
    """Put the state folder in place of a leading `STATE`: after this the folder is absolute, for every reader."""
    if not _stands_in_state(audit):
        return audit
    return msgspec.structs.replace(audit, dir=state + audit.dir.removeprefix("STATE"))


def _default_state(environ: Mapping[str, str]) -> str:
    if os.geteuid() == 0:
        return "/var/lib/tidegate"
    home = environ.get("XDG_STATE_HOME") or f"{environ.get('HOME') or '/'}/.local/state"
    return f"{home}/tidegate"


def _lines(root: yaml.Node, prefix: str = "", depth: int = 3) -> dict[str, int]:
    """Return key path -> line for the upper levels, whether or not they could be read."""
    found: dict[str, int] = {}
    if not isinstance(root, yaml.MappingNode) or depth == 0:
        return found
    for key_node, value in root.value:
        if isinstance(key_node, yaml.ScalarNode):
            key = f"{prefix}{key_node.value}"
            found[key] = key_node.start_mark.line + 1
            found.update(_lines(value, f"{key}.", depth - 1))
    return found


def _mapped(network: str) -> bool:
    """Tell whether a network is of IPv4-mapped addresses (RFC 4291 section 2.5.5.2), as which nobody is seen."""
    return ":" in network and IPv6Network(network).subnet_of(_MAPPED)

"""One credential: what the gate knows of it, and the source that only the keeper knows."""

from collections.abc import Sequence
from pathlib import Path

from tidegate.config.form import CredentialForm, PlaceForm, ScopeForm, SourceForm
from tidegate.config.model import CommandSource, EnvSource, FileSource, SourceSpec
from tidegate.config.presets import CREDENTIAL, preset_rules
from tidegate.credentials.placeholder import check_shape
from tidegate.credentials.spec import SLOT, CredentialSpec, Place, PlaceholderSpec, Scope
from tidegate.errors import ConfigError
from tidegate.policy.names import HostName
from tidegate.sdk.env import may_hold_placeholder

__all__ = ["credential_source", "credential_spec"]


def credential_source(form: SourceForm, folder: Path) -> SourceSpec | str:
    """Return the source, or what is wrong with it; a relative file starts at `folder`."""
    given = [value for value in (form.env, form.file, form.command) if value is not None]
    if len(given) != 1:
        return "source: give exactly one of env, file, command"
    if form.env is not None:
        return EnvSource(variable=form.env)
    if form.file is not None:
        return FileSource(path=str(folder / form.file))
    if isinstance(form.command, tuple):
        source = CommandSource(argv=form.command)
    elif form.command is not None:
        source = CommandSource(argv=form.command.argv, timeout_seconds=form.command.timeout_seconds)
    program = source.argv[0] if source.argv else ""
    # The minter's working folder is no place that anybody means.
    if not program or ("/" in program and not program.startswith("/")) or " " in program:
        return "source.command: is a list of a program and its arguments: [/usr/bin/pass, show, x]"
    return source


def credential_spec(name: str, form: CredentialForm) -> CredentialSpec | list[str]:
    """Return the credential, or everything that is wrong with it."""
    found = []
    place = _place(form.place)
    if isinstance(place, str):
        found.append(place)
    else:
        found += [f"place: {problem}" for problem in place.problems()]
    scopes = _scopes(form.for_, found)
    try:
        check_shape(form.placeholder.shape)
    except ConfigError as fault:
        found.append(f"placeholder.shape: {fault}")
    if form.placeholder.env and not may_hold_placeholder(form.placeholder.env):
        found.append(f"placeholder.env: {form.placeholder.env} is no name for a variable, or is taken: choose another")
    if found or isinstance(place, str):
        return found
    return CredentialSpec(
        name=name,
        scope=scopes,
        place=place,
        placeholder=PlaceholderSpec(shape=form.placeholder.shape, env=form.placeholder.env or ""),
        ttl_seconds=form.ttl_seconds,
        foreign=form.foreign,
        unsafe_short_secret=form.unsafe_short_secret,
    )


def _scopes(forms: Sequence[ScopeForm], found: list[str]) -> tuple[Scope, ...]:
    """Return the scopes, adding to `found` what is wrong with them."""
    scopes: list[Scope] = []
    if not forms:
        found.append("for: name at least one host")
    for form in forms:
        if (form.host is None) == (form.preset is None):
            found.append("for: give either host or preset")
        elif form.preset is not None:
            scopes += _preset_scopes(form, form.preset, found)
        elif form.methods == () or form.paths == ():
            found.append("for: an empty list of methods or paths matches nothing: leave the key out")
        elif form.host is not None:
            scopes.append(Scope(host=form.host, methods=form.methods, paths=form.paths))
    return tuple(scopes)


def _preset_scopes(form: ScopeForm, preset: str, found: list[str]) -> list[Scope]:
    if form.methods is not None or form.paths is not None:
        found.append("for: methods and paths are the preset's own")
    try:
        _, rules = preset_rules(preset, form.tenant)
    except ConfigError as fault:
        found.append(f"for: {fault}")
        return []
    taking = [rule for rule in rules if rule.credential == CREDENTIAL]
    if not taking:
        found.append(f"for: {preset} takes no credential")
    return [Scope(host=HostName(rule.host.text), methods=rule.methods, paths=rule.paths) for rule in taking]


def _place(form: PlaceForm) -> Place | str:
    given = [value for value in (form.header, form.basic, form.query) if value is not None]
    if len(given) != 1:
        return "place: give exactly one of header, basic, query"
    if form.header is not None:
        return Place(kind="header", header=form.header, format=form.format)
    if form.format != SLOT:
        return "place.format: is for header only"
    if form.basic is not None:
        password = form.basic.password
        if password is None:
            password = "" if form.basic.user == SLOT else SLOT
        return Place(kind="basic", user=form.basic.user, password=password)
    return Place(kind="query", parameter=form.query or "")

"""Presets: reviewed rules for one service, with the user's own tenant put in.

An allowlisted host on which everybody may have an account is a way out to the attacker's account.
So a preset of such a service has its tenant in host or path, and the user must give it. A key is
the same kind of tenant: the headers by which a service takes one are dropped, unless the rule lets
a credential of ours stand there (then a foreign value is refused by the swap).
"""

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Final

import msgspec
import yaml

from tidegate.config.form import PresetForm, RuleForm
from tidegate.config.problem import ConfigErrors, Problem
from tidegate.config.read import Reading, reader
from tidegate.config.source import compose
from tidegate.credentials.spec import CredentialSpec
from tidegate.errors import ConfigError
from tidegate.nearest import did_you_mean

__all__ = ["CREDENTIAL", "bind_credential", "load_preset", "preset_folder", "preset_names", "preset_rules"]

CREDENTIAL: Final = "{credential}"
_SLOT: Final = re.compile(r"\{([a-z][a-z0-9_]*)\}")
# One path segment or a piece of a host: nothing that could end one, or be a pattern or a template.
_VALUE: Final = re.compile(r"[A-Za-z0-9._]([A-Za-z0-9._-]{0,251}[A-Za-z0-9_-])?")


def preset_folder() -> Path:
    """Return the folder of the presets: inside the installed package, else the checkout's allowlists/."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "allowlists"
    return installed if installed.is_dir() else package.parent.parent / "allowlists"


def preset_names() -> list[str]:
    """Return the names of all presets."""
    return sorted(path.stem for path in preset_folder().glob("*.yaml"))


@lru_cache(maxsize=128)
def _text(path: Path) -> bytes:
    return path.read_bytes()


def _read(name: str, fill: Callable[[str], str]) -> PresetForm:
    path = preset_folder() / f"{name}.yaml"
    file = f"allowlists/{name}.yaml"
    root = compose(_text(path), file)
    if root is None:
        raise ConfigErrors([Problem(file, 0, "", "is empty")])
    stack: list[yaml.Node] = [root]
    while stack:
        node = stack.pop()
        if isinstance(node, yaml.MappingNode):
            stack.extend(value for _, value in node.value)
        elif isinstance(node, yaml.SequenceNode):
            stack.extend(node.value)
        elif isinstance(node, yaml.ScalarNode):
            node.value = fill(node.value)
    reading = Reading(file)
    form = reader(PresetForm)(root, reading, None)
    if reading.problems or not isinstance(form, PresetForm):
        raise ConfigErrors(reading.problems)
    return form


def load_preset(name: str) -> PresetForm:
    """Return the preset with stand-ins for its tenants; raise `ConfigError` when there is none of that name."""
    known = preset_names()
    if name not in known:
        raise ConfigError(f"no preset {name!r}{did_you_mean(name, known)}", hint="tidegate policy presets lists them")
    return _read(name, lambda text: _SLOT.sub(lambda slot: slot[0] if slot[0] == CREDENTIAL else "tenant", text))


def preset_rules(name: str, tenant: Mapping[str, Sequence[str]]) -> tuple[PresetForm, list[RuleForm]]:
    """Return the preset and its rules for each combination of the tenants; raise `ConfigError`."""
    preset = load_preset(name)
    _check_tenant(preset, tenant)
    rules: list[RuleForm] = []
    keys = list(preset.tenant)
    for values in itertools.product(*(tenant[key] for key in keys)):
        filled = dict(zip(keys, values, strict=True))
        form = _read(name, partial(_fill, filled))
        rules += [rule for rule in form.rules if rule not in rules]
    return preset, rules


def _fill(filled: Mapping[str, str], text: str) -> str:
    return _SLOT.sub(lambda slot: filled.get(slot[1], slot[0]), text)


def _check_tenant(preset: PresetForm, tenant: Mapping[str, Sequence[str]]) -> None:
    for key, what in preset.tenant.items():
        if not tenant.get(key):
            raise ConfigError(
                f"{preset.id} serves strangers as well: say whose it is",
                hint=f"{{preset: {preset.id}, tenant: {{{key}: …}}}}, {key} being {what}",
            )
    for key, values in tenant.items():
        if key not in preset.tenant:
            raise ConfigError(f"{preset.id} has no tenant {key!r}{did_you_mean(key, preset.tenant)}")
        for value in values:
            if not _VALUE.fullmatch(value) or value == "." or ".." in value:
                raise ConfigError(f"{value!r} cannot be the {key}", hint="letters, digits, and . _ - inside")


def bind_credential(
    rule: RuleForm, preset: PresetForm, credentials: Mapping[str, CredentialSpec], wanted: str | None
) -> RuleForm:
    """Return the rule with the credential that is for its host, and every other key's header stripped.

    `wanted` is the user's choice. Without it, the one credential for that host is taken; raise
    `ConfigError` when there are two.
    """
    if rule.credential != CREDENTIAL:
        return rule
    chosen = _for_host(rule, credentials, wanted)
    place = chosen.place.field.decode("ascii") if chosen else ""
    strip = tuple(dict.fromkeys((*rule.strip, *(name for name in preset.auth_headers if name != place))))
    return msgspec.structs.replace(rule, credential=chosen.name if chosen else None, strip=strip)


def _for_host(rule: RuleForm, credentials: Mapping[str, CredentialSpec], wanted: str | None) -> CredentialSpec | None:
    candidates = [spec for spec in credentials.values() if spec.bound_to(rule.host.text)]
    if wanted is not None:
        candidates = [spec for spec in candidates if spec.name == wanted]
    if len(candidates) > 1:
        names = ", ".join(spec.name for spec in candidates)
        raise ConfigError(f"{names} are all for {rule.host}", hint="choose: {preset: …, credential: NAME}")
    return candidates[0] if candidates else None

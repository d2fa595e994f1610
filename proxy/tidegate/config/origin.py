"""Where each setting comes from: flag, environment, file or default, in that order of weight."""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, get_origin

import msgspec
import yaml

from tidegate.config.form import FileForm
from tidegate.config.problem import Problem
from tidegate.config.read import INVALID, Reading, reader
from tidegate.nearest import did_you_mean

__all__ = [
    "ENV_PREFIX",
    "Overlay",
    "Setting",
    "apply_overlays",
    "environment_name",
    "key_line",
    "overlays",
    "setting_keys",
    "shown",
]

type Row = tuple[str, object, str]

ENV_PREFIX: Final = "TIDEGATE_"
# What only a file can say, and `version`, which is the file's.
_FILE_ONLY: Final = frozenset({"version", "policies", "credentials", "sessions", "registries"})


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting that flags and environment can give: its key path and the type it is read as."""

    key: tuple[str, ...]
    annotation: object
    default: object

    @property
    def text(self) -> str:
        """Return `listen.http`."""
        return ".".join(self.key)


@dataclass(frozen=True, slots=True)
class Overlay:
    """A setting given beside the file."""

    setting: Setting
    value: object
    origin: str


def environment_name(setting: Setting) -> str:
    """Return `TIDEGATE_LISTEN_HTTP`."""
    return ENV_PREFIX + "_".join(setting.key).upper()


def _settings(struct: type[msgspec.Struct], path: tuple[str, ...] = ()) -> Iterator[Setting]:
    for field in msgspec.structs.fields(struct):
        key = (*path, field.encode_name)
        if not path and field.encode_name in _FILE_ONLY:
            continue
        if get_origin(field.type) is dict:
            continue  # a mapping has no form on one line
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from _settings(field.type, key)
        else:
            default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
            yield Setting(key, field.type, default)


_SETTINGS: Final = {setting.text: setting for setting in _settings(FileForm)}
_BY_VARIABLE: Final = {environment_name(setting): setting for setting in _SETTINGS.values()}
# Variables of this prefix that are no settings: for the command line and for sandboxes.
_OTHER_VARIABLES: Final = frozenset({"TIDEGATE_CONFIG"})


def setting_keys() -> dict[str, Setting]:
    """Return all settings by their key path."""
    return dict(_SETTINGS)


def overlays(environ: Mapping[str, str], flags: Mapping[str, object]) -> tuple[list[Overlay], list[Problem]]:
    """Return what environment and flags give, weightiest last, and what is wrong with them."""
    laid: list[Overlay] = []
    problems: list[Problem] = []
    for name, value in sorted(environ.items()):
        if not name.startswith(ENV_PREFIX) or name in _OTHER_VARIABLES:
            continue
        setting, text, fault = _from_variable(name, value)
        if fault:
            problems.append(Problem(f"${name}", 0, "", fault))
        elif setting is not None:
            laid += _overlay(setting, text, f"${name}", problems)
    for key, given in flags.items():
        if given is None:
            continue
        known = _SETTINGS.get(key)
        if known is None:
            problems.append(Problem(f"flag {key}", 0, "", f"no such setting{did_you_mean(key, _SETTINGS)}"))
            continue
        laid += _overlay(known, given, f"flag {key}", problems)
    return laid, problems


def _from_variable(name: str, value: str) -> tuple[Setting | None, str, str]:
    """Return the setting of a variable with its text, or what is wrong. Unknown ones are not ours to judge."""
    exact = _BY_VARIABLE.get(name)
    if exact is not None:
        return exact, value, ""
    through_file = _BY_VARIABLE.get(name.removesuffix("_FILE")) if name.endswith("_FILE") else None
    if through_file is not None:
        try:
            with open(value, encoding="utf-8") as file:
                return through_file, file.read(65536).strip(), ""
        except (OSError, UnicodeDecodeError) as fault:
            return None, "", f"{value} cannot be read: {getattr(fault, 'strerror', None) or 'not UTF-8 text'}"
    near = difflib.get_close_matches(name, _BY_VARIABLE, n=1, cutoff=0.85)
    # A slip such as TIDEGATE_LISTEN_HTPP must not be silently without effect.
    return None, "", f"no such setting (did you mean {near[0]}?)" if near else ""


def _overlay(setting: Setting, given: object, origin: str, problems: list[Problem]) -> list[Overlay]:
    reading = Reading(origin)
    value = reader(setting.annotation)(_node(given, setting), reading, None)
    problems += reading.problems
    return [] if value is INVALID else [Overlay(setting, value, origin)]


def _node(given: object, setting: Setting) -> yaml.Node:
    mark = yaml.Mark("", 0, -1, 0, None, 0)  # no line
    if isinstance(given, str) and isinstance(setting.default, tuple) and given != "off":
        given = [part.strip() for part in given.split(",") if part.strip()]
    if isinstance(given, list | tuple):
        return yaml.SequenceNode("seq", [_node(item, _PLAIN) for item in given], mark, mark)
    text = str(given).lower() if isinstance(given, bool) or given is None else str(given)
    numeric = isinstance(setting.default, bool | int | float)
    return yaml.ScalarNode("plain" if numeric else "str", text, mark, mark)


_PLAIN: Final = Setting((), str, "")


def apply_overlays(form: FileForm, laid: list[Overlay]) -> FileForm:
    """Return the form with the overlays on top."""
    for overlay in laid:
        form = _put(form, overlay.setting.key, overlay.value)
    return form


def _put[T: msgspec.Struct](struct: T, key: tuple[str, ...], value: object) -> T:
    if len(key) > 1:
        value = _put(getattr(struct, key[0]), key[1:], value)
    return msgspec.structs.replace(struct, **{key[0]: value})


def shown(form: FileForm, root: yaml.Node | None, file: str, laid: tuple[Overlay, ...]) -> list[Row]:
    """Return (key, value, origin) of every setting, defaults included."""
    beside = {overlay.setting.text: overlay.origin for overlay in laid}
    rows = []
    for text, setting in _SETTINGS.items():
        value: object = form
        for step in setting.key:
            value = getattr(value, step)
        line = key_line(root, setting.key)
        origin = beside.get(text) or (f"{file}:{line}" if line else "default")
        rows.append((text, value, origin))
    return rows


def key_line(node: yaml.Node | None, key: tuple[str, ...]) -> int:
    """Return the line of a key of the file, 0 when it is not there."""
    line = 0
    for step in key:
        if not isinstance(node, yaml.MappingNode):
            return 0
        pair = next((pair for pair in node.value if pair[0].value == step), None)
        if pair is None:
            return 0
        line, node = pair[0].start_mark.line + 1, pair[1]
    return line

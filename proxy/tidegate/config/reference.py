"""The reference page of the configuration, made from the forms: `python -m tidegate.config.reference`."""

import sys
from collections.abc import Iterator
from typing import Any

import msgspec

from tidegate.config.describe import PLACE_FIELDS, field_docs, struct_in, summary, words
from tidegate.config.form import FileForm, PresetForm
from tidegate.config.origin import environment_name, setting_keys

__all__ = ["reference_page"]

_HEAD = """\
# Configuration: `tidegate.yaml`

<!-- Made by `python -m tidegate.config.reference`; a test fails when it is stale. -->

A flag wins over the environment, and that over the file. Each setting has an environment variable; with
`_FILE` added, the variable names a file that holds the value. Policies, credentials and sessions come from
the file alone. Unknown keys, keys given twice, YAML aliases and tags are errors; all errors are told at once.
`tidegate policy check` checks a file, `tidegate policy schema` prints its JSON Schema, and
`tidegate config show --origin` says where each value comes from. Where a list is expected, one single value
will do. A relative path in the file starts at the file's folder.
"""


def reference_page() -> str:
    """Return the page."""
    parts = [_HEAD]
    for title, struct, prefix in _sections():
        parts.append(f"## {title}\n\n{summary(struct)}\n\n{_table(struct, prefix)}")
    return "\n".join(parts)


type _Section = tuple[str, type[msgspec.Struct], tuple[str, ...] | None]


def _sections() -> Iterator[_Section]:
    """Yield every struct once, in the order of the file, the whole first."""
    seen: set[object] = set()
    waiting: list[_Section] = [("The file", FileForm, ())]
    while waiting:
        title, struct, prefix = waiting.pop(0)
        if struct in seen:
            continue
        seen.add(struct)
        yield title, struct, prefix
        inner: list[_Section] = []
        for field in msgspec.structs.fields(struct):
            found = struct_in(field.type)
            if found is not None:
                name = field.encode_name if prefix == () else f"{title.strip('`')}.{field.encode_name}"
                inner.append((f"`{name}`", found, (field.encode_name,) if prefix == () else None))
        waiting = inner + waiting if prefix != () else waiting + inner
    yield "A preset file (`allowlists/*.yaml`)", PresetForm, None


def _table(struct: type[msgspec.Struct], prefix: tuple[str, ...] | None) -> str:
    docs = field_docs(struct)
    known = setting_keys()
    lines = ["| key | value | default | meaning |", "|---|---|---|---|"]
    for field in msgspec.structs.fields(struct):
        if field.name in PLACE_FIELDS:
            continue
        text = docs.get(field.name, "")
        setting = known.get(".".join((*prefix, field.encode_name))) if prefix is not None else None
        text += f" `{environment_name(setting)}`" if setting is not None else ""
        lines.append(f"| `{field.encode_name}` | {words(field.type)} | {_default(field)} | {text} |")
    return "\n".join(lines).replace(" | |", " |  |") + "\n"


def _default(field: Any) -> str:
    if field.required:
        return "required"
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    if value is None:
        return "none"
    if isinstance(value, msgspec.Struct):
        return ""
    if "off" in words(field.type).split():
        return f"`{', '.join(f'{host}:{port}' for host, port in value) or 'off'}`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return "`[]`"
    if isinstance(value, float):
        return f"`{value:g}`"
    return f"`{value}`" if value != "" else '`""`'


if __name__ == "__main__":
    sys.stdout.write(reference_page())

import json
from pathlib import Path

import msgspec
import pytest

from tidegate.config import form as forms
from tidegate.config import model as models
from tidegate.config.describe import PLACE_FIELDS, field_docs, words
from tidegate.config.reference import reference_page
from tidegate.config.schema import file_schema

_STRUCTS = [
    found
    for module in (forms, models)
    for name in module.__all__
    if isinstance(found := getattr(module, name), type)
    and issubclass(found, msgspec.Struct)
    # Parts of the wire between our own processes, which no one writes by hand.
    and name not in ("Settings", "GateSettings", "KeeperSettings", "EnvSource", "FileSource", "CommandSource")
]


@pytest.mark.parametrize("struct", _STRUCTS, ids=lambda struct: struct.__name__)
def test_every_key_is_documented(struct: type[msgspec.Struct]) -> None:
    docs = field_docs(struct)
    for field in msgspec.structs.fields(struct):
        if field.name not in PLACE_FIELDS:
            assert docs.get(field.name), f"{struct.__name__}.{field.name} has no text"


@pytest.mark.parametrize("struct", _STRUCTS, ids=lambda struct: struct.__name__)
def test_every_number_has_its_unit_in_the_name(struct: type[msgspec.Struct]) -> None:
    counted = ("requests", "sessions", "events", "headers", "connections", "denials", "leaves", "names", "workers")
    for field in msgspec.structs.fields(struct):
        if words(field.type).startswith(("number", "whole number")) and field.name not in (*PLACE_FIELDS, "port"):
            name = field.encode_name
            assert name.endswith(("_seconds", "_bytes", "bytes_per_hour")) or any(word in name for word in counted)


def test_the_reference_page_is_not_stale() -> None:
    page = Path(__file__).parents[3] / "docs" / "reference" / "configuration.md"
    assert page.read_text(encoding="utf-8") == reference_page(), "run: python -m tidegate.config.reference > docs/…"


def test_the_schema_names_every_key_and_allows_no_other() -> None:
    schema = json.loads(json.dumps(file_schema()))
    top = schema["$defs"]["File"]
    assert set(top["properties"]) == {field.encode_name for field in msgspec.structs.fields(forms.FileForm)}
    assert top["required"] == ["version"]
    rule = schema["$defs"]["Rule"]
    assert "line_" not in rule["properties"]
    assert rule["properties"]["tls"]["enum"] == ["inspect", "unsafe_passthrough"]
    for definition in schema["$defs"].values():
        assert definition["additionalProperties"] is False
        assert all(key["description"] for key in definition["properties"].values())


def test_the_schema_refers_to_nothing_that_it_does_not_hold() -> None:
    schema = file_schema()
    text = json.dumps(schema)
    held = schema["$defs"]
    assert isinstance(held, dict)
    for part in text.split('"#/$defs/')[1:]:
        assert part.partition('"')[0] in held

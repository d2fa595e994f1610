"""The published schema: not stale, and what is written fits it."""

import json
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from tests.unit.audit.making import ALICE, SignedLog, conn, http, lines, written
from tidegate.audit.event import BLOCKS, Common, Credential, Dns, Grant, Session, Stamp
from tidegate.audit.recorder import NOBODY
from tidegate.audit.redact import loggable
from tidegate.audit.schema import line_schema, render_schema
from tidegate.policy.reasons import Reason, Verdict

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "audit-schema.json"
TYPES = {"string": str, "integer": int, "boolean": bool, "null": type(None), "array": list, "object": dict}

type Json = Mapping[str, object]


def fits(value: object, schema: Json, defs: Mapping[str, Json]) -> bool:
    """The part of JSON Schema that the generator uses; anything else is a KeyError."""
    for word, argument in schema.items():
        match word, argument:
            case "$ref", str():
                good = fits(value, defs[argument.removeprefix("#/$defs/")], defs)
            case (("anyOf" | "oneOf"), list()):
                good = sum(fits(value, one, defs) for one in argument) >= 1
            case "allOf", list():
                good = all(fits(value, one, defs) for one in argument)
            case "const", _:
                good = value == argument
            case "enum", list():
                good = value in argument
            case "type", str() | list():
                names = [argument] if isinstance(argument, str) else argument
                good = any(type(value) is TYPES[name] for name in names)
            case "items", dict():
                good = all(fits(item, argument, defs) for item in value)  # type: ignore[attr-defined]
            case "properties", dict():
                good = all(fits(value[key], one, defs) for key, one in argument.items() if key in value)  # type: ignore[index, operator]
            case "required", list():
                good = set(argument) <= set(value)  # type: ignore[call-overload]
            case (
                ("title" | "description" | "examples" | "default" | "$schema" | "$defs" | "unevaluatedProperties"),
                _,
            ):
                good = True
            case _:
                raise KeyError(word)
        if not good:
            return False
    return True


def valid(line: dict[str, object]) -> bool:
    schema = line_schema()
    defs = schema["$defs"]
    common = set(defs["Line"]["properties"])  # type: ignore[index]
    return fits(line, schema, defs) and len(set(line) - common) == 1  # type: ignore[arg-type]


def test_the_page_is_not_stale() -> None:
    assert PAGE.read_text() == render_schema(), (
        "write it anew: tidegate audit schema > docs/reference/audit-schema.json"
    )


def test_every_type_has_its_block() -> None:
    keys = [next(key for key in one["properties"] if key != "type") for one in line_schema()["oneOf"]]  # type: ignore[attr-defined, union-attr]
    assert keys == [block.key for block in BLOCKS]
    assert len(set(keys)) == len(keys)


def test_no_block_takes_a_common_fields_name() -> None:
    common = {field.name for part in (Stamp, Common) for field in msgspec.structs.fields(part)}
    assert common.isdisjoint(block.key for block in BLOCKS)
    assert [block.kind for block in BLOCKS if block.key != block.kind] == ["session"]


def test_what_is_written_fits(tmp_path: Path) -> None:
    log = SignedLog(tmp_path)
    recorder = written(log)
    recorder.conn_decision(ALICE, "c", conn(vetted=("192.0.2.1",)), verdict=Verdict.ERROR, reason=Reason.DNS_FAILURE)
    recorder.http_end(ALICE, "h", http(status=200, duration_ms=3), verdict=Verdict.ALLOW)
    recorder.event(ALICE, "d", Dns(name=loggable("x"), answer=("192.0.2.1",)), verdict=Verdict.ALLOW)
    recorder.event(ALICE, "h", Credential(name="github", act="scrub", hits=1), verdict=Verdict.REDACT)
    recorder.event(NOBODY, None, Grant(id="g", act="ask"))
    recorder.event(NOBODY, None, Session(id="s", act="open", credentials=("github",)))
    recorder.incident(ALICE, "h", "metadata", reason=Reason.METADATA)
    for _ in range(30):
        recorder.fault("exception", where="x")
    recorder.close()
    found = lines(tmp_path)
    assert {str(line["type"]) for line in found} >= {
        "conn",
        "http",
        "dns",
        "credential",
        "grant",
        "writer",
        "checkpoint",
    }
    wrong = [line for line in found if not valid(line)]
    assert not wrong, wrong[0]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"verdict": "maybe"}, id="verdict"),
        pytest.param({"reason": 403}, id="reason"),
        pytest.param({"seq": "1"}, id="type"),
        pytest.param({"type": "conn"}, id="block of another type"),
        pytest.param({"extra": 1}, id="unknown key"),
    ],
)
def test_what_is_not_a_record_does_not_fit(tmp_path: Path, change: dict[str, object]) -> None:
    written(SignedLog(tmp_path))
    line = next(line for line in lines(tmp_path) if line["type"] == "http")
    assert valid(line)
    assert not valid(json.loads(json.dumps(line)) | change)

"""The JSON Schema of a line, generated from the event types."""

import msgspec

from tidegate.audit.event import BLOCKS, SCHEMA_VERSION, Common, Stamp
from tidegate.policy.reasons import Reason

__all__ = ["line_schema", "render_schema"]

_REF = "#/$defs/{name}"


def line_schema() -> dict[str, object]:
    """Return the schema: the common part, and for each type the one block that goes with it."""
    _, defs = msgspec.json.schema_components([Stamp, Common, *BLOCKS], ref_template=_REF)
    line = {**_properties(defs.pop("Stamp")), **_properties(defs.pop("Common"))}
    line["v"] = {"const": SCHEMA_VERSION}
    # Decisions have a reason of this list; the keeper's events may say why in a word of their own.
    line["reason"] = {"type": ["string", "null"], "examples": [reason.code for reason in Reason]}
    defs["Line"] = {"type": "object", "properties": line, "required": list(line)}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Tidegate audit line, version {SCHEMA_VERSION}",
        "description": "One JSON object a line; what is absent is null."
        " The block is named as the type, but `session_event` for `session`.",
        "allOf": [{"$ref": _REF.format(name="Line")}],
        "oneOf": [
            {
                "properties": {"type": {"const": block.kind}, block.key: {"$ref": _REF.format(name=block.__name__)}},
                "required": [block.key],
            }
            for block in BLOCKS
        ],
        "unevaluatedProperties": False,
        "$defs": dict(sorted(defs.items())),
    }


def render_schema() -> str:
    """Return the schema as the text of docs/reference/audit-schema.json."""
    return msgspec.json.format(msgspec.json.encode(line_schema()), indent=2).decode() + "\n"


def _properties(schema: dict[str, object]) -> dict[str, object]:
    found = schema.get("properties")
    return dict(found) if isinstance(found, dict) else {}

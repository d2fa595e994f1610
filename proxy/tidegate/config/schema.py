"""The JSON Schema of `tidegate.yaml`, for editors; the loader itself is stricter."""

import types
from typing import Annotated, Literal, Union, get_args, get_origin

import msgspec

from tidegate.config.describe import PLACE_FIELDS, field_docs, is_struct, summary, unaliased
from tidegate.config.form import FileForm
from tidegate.config.read import Shape

__all__ = ["file_schema"]

type Json = dict[str, object]


def file_schema() -> Json:
    """Return the schema (draft 2020-12) of the whole file."""
    made: dict[str, Json] = {}
    root = _schema(FileForm, made)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "tidegate.yaml",
        **root,
        "$defs": dict(sorted(made.items())),
    }


_SCALARS: dict[object, Json] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    type(None): {"type": "null"},
}


def _schema(annotation: object, made: dict[str, Json]) -> Json:
    annotation = unaliased(annotation)
    origin, args = get_origin(annotation), get_args(annotation)
    if annotation in _SCALARS:
        return dict(_SCALARS[annotation])
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return _reference(annotation, made)
    if origin is Annotated:
        return _annotated(args, made)
    if origin is Literal:
        return {"enum": list(args)}
    if origin in (types.UnionType, Union):
        return {"anyOf": [_schema(part, made) for part in args]}
    if origin is tuple:
        item = _schema(args[0], made)
        many: Json = {"type": "array", "items": item}
        return many if is_struct(args[0]) else {"anyOf": [many, item]}
    return {"type": "object", "additionalProperties": _schema(args[1], made)}


def _annotated(args: tuple[object, ...], made: dict[str, Json]) -> Json:
    shape = next((mark for mark in args[1:] if isinstance(mark, Shape)), None)
    if shape is not None:
        if shape.several:
            many: Json = {"type": "array", "items": {"type": "string"}}
            return {"anyOf": [{"type": ["string", "boolean", "null"]}, many], "description": shape.words}
        return {"type": "string", "description": shape.words}
    found = _schema(args[0], made)
    for mark in args[1:]:
        if isinstance(mark, msgspec.Meta):
            if mark.ge is not None:
                found["minimum"] = mark.ge
            if mark.le is not None:
                found["maximum"] = mark.le
    return found


def _reference(struct: type[msgspec.Struct], made: dict[str, Json]) -> Json:
    name = struct.__name__.removesuffix("Form")
    if name not in made:
        made[name] = {}  # stands in while the fields are made, should a struct ever hold itself
        docs = field_docs(struct)
        properties: Json = {}
        required = []
        for field in msgspec.structs.fields(struct):
            if field.name in PLACE_FIELDS:
                continue
            properties[field.encode_name] = {**_schema(field.type, made), "description": docs.get(field.name, "")}
            if field.required:
                required.append(field.encode_name)
        made[name] = {
            "type": "object",
            "description": summary(struct),
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        }
    return {"$ref": f"#/$defs/{name}"}

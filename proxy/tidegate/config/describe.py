"""The configuration's forms, described: what the schema and the reference page are made from.

The text under a field is its documentation; it is read from the source, since Python keeps no
docstring for an attribute.
"""

import ast
import inspect
import sys
import types
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from tidegate.config.read import Shape

__all__ = ["PLACE_FIELDS", "field_docs", "is_struct", "struct_in", "summary", "unaliased", "words"]

PLACE_FIELDS = frozenset({"line_", "key_"})


@cache
def _module_docs(module: str) -> dict[str, dict[str, str]]:
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: _class_docs(node) for node in tree.body if isinstance(node, ast.ClassDef)}


def _class_docs(node: ast.ClassDef) -> dict[str, str]:
    docs: dict[str, str] = {}
    field = ""
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            field = statement.target.id
        elif field and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            docs[field] = " ".join(str(statement.value.value).split())
            field = ""
    return docs


def field_docs(struct: type[msgspec.Struct]) -> dict[str, str]:
    """Return field name -> the text under it."""
    return _module_docs(struct.__module__).get(struct.__name__, {})


def summary(struct: type[msgspec.Struct]) -> str:
    """Return the first paragraph of the struct's docstring."""
    return " ".join((inspect.getdoc(struct) or "").partition("\n\n")[0].split())


def is_struct(annotation: object) -> bool:
    """Tell whether the annotation is a struct."""
    return isinstance(annotation, type) and issubclass(annotation, msgspec.Struct)


type _Alias = int


def unaliased(annotation: Any) -> Any:
    """Return what a `type` alias stands for."""
    while isinstance(annotation, type(_Alias)):
        annotation = annotation.__value__
    return annotation


def struct_in(annotation: object) -> type[msgspec.Struct] | None:
    """Return the struct that the annotation is made of, if any."""
    annotation = unaliased(annotation)
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return annotation
    return next((found for part in get_args(annotation) if (found := struct_in(part)) is not None), None)


_SCALARS = {str: "text", bool: "true or false", int: "whole number", float: "number", type(None): "null"}


def words(annotation: object) -> str:
    """Return the form of a value in words."""
    annotation = unaliased(annotation)
    origin, args = get_origin(annotation), get_args(annotation)
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    if is_struct(annotation):
        return "mapping"
    if origin is Annotated:
        shape = next((mark for mark in args[1:] if isinstance(mark, Shape)), None)
        return shape.words if shape else _bounded(args)
    if origin is Literal:
        return " or ".join(f"`{word}`" for word in args)
    if origin in (types.UnionType, Union):
        return ", or ".join(words(part) for part in args if part is not type(None))
    if origin is tuple:
        return f"list of: {words(args[0])}"
    return f"mapping of names to: {words(args[1])}"


def _bounded(args: tuple[object, ...]) -> str:
    text = words(args[0])
    for mark in args[1:]:
        if isinstance(mark, msgspec.Meta):
            if mark.ge is not None:
                text += f", at least {mark.ge:g}"
            if mark.le is not None:
                text += f", at most {mark.le:g}"
    return text

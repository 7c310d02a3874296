"""The settings of a struct, as the pages and the packaged files list them."""

import ast
import inspect as source
import textwrap
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import inspect


def each_setting(shape: type[msgspec.Struct]) -> Iterator[tuple[str, Any]]:
    """Yield the dotted path and the default of every setting; `[]` stands for a list's elements."""
    return _fields(inspect.type_info(shape), "")


def _fields(struct: Any, path: str) -> Iterator[tuple[str, Any]]:
    for field in struct.fields:
        at, inner = f"{path}{field.encode_name}", _plain(field.type)
        many = isinstance(inner, inspect.VarTupleType)
        element = _plain(inner.item_type) if many else inner
        if isinstance(element, inspect.StructType):
            yield from _fields(element, f"{at}[]." if many else f"{at}.")
        else:
            made = field.default_factory
            yield at, field.default if made is inspect.NODEFAULT else made()


def _plain(kind: Any) -> Any:
    """Return a type without its bounds, and the first type of a union."""
    while isinstance(kind, inspect.Metadata | inspect.UnionType):
        kind = kind.type if isinstance(kind, inspect.Metadata) else kind.types[0]
    return kind


def written(value: Any) -> str:
    """Return a default as the page writes it."""
    if value is True or value is False:
        return str(value).lower()
    if value is None:
        return "none"
    if value in ((), {}):
        return "[]" if value == () else "{}"
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, int | float):
        return f"{value:g}"
    assert value is msgspec.NODEFAULT
    return "required"


def field_texts(holder: type[msgspec.Struct]) -> dict[str, str]:
    """Return what stands beneath each field of a class, by the field's name, in one line each."""
    (tree_of,) = ast.parse(textwrap.dedent(source.getsource(holder))).body
    assert isinstance(tree_of, ast.ClassDef)
    texts = {}
    for field, text in zip(tree_of.body, tree_of.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            assert isinstance(field.target, ast.Name)
            texts[field.target.id] = " ".join(ast.literal_eval(text.value).split())
    return texts

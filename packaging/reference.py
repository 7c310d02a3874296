"""The reference as it is read: what the code says of itself comes into a page from its docstrings.

    ::: forewarn.Client
    ::: forewarn.agent.settings.ClientSettings.endpoint

A line like the first stands for a public class; one like the second, below the heading of a
setting, for the setting's default and its meaning. The site, the manual and the editors' schemas
are made of pages in which `expanded` has replaced such lines.
"""

import ast
import enum
import functools
import inspect as source
import itertools
import pkgutil
import re
import textwrap
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from msgspec import inspect

NOTE: Final = re.compile(r"^The source of this page .*?\n\n", re.MULTILINE | re.DOTALL)
"""A paragraph for those who read the source."""

FOLDER: Final = Path(__file__).resolve().parents[1] / "docs" / "reference"

MARK: Final = re.compile(r"^::: (\S+)\.(\w+)$", re.MULTILINE)

MADE_BY_CALLERS: Final = {"Client", "AsyncClient", "RequestRefused"}
"""The classes whose arguments concern the reader."""

FOR_CALLERS_ONLY: Final = {"Pace"}
"""The classes of which the fields are shown with their defaults, and no methods."""

SHARED: Final = {"_Answers", "_AsyncAnswers"}
"""Bases whose public names count as the class's own."""


def page(name: str) -> str:
    """Return a page of docs/reference, whole."""
    return expanded((FOLDER / name).read_text(encoding="utf-8"))


def expanded(text: str) -> str:
    """Return a page with what its lines that begin with `:::` stand for, and no note on them."""
    return MARK.sub(_expansion, NOTE.sub("", text))


def _expansion(mark: re.Match[str]) -> str:
    holder = pkgutil.resolve_name(mark[1])
    if isinstance(holder, type):
        return _of_setting(holder, mark[2])
    return "\n".join(_of_class(getattr(holder, mark[2]))).rstrip()


# Settings


def each_setting(shape: type[msgspec.Struct]) -> Iterator[tuple[str, Any]]:
    """Yield the dotted path and the default of every setting; `[]` stands for a list's elements."""
    return _fields(inspect.type_info(shape), "")


def _fields(struct: Any, path: str) -> Iterator[tuple[str, Any]]:  # noqa: ANN401
    for field in struct.fields:
        at, inner = f"{path}{field.encode_name}", _plain(field.type)
        many = isinstance(inner, inspect.VarTupleType)
        element = _plain(inner.item_type) if many else inner
        if isinstance(element, inspect.StructType):
            yield from _fields(element, f"{at}[]." if many else f"{at}.")
        else:
            yield at, _default(field)


def _default(field: Any) -> Any:  # noqa: ANN401
    made = field.default_factory
    return field.default if made is inspect.NODEFAULT else made()


def _plain(kind: Any) -> Any:  # noqa: ANN401
    """Return a type without its bounds, and the first type of a union."""
    while isinstance(kind, inspect.Metadata | inspect.UnionType):
        kind = kind.type if isinstance(kind, inspect.Metadata) else kind.types[0]
    return kind


def _of_setting(holder: type[msgspec.Struct], name: str) -> str:
    """Describe a field of a struct: its default, the values of a closed list, its meaning."""
    (default,) = [_default(each) for each in inspect.type_info(holder).fields if each.name == name]
    hint = typing.get_type_hints(holder)[name]
    values = ", ".join(f'`"{value}"`' for value in _choices(hint))
    each = "each " if typing.get_origin(hint) is tuple else ""
    among = f"; {each}one of {values}" if values else ""
    return f"Default: `{written(default)}`{among}\n\n{field_texts(holder)[name]}"


def written(value: Any) -> str:  # noqa: ANN401
    """Return a default as pages write it."""
    if value is msgspec.NODEFAULT:
        return "required"
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if value in ((), {}):
        return "[]" if value == () else "{}"
    return f"{value:g}"


def _choices(hint: Any) -> list[str]:  # noqa: ANN401
    """Return the values of a closed list, of a setting or of each entry of its list; else none."""
    if typing.get_origin(hint) is tuple:
        return _choices(typing.get_args(hint)[0])
    if typing.get_origin(hint) is Literal:
        return list(typing.get_args(hint))
    if isinstance(hint, type) and issubclass(hint, enum.StrEnum):
        return [each.value for each in hint]
    return []


@functools.cache
def field_texts(holder: type) -> dict[str, str]:
    """Return what stands beneath each field of a class, by the field's name: a line a paragraph."""
    body = _node(holder).body
    texts = {}
    for field, text in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            assert isinstance(field.target, ast.Name)
            assert isinstance(text.value, ast.Constant)
            paragraphs = str(text.value.value).split("\n\n")
            texts[field.target.id] = "\n\n".join(" ".join(each.split()) for each in paragraphs)
    return texts


# Classes


def _of_class(kind: type) -> Iterator[str]:
    name, node = kind.__name__, _node(kind)
    base = ", ".join(ast.unparse(each).rpartition(".")[2] for each in node.bases)
    shared = [_node(each).body for each in kind.__mro__[1:] if each.__name__ in SHARED]
    body = [*node.body, *itertools.chain(*shared)]
    signature = next((_arguments(each) for each in body if _is_function(each, "__init__")), "")
    made_by_callers = name in MADE_BY_CALLERS
    yield f"### `{name}{signature if made_by_callers else ''}`\n"
    yield _prose(ast.get_docstring(node) or "", skip_args=not made_by_callers)
    if base in {"Change", "ClientError"}:
        yield f"A `{base}`.\n"
    fields = list(_of_fields(kind))
    if fields:
        yield "\n".join(fields) + "\n"
    for each in body if name not in FOR_CALLERS_ONLY else []:
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name[0] != "_":
            is_property = any(ast.unparse(mark) == "property" for mark in each.decorator_list)
            waits = "await " if isinstance(each, ast.AsyncFunctionDef) else ""
            yield f"#### `{waits}{name}.{each.name}{'' if is_property else _arguments(each)}`\n"
            yield _prose(ast.get_docstring(each) or "")


def _node(kind: type) -> ast.ClassDef:
    (node,) = ast.parse(textwrap.dedent(source.getsource(kind))).body
    assert isinstance(node, ast.ClassDef)
    return node


def _is_function(node: ast.stmt, name: str) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == name


def _arguments(node: ast.stmt) -> str:
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    written = ast.unparse(node.args)
    written = re.sub(r"^self(, )?", "", written)
    return f"({written})".replace("event.", "").replace("session.", "")


def _of_fields(kind: type) -> Iterator[str]:
    """Give a class's fields with the docstrings that follow them."""
    texts = field_texts(kind)
    for each in _node(kind).body:
        if not isinstance(each, ast.AnnAssign) or not isinstance(each.target, ast.Name):
            continue
        annotation = ast.unparse(each.annotation)
        if annotation.startswith("ClassVar") and kind.__name__ != "Change":
            continue
        annotation = re.sub(r"ClassVar\[(.*)\]", r"\1", annotation).replace("event.", "")
        shown = each.value and kind.__name__ in FOR_CALLERS_ONLY
        value = f" = {ast.unparse(each.value)}" if shown and each.value else ""
        told = texts.get(each.target.id, "")
        yield f"- `{each.target.id}: {annotation}{value}`{told and f': {told}'}"


def _prose(docstring: str, *, skip_args: bool = False) -> str:
    """Return a docstring as Markdown: its sections as lists."""
    lines: list[str] = []
    section = ""
    for line in docstring.splitlines():
        heading = re.fullmatch(r"(Args|Returns|Raises):", line)
        if heading is not None:
            section = heading[1]
            if not (skip_args and section == "Args"):
                lines.append(f"*{section}*\n" if section != "Args" else "*Arguments*\n")
        elif not line.startswith("    ") and line:
            section = ""
            lines.append(line)
        elif skip_args and section == "Args":
            continue
        elif section and line.startswith("     "):
            lines[-1] += f" {line.strip()}"
        elif section and line:
            name, colon, rest = line.strip().partition(": ")
            names = ", ".join(f"`{each}`" for each in name.split(", "))
            lines.append(f"- {names}: {rest}" if colon else f"- {line.strip()}")
        else:
            lines.append(line)
    return "\n".join(lines).rstrip() + "\n"

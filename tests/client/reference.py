"""The client's reference, written from its docstrings: `python -m client.reference` prints it.

The page in docs/reference/client.md is this text; a test compares the two.
"""

import ast
import inspect
import itertools
import re
import sys
import textwrap
from collections.abc import Iterator

import forewarn

INTRODUCTION = """\
# The client library

The public names of `import forewarn`. [The guide](../guides/handling.md) has whole examples;
[protocol.md](../protocol.md) has the protocol. `PYTHONPATH=src:tests python -m client.reference`
writes this page from the docstrings.

    import forewarn

    with forewarn.Client() as client:
        for change in client.watch():
            if change.appeared and change.event.concerns_me:
                drain()
                client.approve(change.event)

"""

SECTIONS = {
    "Asking": (
        *("Client", "Watch", "Documents"),
        *("AsyncClient", "AsyncWatch", "AsyncDocuments", "Pace"),
    ),
    "Values": (
        *("Change", "Appeared", "Started", "Updated", "Gone"),
        *("Event", "Document", "MachineIdentity", "Trouble"),
    ),
    "Errors": ("ClientError", "Unreachable", "BadAnswer", "RequestRefused", "Misuse"),
}

SHARED = {"_Answers", "_AsyncAnswers"}
"""Bases whose public names count as the class's own."""


def page() -> str:
    """Return the whole page."""
    return INTRODUCTION + "\n".join(_parts()).rstrip() + "\n"


def _parts() -> Iterator[str]:
    for heading, names in SECTIONS.items():
        yield f"## {heading}\n"
        for name in names:
            yield from _of_class(name)


def _of_class(name: str) -> Iterator[str]:
    kind = getattr(forewarn, name)
    node = _node(kind)
    base = ", ".join(ast.unparse(each).rpartition(".")[2] for each in node.bases)
    shared = [_node(each).body for each in kind.__mro__[1:] if each.__name__ in SHARED]
    body = [*node.body, *itertools.chain(*shared)]
    signature = next((_arguments(each) for each in body if _is_function(each, "__init__")), "")
    made_by_callers = name in {"Client", "AsyncClient", "RequestRefused"}
    yield f"### `{name}{signature if made_by_callers else ''}`\n"
    yield _prose(ast.get_docstring(node) or "", skip_args=not made_by_callers)
    if base in {"Change", "ClientError"}:
        yield f"A `{base}`.\n"
    fields = list(_fields(node))
    if fields:
        yield "\n".join(fields) + "\n"
    for each in body if name != "Pace" else []:  # its numbers are for callers
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name[0] != "_":
            is_property = any(ast.unparse(mark) == "property" for mark in each.decorator_list)
            waits = "await " if isinstance(each, ast.AsyncFunctionDef) else ""
            yield f"#### `{waits}{name}.{each.name}{'' if is_property else _arguments(each)}`\n"
            yield _prose(ast.get_docstring(each) or "")


def _node(kind: type) -> ast.ClassDef:
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(node, ast.ClassDef)
    return node


def _is_function(node: ast.stmt, name: str) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == name


def _arguments(node: ast.stmt) -> str:
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    written = ast.unparse(node.args)
    written = re.sub(r"^self(, )?", "", written)
    return f"({written})".replace("event.", "").replace("session.", "")


def _fields(node: ast.ClassDef) -> Iterator[str]:
    """Give a class's fields with the docstrings that follow them."""
    for number, each in enumerate(node.body):
        if not isinstance(each, ast.AnnAssign) or not isinstance(each.target, ast.Name):
            continue
        annotation = ast.unparse(each.annotation)
        if annotation.startswith("ClassVar") and node.name != "Change":
            continue
        annotation = re.sub(r"ClassVar\[(.*)\]", r"\1", annotation).replace("event.", "")
        value = f" = {ast.unparse(each.value)}" if each.value and node.name == "Pace" else ""
        after = node.body[number + 1] if number + 1 < len(node.body) else None
        told = ""
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            told = ": " + " ".join(str(after.value.value).split())
        yield f"- `{each.target.id}: {annotation}{value}`{told}"


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


if __name__ == "__main__":
    sys.stdout.write(page())

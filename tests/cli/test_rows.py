"""Commands that are rows: each asks for what the API has, and shows what it answers."""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from msgspec import structs

from forewarn.cli import fleet, main, operator_client
from forewarn.cli.command import RequestCommand
from forewarn.cli.output import AnswerTable

API = Path(__file__).parents[2] / "docs" / "reference" / "api.md"


def below(path: str, command: click.Command) -> Iterator[tuple[str, RequestCommand]]:
    if isinstance(command, RequestCommand):
        yield path, command
    for name, sub in getattr(command, "commands", {}).items():
        yield from below(f"{path} {name}", sub)


ROWS = dict(below("forewarn", main.FOREWARN))
TABLES = [row.show for row in ROWS.values() if isinstance(row.show, AnswerTable)]
TABLES += [fleet.MACHINES, fleet.SCOPES, fleet.LOST]


def type_of(shape: str) -> Any:
    module, name = shape.split(".")
    return getattr(importlib.import_module(f"{operator_client.SCHEMAS}.{module}"), name)


@pytest.mark.parametrize("path", ROWS)
def test_a_row_is_a_request_of_the_api(path: str) -> None:
    row = ROWS[path]
    headings = re.findall(r"(?m)^### `(\w+) (\S+)`", API.read_text(encoding="utf-8"))
    known = {(method, re.sub(r"{\w+}", "{}", place)) for method, place in headings}
    assert (row.method, re.sub(r"{\w+}", "{}", row.path)) in known
    typed = {param.name for param in row.params}
    assert set(re.findall(r"{(\w+)}", row.path)) <= typed


@pytest.mark.parametrize("path", ROWS)
def test_a_row_shows_a_type_of_the_api(path: str) -> None:
    row = ROWS[path]
    answer = type_of(operator_client.shape_of(row.show))
    if row.paged:
        assert {row.paged, "next"} <= {field.name for field in structs.fields(answer)}


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.place)
def test_a_column_that_is_named_is_a_field_of_the_list(table: AnswerTable) -> None:
    fields = {field.name: field for field in structs.fields(type_of(table.shape))}
    (entry, *_) = fields[table.place.rpartition(".")[2]].type.__args__
    named = {column for column in table.columns.values() if isinstance(column, str)}
    assert named <= set(entry.__struct_fields__)

"""The history as files: CSV for spreadsheets, JSON for programs.

A file is written page by page as the browser takes it, so that a history of millions costs no more
memory than one page. Operations are read newest first: those that are announced while a file is
written are not in it.
"""

import asyncio
import csv
import io
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Final, TypeAlias

import msgspec

from forewarn import times
from forewarn.server.operator import schemas

COLUMNS: Final = (
    *("operation", "maintenance", "event", "type", "status", "source", "scope", "update_domain"),
    *("machines", "hosts", "announced_at", "not_before", "approved_by", "approver", "approved_at"),
    *("started_at", "start_cause", "ended_at", "took_seconds", "outcome", "acknowledged_by"),
    "description",
)
"""The columns of the CSV file, which has a row for each event."""

FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""What begins a cell that spreadsheets would calculate."""

PAGE: Final = 500
"""Operations that are read at once."""

Pages: TypeAlias = AsyncIterator[tuple[schemas.OperationView, ...]]
"""Operations, some at a time."""


async def as_csv(found: Pages) -> AsyncIterator[bytes]:
    """Yield the CSV file of operations."""
    yield _written([COLUMNS])
    async for operations in found:
        yield await asyncio.to_thread(_rows_of, operations)


async def as_json(found: Pages) -> AsyncIterator[bytes]:
    """Yield the JSON file of operations: one object, as `GET /v1/history` answers."""
    yield b'{"operations":['
    first = True
    async for operations in found:
        encoded = await asyncio.to_thread(msgspec.json.encode, operations)
        inner = encoded[1:-1]
        if inner:
            yield inner if first else b"," + inner
            first = False
    yield b"]}\n"


def rows(operations: Iterable[schemas.OperationView]) -> Iterator[tuple[str, ...]]:
    """Yield the row of each event; an operation without events has one, too."""
    for operation in operations:
        for event in operation.events:
            approval = event.approval
            yield tuple(
                map(
                    cell,
                    (
                        operation.id,
                        operation.maintenance,
                        event.id,
                        operation.event_type,
                        operation.status,
                        operation.source,
                        event.scope,
                        event.update_domain,
                        " ".join(event.machines),
                        " ".join(operation.hosts),
                        times.precise(operation.announced_at),
                        times.precise(operation.not_before),
                        approval and approval.by,
                        approval and approval.kind,
                        approval and times.precise(approval.at),
                        operation.started_at and times.precise(operation.started_at),
                        operation.start_cause,
                        operation.ended_at and times.precise(operation.ended_at),
                        operation.took_seconds,
                        operation.outcome,
                        operation.acknowledged_by,
                        operation.description,
                    ),
                )
            )


def cell(value: object) -> str:
    """Return a value as a cell; None is empty.

    A text that a spreadsheet would calculate has an apostrophe before it, as spreadsheets have for
    text: descriptions and outcomes are other people's words.
    """
    if value is None:
        return ""
    text = str(value)
    return f"'{text}" if isinstance(value, str) and text.startswith(FORMULA) else text


def _rows_of(operations: Iterable[schemas.OperationView]) -> bytes:
    return _written(rows(operations))


def _written(lines: Iterable[Iterable[str]]) -> bytes:
    file = io.StringIO()
    csv.writer(file).writerows(lines)
    return file.getvalue().encode()

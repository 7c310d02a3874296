"""The map of the fleet: a square for each machine, or for update domains where they are many.

It is pure. A layout lasts until machines come or go; over its rows of squares, only those of
machines under maintenance are drawn each time.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Final, TypeAlias

import msgspec

from forewarn.maintenance import model, planner
from forewarn.vocabulary import ScopeKind

MAX_SQUARES: Final = 2000
"""The most squares. A square is a machine in fleets up to this size, an update domain in larger
ones, and several domains where there are more of these."""

MAX_BLOCKS: Final = 40
"""The most scopes that are drawn apart."""

MAX_NAMED: Final = 60
"""The most machines whose squares have their names, and lead to their pages."""

PITCH: Final = 10
"""From one square to the next, in units of the drawing."""

WIDTH: Final = 640
AREA: Final = 200_000
"""The room of the squares in pixels, as a window 1440 wide has it: they grow until they fill it."""

MAX_PIXELS: Final = 32
"""The most pixels from one square to the next."""

Place: TypeAlias = tuple[str, int]
"""A scope's key and an update domain."""

Spot: TypeAlias = tuple[int, int, int]
"""A square: its block, row and column."""


class Condition(StrEnum):
    """The condition of a machine on the map; the first that applies counts."""

    DOWN = "down"
    FAILED = "failed"
    """Maintenance of it failed, and nobody acknowledged that."""
    NOTICE = "notice"


class Row(msgspec.Struct, frozen=True, gc=False):
    """Squares side by side."""

    count: int
    title: str
    names: tuple[str, ...] = ()
    """The machines, of a fleet whose squares have names."""


class Block(msgspec.Struct, frozen=True):
    """A scope, or all of them."""

    name: str
    count: int
    """Its squares."""
    rows: tuple[Row, ...]

    @property
    def width(self) -> int:
        """Its width in units."""
        return max(row.count for row in self.rows) * PITCH

    @property
    def height(self) -> int:
        """Its height in units."""
        return len(self.rows) * PITCH


class Layout(msgspec.Struct, frozen=True):
    """Where each square is."""

    blocks: tuple[Block, ...]
    spots: Mapping[str | Place, Spot]
    """The square of each machine, by key, or of each update domain."""
    domains_each: int
    """The number of update domains in a square; 0 where it is a machine."""
    pixels: int
    """From one square to the next."""


class Mark(msgspec.Struct, frozen=True, gc=False):
    """A square that stands out."""

    x: int
    y: int
    condition: Condition
    title: str
    machine: str
    """The machine; `""` where the square is a domain."""


class FleetMap(msgspec.Struct, frozen=True):
    """The squares that a template draws, by block."""

    blocks: tuple[tuple[Block, tuple[Mark, ...]], ...]
    domains_each: int
    pixels: int


def pixels_of(count: int) -> int:
    """Return the distance at which so many squares fill their room."""
    return max(PITCH, min(MAX_PIXELS, math.isqrt(AREA // max(1, count))))


def layout(
    fleet: Iterable[model.Machine], sizes: Mapping[Place, int], scopes: Mapping[str, model.Scope]
) -> Layout:
    """Return where each machine, or update domain, has its square."""
    if sum(sizes.values()) > MAX_SQUARES:
        return _of_domains(sorted(sizes))
    count = sum(sizes.values())
    pixels, is_named = pixels_of(count), count <= MAX_NAMED
    columns = WIDTH // pixels
    keys = {scope for scope, _ in sizes}
    apart = sorted(k for k in keys if not _is_single(k, scopes))
    if len(apart) > MAX_BLOCKS:
        apart = []
    members: dict[Place, list[model.Machine]] = {}
    for machine in sorted(fleet, key=planner.natural):
        place = machine.scope, machine.update_domain
        members.setdefault(place if machine.scope in apart else ("", 0), []).append(machine)
    blocks: list[Block] = []
    spots: dict[str | Place, Spot] = {}
    for scope in [*apart, *[""][: ("", 0) in members]]:
        rows: list[Row] = []
        for (_, domain), there in sorted(
            (place, found) for place, found in members.items() if place[0] == scope
        ):
            for at in range(0, len(there), columns):
                part = there[at : at + columns]
                for column, machine in enumerate(part):
                    spots[machine.key] = (len(blocks), len(rows), column)
                names = tuple(machine.name for machine in part) if is_named else ()
                rows.append(Row(len(part), f"domain {domain}" if scope else "", names))
        found = scopes.get(scope)  # the loop's thread may remove it meanwhile
        name = found.name if found is not None else scope
        blocks.append(Block(name, sum(row.count for row in rows), tuple(rows)))
    return Layout(tuple(blocks), spots, 0, pixels)


def _is_single(key: str, scopes: Mapping[str, model.Scope]) -> bool:
    scope = scopes.get(key)
    return scope is None or scope.kind is ScopeKind.MACHINE


def _of_domains(places: list[Place]) -> Layout:
    each = -(-len(places) // MAX_SQUARES)
    count = -(-len(places) // each)
    pixels = pixels_of(count)
    columns = WIDTH // pixels
    spots: dict[str | Place, Spot] = {
        place: (0, *divmod(number // each, columns)) for number, place in enumerate(places)
    }
    rows = [Row(min(columns, count - at), "") for at in range(0, count, columns)]
    return Layout((Block("", count, tuple(rows)),), spots, each, pixels)


def drawn(
    where: Layout,
    conditions: Mapping[Condition, Mapping[str, int]],
    machine_of: Callable[[str], model.Machine | None],
    name_of: Callable[[str], str],
) -> FleetMap:
    """Return the map with the squares of machines that are under maintenance."""
    marks: dict[Spot, Mark] = {}
    for found in Condition:  # the worst first
        for key in conditions.get(found, ()):
            machine = machine_of(key)
            if machine is None:
                continue
            place: str | Place = machine.key
            leads_to = title = machine.name
            if where.domains_each:
                place, leads_to = (machine.scope, machine.update_domain), ""
                title = f"{name_of(machine.scope)}, domain {machine.update_domain}"
            spot = where.spots.get(place)
            if spot is None or spot in marks:
                continue
            _, row, column = spot
            marks[spot] = Mark(column * PITCH, row * PITCH, found, f"{title}: {found}", leads_to)
    of_block: dict[int, list[Mark]] = {}
    for (block, _, _), mark in sorted(marks.items()):
        of_block.setdefault(block, []).append(mark)
    return FleetMap(
        tuple((block, tuple(of_block.get(n, ()))) for n, block in enumerate(where.blocks)),
        where.domains_each,
        where.pixels,
    )

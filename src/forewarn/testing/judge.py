"""Whether what a line of a scenario expects is so."""

from collections.abc import Iterable
from datetime import timedelta
from typing import assert_never

from forewarn.maintenance.model import Operation
from forewarn.protocol import document, versions
from forewarn.testing import statements, timeline
from forewarn.testing.statements import Attention, Fleets, Incarnation, Is, Sees, Walks
from forewarn.testing.world import World

Expectation = Sees | Is | Incarnation | Walks | Attention | Fleets


def complaint(world: World, expected: Expectation) -> str:
    """Return what is otherwise than expected; `""` where all is as it should be."""
    match expected:
        case Sees():
            return _sees(world, expected)
        case Is():
            return _is(world, expected)
        case Incarnation():
            return _incarnation(world, expected)
        case Walks():
            return _walks(world, expected)
        case Attention():
            found = {(item.kind, item.about) for item in world.attention()}
            wanted = set(expected.items)
            return "" if found == wanted else f"the attention list is: {_listed(found)}"
        case Fleets():
            return _fleets(world, expected)
        case _:
            assert_never(expected)


def _sees(world: World, expected: Sees) -> str:
    machine = world.machine(expected.machine)
    if machine is None:
        return f"the fleet has no machine {expected.machine}"
    read = world.reads(machine.scope, versions.BY_NAME[expected.version])
    if len(read.events) == len(expected.events) and all(
        _same(world, event, wanted)
        for event, wanted in zip(read.events, expected.events, strict=True)
    ):
        return ""
    told = " and ".join(_told(world, event) for event in read.events) or "nothing"
    return f"{machine.name} sees {told}"


def _same(world: World, event: document.Event, wanted: statements.Shown) -> bool:
    at = None if event.not_before is None else world.since_beginning(event.not_before)
    return (
        event.event_type is wanted.event_type
        and event.status is wanted.status
        and event.resources == wanted.machines
        and (wanted.not_before is None or wanted.not_before == at)
    )


def _told(world: World, event: document.Event) -> str:
    text = f"{event.event_type} {event.status} of {', '.join(event.resources)}"
    if event.not_before is None:
        return text
    return f"{text} at {_span(world.since_beginning(event.not_before))}"


def _is(world: World, expected: Is) -> str:
    operation = world.operation(expected.operation)
    if operation is None:
        return "" if expected.status is None else f"there is no operation {expected.operation}"
    started = operation.started_at
    since = None if started is None else world.since_beginning(started)
    not_before = world.since_beginning(operation.not_before)
    held = operation.held_at is not None
    so = (
        operation.status is expected.status
        and (expected.because is None or operation.start_cause is expected.because)
        and (operation.waits_for == expected.waits_for)
        and held == expected.held
        and (expected.since is None or since == expected.since)
        and (expected.not_before is None or not_before == expected.not_before)
    )
    return "" if so else _described(operation, since, not_before)


def _described(operation: Operation, since: timedelta | None, not_before: timedelta) -> str:
    text = f"{operation.id} is {operation.status}"
    if operation.start_cause is not None:
        text += f" because {operation.start_cause}"
    if operation.waits_for:
        text += f" waiting for {operation.waits_for}"
    if operation.held_at is not None:
        text += " held"
    if since is not None:
        text += f" since {_span(since)}"
    text += f" not before {_span(not_before)}"
    return text + (f' "{operation.outcome}"' if operation.outcome else "")


def _incarnation(world: World, expected: Incarnation) -> str:
    scope = world.scopes().get(expected.scope.lower())
    if scope is None:
        return f"the fleet has no scope {expected.scope}"
    if scope.incarnation == expected.number:
        return ""
    return f"the incarnation of {scope.name} is {scope.incarnation}"


def _walks(world: World, expected: Walks) -> str:
    maintenance = world.maintenance(expected.maintenance)
    if maintenance is None:
        return f"there is no maintenance {expected.maintenance}"
    states = [walk.state for walk in maintenance.rolling_updates]
    if states and all(state is expected.state for state in states):
        return ""
    told = _listed((state, "") for state in states)
    return f"the walks of maintenance {maintenance.number} are: {told}"


def _fleets(world: World, expected: Fleets) -> str:
    machine = world.machine(expected.machine)
    if machine is None:
        return "" if expected.host is None else f"the fleet has no machine {expected.machine}"
    if expected.host is not None and machine.host == expected.host:
        return ""
    return f"{machine.name} is on host {machine.host or 'unknown'}"


def _listed(pairs: Iterable[tuple[str, str]]) -> str:
    return ", ".join(sorted(f"{kind} {about}".rstrip() for kind, about in pairs)) or "nothing"


def _span(span: timedelta) -> str:
    return timeline.clock_face(span)

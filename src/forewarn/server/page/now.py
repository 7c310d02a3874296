"""The page Now: tiles, alerts, the next operations, progress, the timeline and the fleet.

All of it comes from the inventory, which has live operations, and from one reading of the store,
for those that are over (`EndedOperations`). A request takes both to the page's thread, which
renders the page. Windows that ask together share it; the store is read again once an operation
ends, or after a minute.
"""

import asyncio
import heapq
import statistics
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import urlencode

import msgspec
from markupsafe import Markup

from forewarn.maintenance import alerts, model, standing
from forewarn.maintenance.units import MaintenanceState, UnitState
from forewarn.server.operator.inventory import Inventory
from forewarn.server.operator.routing import STORE_SECONDS, Backend
from forewarn.server.page import fleet_map, orders, timeline
from forewarn.server.page.fleet_map import Condition, Place
from forewarn.server.page.live import SharedAnswers
from forewarn.server.page.rendering import Renderer
from forewarn.store.port import StoreError
from forewarn.store.queries import Reading
from forewarn.vocabulary import ApproverKind, EventStatus

PAST: Final = timedelta(days=7)
"""The age up to which ended operations are read: the longest range of the timeline."""

MAX_PAST: Final = 2000
"""The most operations that are read although they are over, the latest: three times as many as the
timeline draws. The median time to approval is taken from these."""

DAY: Final = timedelta(days=1)

MINUTE: Final = timedelta(minutes=1)
"""The longest time that ended operations are reused: some leave the last day and week meanwhile."""

LOOKS: Final = 2000
"""The machines that each request checks for whether they listen: some 2 ms."""

SHOWN_ALERTS: Final = 4
"""The most alerts that are shown at once; the others up to MAX_ALERTS are folded."""

MAX_ALERTS: Final = 100
MAX_NEXT: Final = 8
MAX_PROGRESS: Final = 5
"""The most lines of each kind; of the rest only the number is shown."""

GRAVE: Final = frozenset(
    {
        alerts.AlertKind.FAILED,
        alerts.AlertKind.UNKNOWN,
        alerts.AlertKind.STUCK,
        alerts.AlertKind.HOST_LOST,
        alerts.AlertKind.CRASHED,
        alerts.AlertKind.RUNS_TWICE,
        alerts.AlertKind.HALTED,
        alerts.AlertKind.STORE_DOWN,
        alerts.AlertKind.LOST_CHANGES,
        alerts.AlertKind.REPLICA_LOST,
        alerts.AlertKind.FAILING,
        alerts.AlertKind.ARRIVED,
    }
)
"""The alerts about something that has already gone wrong; they come first."""


# What there is to show.


class EndedOperations(msgspec.Struct, frozen=True, kw_only=True):
    """Operations that are over, as the store has them."""

    operations: tuple[model.Operation, ...] = ()
    """Those of the last week, the latest end first."""
    day: Mapping[EventStatus, int] = {}
    """The number of those of the last 24 hours, by status."""


def past(reading: Reading, now: datetime, most: int = MAX_PAST) -> EndedOperations:
    """Read what is over."""
    return EndedOperations(
        operations=tuple(reading.ended(now - PAST, most)), day=reading.ends(now - DAY)
    )


class ApprovalTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Approvals of the operations, live or read, that started within the last 24 hours."""

    started: int = 0
    approved: int = 0
    """Those that started because they were approved, by guests or an operator."""
    median: timedelta | None = None
    """From the announcement to the approval; None where there was none."""


def condition(operation: model.Operation) -> Condition | None:
    """Return the condition of an operation's machines because of it; None if there is none."""
    if timeline.is_down(operation):
        return Condition.DOWN
    if operation.status is EventStatus.FAILED and not operation.acknowledged_by:
        return Condition.FAILED
    return Condition.NOTICE if operation.pending else None


def conditions(live: Iterable[model.Operation]) -> dict[Condition, Counter[str]]:
    """Count the operations of each machine, by its key, under each condition."""
    found: dict[Condition, Counter[str]] = {each: Counter() for each in Condition}
    for operation in live:
        if (its := condition(operation)) is not None:
            found[its].update(map(model.key, operation.machines))
    return found


def approvals(operations: Iterable[model.Operation], since: datetime) -> ApprovalTimes:
    """Return how these started since then."""
    started, waits = 0, list[timedelta]()
    for operation in operations:
        if operation.started_at is None or operation.started_at < since:
            continue
        started += 1
        words = [event.approval for event in operation.events if event.approval is not None]
        by_people = any(word.kind is not ApproverKind.AUTOMATIC for word in words)
        if operation.start_cause is model.StartCause.APPROVED and by_people:
            waits.append(max(word.at for word in words) - operation.announced_at)
    median = statistics.median_low(waits) if waits else None
    return ApprovalTimes(started=started, approved=len(waits), median=median)


# What is shown.


class AlertLine(msgspec.Struct, frozen=True):
    """An alert, and what leads on from it."""

    alert: alerts.Alert
    href: str
    """The page of its subject; `""` if there is none."""
    action: str
    """The label of the button that ends it, such as `Retry h2`; `""` if a command does."""
    order: str
    """The address that the button leads to."""


STARTS: Final = "in"
"""The state of what only its time, or an approval, keeps from starting."""

NextLine = tuple[model.Operation, str, str, datetime | None, datetime | None]
"""An operation that is under way or comes next: its scopes, its state in words, and the time from
which that is counted upwards, or to which it is counted down."""


class Listening:
    """Counts the machines that asked lately: a share of a large fleet at each look."""

    def __init__(self, sighting: model.Sightings) -> None:
        self._sighting = sighting
        self._keys: Sequence[str] = ()
        self._heard = bytearray()
        self._next = 0
        self.looked_at = 0
        self.count = 0
        """The number of those that listen."""

    def begin(self, keys: Sequence[str]) -> None:
        """Start over with these machines, none of them checked yet."""
        self._keys, self._heard = keys, bytearray(len(keys))
        self._next = self.looked_at = self.count = 0

    def look(self, now: datetime) -> None:
        """Look at the next LOOKS machines."""
        heard, keys = self._heard, self._keys
        lately = now - model.LISTENING
        for _ in range(min(LOOKS, len(keys))):
            at = self._next
            seen = self._sighting(keys[at])
            listens = seen is not None and seen.asked_at >= lately
            self.count += listens - heard[at]
            heard[at] = listens
            self._next = (at + 1) % len(keys)
            self.looked_at = max(self.looked_at, at + 1)


class NowPage:
    """Makes what the page Now shows; belongs to the page's thread."""

    def __init__(self, sighting: model.Sightings) -> None:
        self._listening = Listening(sighting)
        self._layout = fleet_map.layout((), {}, {})
        self._machines: Mapping[str, model.Machine] = {}
        self._sizes: Counter[Place] = Counter()

    def made(
        self,
        inventory: Inventory,
        over: EndedOperations,
        found: Sequence[alerts.Alert],
        opened: Sequence[model.Maintenance],
        *,
        now: datetime,
        shown: timeline.Range,
    ) -> dict[str, Any]:
        """Return the values for the templates.

        Args:
            inventory: A snapshot.
            over: Ended operations: read after the snapshot, so that none is missing from both.
            found: The alerts.
            opened: The open maintenances.
            now: The service's time.
            shown: The range of the timeline.
        """
        self._draw(inventory)
        self._listening.look(now)
        live = inventory.operations
        of_machines = conditions(live.values())
        every = [*live.values(), *(one for one in over.operations if one.id not in live)]
        chart = timeline.drawn(every, now, shown, inventory.name_of_scope)
        unfinished = [operation for operation in live.values() if not operation.status.over]
        lines = [*_alert_lines(found, opened)]
        running = sorted(opened, key=lambda maintenance: -maintenance.number)
        of_scopes: Counter[str] = Counter()
        for (scope, _), count in self._sizes.items():
            of_scopes[scope] += count
        return {
            "tiles": self._tiles(every, over, of_machines, len(found), now),
            "grave": GRAVE,
            "alerts": lines[:SHOWN_ALERTS],
            "folded_alerts": lines[SHOWN_ALERTS:MAX_ALERTS],
            "more_alerts": max(0, len(lines) - MAX_ALERTS),
            "timeline": chart,
            "ranges": tuple(timeline.Range),
            "scope_kinds": {
                lanes.key: (_kind_of_scope(inventory, lanes.key), of_scopes[lanes.key])
                for lanes in chart.scopes
            },
            "coming": [*coming(unfinished, inventory.name_of_scope)],
            "more_coming": max(0, len(unfinished) - MAX_NEXT),
            "progress": [
                (one, standing.of_maintenance(one, now), Counter(unit.state for unit in one.units))
                for one in running[:MAX_PROGRESS]
            ],
            "more_progress": max(0, len(running) - MAX_PROGRESS),
            "map": fleet_map.drawn(
                self._layout, of_machines, inventory.machines.get, inventory.name_of_scope
            ),
        }

    def _draw(self, inventory: Inventory) -> None:
        """Draw the fleet again if it has changed: the squares of domains only with their sizes."""
        machines = inventory.machines
        if machines is self._machines:
            return
        if machines.keys() != self._machines.keys():
            self._listening.begin(tuple(machines))
        sizes = Counter((one.scope, one.update_domain) for one in machines.values())
        if sizes != self._sizes or len(machines) <= fleet_map.MAX_SQUARES:
            self._layout = fleet_map.layout(machines.values(), sizes, inventory.scopes)
        self._machines, self._sizes = machines, sizes

    def _tiles(
        self,
        every: Sequence[model.Operation],
        over: EndedOperations,
        of_machines: Mapping[Condition, Mapping[str, int]],
        alerts: int,
        now: datetime,
    ) -> dict[str, Any]:
        """Return the six numbers, and what is said below them."""
        live = [one for one in every if one.live]
        starting = [one.not_before for one in live if one.pending and _state(one)[0] == STARTS]
        ended = Counter(over.day)
        ended.update(one.status for one in live if one.ended_at and one.ended_at >= now - DAY)
        listening = self._listening
        looked_at = listening.looked_at
        return {
            # A failed machine does not work until somebody says that it does.
            "down": len({*of_machines[Condition.DOWN], *of_machines[Condition.FAILED]}),
            "broken": len(of_machines[Condition.FAILED]),
            "down_scopes": len(
                {
                    event.scope
                    for one in live
                    if timeline.is_down(one) or one.status is EventStatus.FAILED
                    for event in one.events
                }
            ),
            "machines": len(self._machines),
            "noticed": len(of_machines[Condition.NOTICE]),
            "next_at": min(starting, default=None),
            "alerts": alerts,
            "ended": ended,
            "approvals": approvals(every, now - DAY),
            "listening": 100 * listening.count / looked_at if looked_at else None,
            "silent": looked_at - listening.count,
        }


class RenderedNow:
    """Makes the page Now, and reads what is over only when that has changed.

    Used on the event loop's thread.
    """

    def __init__(self, backend: Backend, renderer: Renderer) -> None:
        self._backend = backend
        self._renderer = renderer
        self._page = NowPage(backend.inventory.sighting)
        self._read = SharedAnswers()
        self._over = EndedOperations()
        self._ends = 0
        """The number of changes in which an operation was over."""

    def learn(self, changes: model.Changes) -> None:
        """Note whether the store has to be read again."""
        self._ends += any(operation.status.over for operation in changes.operations)

    async def html(self, shown: timeline.Range) -> Markup:
        """Return the page's main part, which has every change so far."""
        backend, inventory = self._backend, self._backend.inventory.snapshot()
        now = backend.now()

        def read() -> Awaitable[EndedOperations]:
            return backend.read(lambda reading: past(reading, now))

        # While the store cannot be read, an alert says so, and the page shows what was read last.
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(STORE_SECONDS):
                state = self._ends, now.timestamp() // MINUTE.total_seconds()
                self._over = await self._read.get("past", state, read)
        over = self._over
        found = await backend.alerts(now)
        opened = tuple(backend.maintenances.open.values())

        def made() -> Markup:
            drawn = self._page.made(inventory, over, found, opened, now=now, shown=shown)
            text = self._renderer.text("_now.html", {"now": now, **drawn})
            return Markup(text)  # noqa: S704 - it has escaped

        return await self._renderer.on_thread(made)


def _kind_of_scope(inventory: Inventory, key: str) -> str:
    scope = inventory.scopes.get(key)
    return scope.kind.replace("_", " ") if scope is not None else ""


def coming(
    unfinished: Iterable[model.Operation], name_of: Callable[[str], str]
) -> Iterator[NextLine]:
    """Yield what is under way, the first started first, then what is next, by NotBefore."""
    for operation in heapq.nsmallest(MAX_NEXT, unfinished, key=_by_turn):
        scopes = [name_of(event.scope) for event in operation.events]
        yield operation, model.listed(scopes, 1), *_state(operation)


def _by_turn(operation: model.Operation) -> tuple[int, float, int, int]:
    if operation.started_at is not None:
        return 0, operation.started_at.timestamp(), operation.maintenance, operation.ordinal
    at = operation.not_before.timestamp()
    return (1 if operation.pending else 2), at, operation.maintenance, operation.ordinal


def _state(operation: model.Operation) -> tuple[str, datetime | None, datetime | None]:
    if operation.outcome_unknown:
        return "unknown", operation.started_at, None
    if operation.status is EventStatus.RETURNING:
        return "returning", operation.carried_out_at, None
    if operation.status is EventStatus.STARTED:
        return "down", operation.started_at, None
    if operation.held_at is not None:
        return "held", None, None
    if operation.waits_for:
        return f"after {operation.waits_for}", None, None
    if operation.arrived:
        return "blocked", None, None
    return STARTS, None, operation.not_before


def _alert_lines(
    found: Iterable[alerts.Alert], opened: Sequence[model.Maintenance]
) -> Iterator[AlertLine]:
    failed = {
        str(one.number): [unit.name for unit in one.units if unit.state is UnitState.FAILED]
        for one in opened
        if one.state is MaintenanceState.HALTED
    }
    for alert in sorted(found, key=lambda a: a.kind not in GRAVE):
        action = _action(alert, failed.get(alert.about, ()))
        yield AlertLine(alert, _place_of(alert.about), *action)


def _action(alert: alerts.Alert, failed: Sequence[str]) -> tuple[str, str]:
    """Return the label and the address of the order that ends an alert."""
    words = alert.kind.remedy.split()  # not those of a host named "drain"
    names = (word for word in words if word in orders.ORDERS)
    name, unit = next(names, ""), ""
    if name == "resume" and len(failed) == 1:
        name, unit = "retry", failed[0]
    if not name:
        return "", ""
    query = {"reference": alert.about, **({"unit": unit} if unit else {})}
    return f"{orders.ORDERS[name].label} {unit}".rstrip(), f"/orders/{name}?{urlencode(query)}"


def _place_of(about: str) -> str:
    kind, _, name = about.partition(" ")
    number, dot, part = kind.partition(".")
    if number.isdecimal() and (part.isdecimal() or not dot):
        return f"/operations/{kind}" if dot else f"/maintenance/{kind}"
    if kind in {each.value for each in model.HoldKind}:
        return orders.address_of_hold(model.HoldKind(kind), name)
    return ""

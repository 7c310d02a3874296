"""What the page Now shows: tiles, what needs an operator, what is next, rollouts, the fleet.

All of it is made on the page's thread, of what `facts` counted and of the machines' last requests,
a share of which is looked at each time. Windows that ask together get the same.
"""

import asyncio
import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
from markupsafe import Markup

from forewarn.maintenance import alerts, model, transitions
from forewarn.maintenance.rollout_model import Rollout, UnitState
from forewarn.server.operator.inventory import Inventory
from forewarn.server.operator.requests import Backend
from forewarn.server.page import fleet_map, orders, timeline
from forewarn.server.page.facts import DAY, Condition, Facts, Taken
from forewarn.server.page.rendering import Renderer
from forewarn.store.port import StoreError
from forewarn.vocabulary import EventStatus, EventType

LOOKS: Final = 2000
"""How many machines are looked at for each request, to see who listens: some 2 ms."""

SHARED: Final = timedelta(seconds=1)
"""How old what other windows were sent may be, while nothing changes."""

SHOWN_ALERTS: Final = 4
"""The most alerts that are shown at once; the others up to MAX_ALERTS are folded."""

MAX_ALERTS: Final = 100
MAX_NEXT: Final = 8
MAX_ROLLOUTS: Final = 5
"""The most lines of each kind; of the rest only the number is told."""

GRAVE: Final = frozenset(
    {
        alerts.AlertKind.FAILED,
        alerts.AlertKind.UNKNOWN,
        alerts.AlertKind.STUCK,
        alerts.AlertKind.HOST_LOST,
        alerts.AlertKind.CRASHED,
        alerts.AlertKind.RUNS_TWICE,
        alerts.AlertKind.ROLLOUT_HALTED,
        alerts.AlertKind.LOST_CHANGES,
        alerts.AlertKind.DOUBTED,
    }
)
"""What has gone wrong already, and comes first."""


class Tiles(msgspec.Struct, frozen=True, kw_only=True):
    """The six numbers."""

    down: int
    down_scopes: int
    machines: int
    noticed: int
    """Machines under notice."""
    next_at: datetime | None
    """When the next operation starts at the latest; None where nothing is Scheduled."""
    alerts: int | None
    """None while the store is away."""
    first_alert: str
    done: int
    failed: int
    cancelled: int
    approval: timedelta | None
    approved: int
    started: int
    listening: float | None
    """Of the machines that were looked at, the share that listens; None where there is none."""
    silent: int
    """Those of them that do not."""


class AlertLine(msgspec.Struct, frozen=True, kw_only=True):
    """What needs an operator."""

    word: str
    about: str
    href: str
    """Where to look."""
    message: str
    age: timedelta
    grave: bool


class NextLine(msgspec.Struct, frozen=True, kw_only=True):
    """An operation that is under way, or comes next."""

    operation: str
    event_type: EventType
    form: timeline.Form
    machines: str
    scope: str
    word: str
    """What it does or waits for."""
    since: datetime | None = None
    """Counted from here, upwards."""
    until: datetime | None = None
    """Counted down to this."""


class Segment(msgspec.Struct, frozen=True):
    """The units of a rollout in one state, as a part of its bar in per cent."""

    state: UnitState
    count: int
    x: float
    width: float


class RolloutLine(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout as a bar."""

    number: int
    event_type: EventType
    state: str
    reason: str
    units: int
    over: int
    segments: tuple[Segment, ...]


class Listening:
    """Counts the machines that asked lately: a share of a large fleet at each look."""

    def __init__(self, sighting: model.Sightings) -> None:
        self._sighting = sighting
        self._keys: Sequence[str] = ()
        self._heard = bytearray()
        self._next = 0
        self.looked_at = 0
        self.count = 0
        """How many of those listen."""

    def begin(self, keys: Sequence[str]) -> None:
        """Begin with these machines, of which none was looked at."""
        self._keys, self._heard = keys, bytearray(len(keys))
        self._next = self.looked_at = self.count = 0

    def look(self, now: datetime) -> None:
        """Look at the next LOOKS machines."""
        heard, keys = self._heard, self._keys
        lately = now - transitions.LISTENING
        for _ in range(min(LOOKS, len(keys))):
            at = self._next
            seen = self._sighting(keys[at])
            listens = seen is not None and seen.asked_at >= lately
            self.count += listens - heard[at]
            heard[at] = listens
            self._next = (at + 1) % len(keys)
            self.looked_at = max(self.looked_at, at + 1)


class NowPage:
    """Makes what the page Now shows; belongs to the page's thread, but for reading `shape`."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._listening = Listening(inventory.sighting)
        self._layout = fleet_map.layout((), {}, {})
        self._of_scopes: Mapping[str, int] = {}
        self._segments: dict[int, tuple[Rollout, tuple[Segment, ...]]] = {}
        self.shape = -1
        """The shape of the fleet that is drawn, for `Facts.taken`."""

    def made(
        self,
        taken: Taken,
        found: Sequence[alerts.Alert] | None,
        rollouts: Iterable[Rollout],
        shown: timeline.Range,
    ) -> dict[str, Any]:
        """Return what the templates draw; `found` is what needs an operator, None if unknown."""
        if taken.keys is not None and taken.sizes is not None:
            machine_of, scopes = self._inventory.machines.get, self._inventory.scopes
            found_now = filter(None, map(machine_of, taken.keys))
            self._layout = fleet_map.layout(found_now, taken.sizes, scopes)
            self._listening.begin(taken.keys)
            of_scopes: Counter[str] = Counter()
            for (scope, _), count in taken.sizes.items():
                of_scopes[scope] += count
            self._of_scopes = of_scopes
            self.shape = taken.shape
        self._listening.look(taken.now)
        chart = timeline.drawn(
            (*taken.live, *taken.past), taken.now, shown, self._inventory.name_of_scope
        )
        unfinished = [operation for operation in taken.live if not operation.status.over]
        lines = [*_alert_lines(found or (), taken.now)]
        running = sorted(_shown_rollouts(rollouts, taken.now), key=lambda r: -r.number)
        return {
            "tiles": self._tiles(taken, found, lines),
            "alerts": lines[:SHOWN_ALERTS],
            "folded_alerts": lines[SHOWN_ALERTS:MAX_ALERTS],
            "more_alerts": max(0, len(lines) - MAX_ALERTS),
            "timeline": chart,
            "ranges": tuple(timeline.Range),
            "scope_kinds": {
                lanes.key: (self._kind_of_scope(lanes.key), self._of_scopes.get(lanes.key, 0))
                for lanes in chart.scopes
            },
            "quiet": max(0, len(self._of_scopes) - len(chart.scopes) - chart.further),
            "coming": [*coming(unfinished, self._inventory.name_of_scope)],
            "more_coming": max(0, len(unfinished) - MAX_NEXT),
            "rollouts": [self._rollout(rollout) for rollout in running[:MAX_ROLLOUTS]],
            "more_rollouts": max(0, len(running) - MAX_ROLLOUTS),
            "map": fleet_map.drawn(
                self._layout,
                taken.conditions,
                self._inventory.machines.get,
                self._inventory.name_of_scope,
            ),
        }

    def _kind_of_scope(self, key: str) -> str:
        scope = self._inventory.scopes.get(key)
        return scope.kind.replace("_", " ") if scope is not None else ""

    def _tiles(
        self, taken: Taken, found: Sequence[alerts.Alert] | None, lines: Sequence[AlertLine]
    ) -> Tiles:
        down = [o for o in taken.live if timeline.is_down(o)]
        pending = [o.not_before for o in taken.live if o.pending and o.held_at is None]
        listening, day = self._listening, taken.day
        looked_at = listening.looked_at
        return Tiles(
            down=len(taken.conditions[Condition.DOWN]),
            down_scopes=len({event.scope for o in down for event in o.events}),
            machines=taken.machines,
            noticed=len(taken.conditions[Condition.NOTICE]),
            next_at=min(pending, default=None),
            alerts=None if found is None else len(found),
            first_alert=lines[0].message if lines else "",
            done=day.completed,
            failed=day.failed,
            cancelled=day.cancelled,
            approval=day.approval,
            approved=day.approved,
            started=day.started,
            listening=100 * listening.count / looked_at if looked_at else None,
            silent=looked_at - listening.count,
        )

    def _rollout(self, rollout: Rollout) -> RolloutLine:
        known = self._segments.get(rollout.number)
        if known is None or known[0] is not rollout:
            known = self._segments[rollout.number] = rollout, segments(rollout)
            while len(self._segments) > 4 * MAX_ROLLOUTS:
                del self._segments[next(iter(self._segments))]
        return RolloutLine(
            number=rollout.number,
            event_type=rollout.task.event_type,
            state=rollout.state,
            reason=rollout.reason,
            units=len(rollout.units),
            over=sum(segment.count for segment in known[1] if segment.state.over),
            segments=known[1],
        )


class SharedNow:
    """Hands the windows of one range the same page, until something changes.

    Used on the event loop's thread.
    """

    def __init__(self, backend: Backend, facts: Facts, renderer: Renderer) -> None:
        self._backend = backend
        self._facts = facts
        self._renderer = renderer
        self._page = NowPage(backend.inventory)
        self._made: dict[timeline.Range, tuple[int, datetime, asyncio.Task[Markup]]] = {}

    async def html(self, shown: timeline.Range) -> Markup:
        """Return the page's main part, which has every change so far."""
        now, changes = self._backend.now(), self._facts.changes
        known = self._made.get(shown)
        if (
            known is None
            or known[0] != changes
            or abs(now - known[1]) > SHARED
            or _has_failed(known[2])
        ):
            known = changes, now, asyncio.create_task(self._render(shown, now))
            self._made[shown] = known
        return await asyncio.shield(known[2])

    async def _render(self, shown: timeline.Range, now: datetime) -> Markup:
        backend, facts, page = self._backend, self._facts, self._page
        found = None
        try:
            await facts.read(backend.read, now)
            found = await backend.alerts(now)
        except StoreError:
            pass  # the page says so, and shows what memory has
        taken = facts.taken(now, page.shape)
        rollouts = tuple(backend.rollouts.rollouts.values())

        def made() -> Markup:
            values = page.made(taken, found, rollouts, shown)
            html = self._renderer.text("_now.html", {"now": now, **values})
            return Markup(html)  # noqa: S704 - the template has escaped it

        return await self._renderer.on_thread(made)


def _has_failed(task: "asyncio.Task[Markup]") -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


def segments(rollout: Rollout) -> tuple[Segment, ...]:
    """Return the parts of a rollout's bar, without gaps and in one order."""
    counts = Counter(unit.state for unit in rollout.units)
    found, before = [], 0
    total = max(1, len(rollout.units))
    for state in (
        UnitState.DONE,
        UnitState.SKIPPED,
        UnitState.FAILED,
        UnitState.RUNNING,
        UnitState.WAITING,
    ):
        if counts[state]:
            x = round(100 * before / total, 2)
            before += counts[state]
            found.append(Segment(state, counts[state], x, round(100 * before / total - x, 2)))
    return tuple(found)


def _shown_rollouts(rollouts: Iterable[Rollout], now: datetime) -> Iterator[Rollout]:
    return (r for r in rollouts if r.goes_on or now - r.changed_at < DAY)


def coming(
    unfinished: Iterable[model.Operation], name_of: Callable[[str], str]
) -> Iterator[NextLine]:
    """Yield what is under way, the first started first, then what is next, by NotBefore."""
    for operation in heapq.nsmallest(MAX_NEXT, unfinished, key=_by_turn):
        word, since, until = _state(operation)
        scopes = [name_of(event.scope) for event in operation.events]
        yield NextLine(
            operation=operation.id,
            event_type=operation.event_type,
            form=timeline.form_of(operation),
            machines=timeline.label_of(operation.machines),
            scope=model.listed(scopes, 1),
            word=word,
            since=since,
            until=until,
        )


def _by_turn(operation: model.Operation) -> tuple[int, float, int, str]:
    if operation.started_at is not None:
        return 0, operation.started_at.timestamp(), operation.maintenance, operation.id
    at = operation.not_before.timestamp()
    return (1 if operation.pending else 2), at, operation.maintenance, operation.id


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
    return "in", None, operation.not_before


def _alert_lines(found: Iterable[alerts.Alert], now: datetime) -> Iterator[AlertLine]:
    for alert in sorted(found, key=lambda a: a.kind not in GRAVE):
        yield AlertLine(
            word=alert.kind.replace("-", " "),
            about=alert.about,
            href=_place_of(alert.about),
            message=alert.message,
            age=now - alert.since,
            grave=alert.kind in GRAVE,
        )


def _place_of(about: str) -> str:
    """Return the page about what an alert is about."""
    kind, _, name = about.partition(" ")
    number, dot, part = kind.partition(".")
    if number.isdecimal() and (part.isdecimal() or not dot):
        return f"/operations/{kind}" if dot else f"/maintenance/{kind}"
    if kind == "rollout" and name.isdecimal():
        return f"/rollouts/{name}"
    if kind in {each.value for each in model.HoldKind}:
        return orders.address_of_hold(model.HoldKind(kind), name)
    return ""

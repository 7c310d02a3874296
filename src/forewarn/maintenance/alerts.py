"""Conditions that need an operator: one list, computed from live values each time it is requested.

An alert goes with its cause: a failure when an operator acknowledges it, a hold when it is
released, an unapproved event when it starts, a lost host when it answers again.
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Self

import msgspec

from forewarn.maintenance import model, notice, planner, standing
from forewarn.maintenance.units import MaintenanceState, UnitState
from forewarn.vocabulary import EventStatus

CLOSE = timedelta(minutes=2)
"""The time before NotBefore at which an unapproved event raises an alert: enough to call somebody.
"""

STUCK_AFTER = timedelta(hours=1)
"""The longest duration of an operation without an expected one: as long as the slowest reboot of a
host, checks included."""

STUCK_FACTOR = 5
"""The multiple of its expected duration after which an operation counts as stuck."""

LEAST_STUCK = timedelta(minutes=10)
"""The least time before any operation counts as stuck, even one expected to last seconds."""

NOT_BACK_AFTER = timedelta(minutes=5)
"""The time for agents to bring their machines back to work before an alert."""

REFUSED_AFTER = timedelta(minutes=10)
"""The time for which the rules may refuse a unit before an alert: resources that other units take,
such as the memory of hosts, are free again by then."""

SILENT_AFTER = timedelta(minutes=2)
"""The time after the service's start for a machine to ask: it could not ask before, and the slowest
usual guest asks once a minute."""


class AlertKind(StrEnum):
    """The conditions that an operator should look at."""

    FAILED = "failed", "acknowledge {0}"
    HALTED = "halted", "maintenance resume {0}"
    """Units of a maintenance failed, or its check did: it waits until it is resumed or stopped."""
    UNCONFIRMED = "unconfirmed", "maintenance resume {0}"
    """The next wave of a maintenance waits for an operator."""
    REFUSED = "refused", "maintenance show {0}"
    """The rules have refused a unit of a maintenance, or the drain of its host, for a while."""
    UNKNOWN = "unknown", "resolve {0} succeeded|failed|repeat"
    """Nobody knows whether an operation was carried out."""
    STUCK = "stuck"
    HELD = "held", "release {0}"
    UNAPPROVED = "unapproved", "postpone {0} +30m"
    """It starts within CLOSE, and its guests have not approved."""
    UNSEEN = "unseen", "postpone {0} +30m"
    """Its machines use an api-version that does not show it, or do not ask."""
    NOT_BACK = "not-back", "acknowledge {0}"
    """It is over, and agents of its machines have not said that they are back."""
    ARRIVED = "arrived", "cancel {0}"
    """Machines came to a host whose maintenance was announced before, and it does not start."""
    AGENT_HELD = "agent-held", "postpone {0} +30m"
    """An agent could not prepare its machine, and does not approve."""
    HOST_LOST = "host-lost"
    """A host that the fleet is watched on does not answer."""
    CRASHED = "crashed"
    """A machine is off, and nobody stopped it."""
    RUNS_TWICE = "runs-twice"
    FLEET = "fleet"
    """The fleet and the hosts' domains differ."""
    HOST_STUCK = "host-stuck", "host show {1}"
    RELAY_AWAY = "relay-away"
    """The relay of a host does not ask for it, and nothing of the host starts."""
    STORE_DOWN = "store-down"
    """The store cannot be written or read, and nothing starts."""
    LOST_CHANGES = "lost-changes"
    """The database lost its last changes."""
    REPLICA_LOST = "replica-lost"
    """A replica fell silent without being stopped."""
    FAILING = "failing"
    """A part of the service fails again and again, at one thing or as a whole."""
    WEBHOOK_BEHIND = "webhook-behind", "webhook test {1}"
    """A webhook has not accepted news for ten minutes, or missed some."""

    remedy: str
    """The command of `forewarn` that ends such alerts once the cause is understood; it takes the
    subject of the alert, or the name in that. `""` where the cause is mended elsewhere, and the
    alert ends with it."""

    def __new__(cls, name: str, remedy: str = "") -> Self:
        """Make a kind with its remedy."""
        member = str.__new__(cls, name)
        member._value_, member.remedy = name, remedy
        return member


class Alert(msgspec.Struct, frozen=True):
    """One condition that needs an operator."""

    kind: AlertKind
    about: str
    """An operation (`12.1`), a maintenance (`12`), a hold (`scope web`), a host (`host h1`), a
    machine, a domain (`domain web-0`), a webhook (`webhook chat`), a replica (`replica r1`), the
    store, the database, or a part of the service (`maintenances`)."""
    message: str
    since: datetime


def remedy(alert: Alert) -> str:
    """Return the command of `forewarn` that ends an alert, or shows the cause; `""` for none.

    As a shell takes it: a host's name may have blanks.
    """
    about = [shlex.quote(word) for word in alert.about.split(" ", 1)]
    return alert.kind.remedy.format(" ".join(about), about[-1])


class Audience(msgspec.Struct, frozen=True):
    """The machines of an operation: how many can see its events, and which agents hold."""

    machines: int
    asking: int
    """The number that have asked in the last five minutes."""
    seeing: int
    """The number of those that last asked by a version that shows the events."""
    held: tuple[str, ...] = ()
    """The machines whose agents hold, each with the agent's reason."""


def items(
    operations: Iterable[model.Operation],
    maintenances: Iterable[model.Maintenance],
    holds: Iterable[model.Hold],
    audiences: Mapping[str, Audience],
    now: datetime,
    *,
    up_since: datetime,
    observed: Iterable[Alert] = (),
) -> list[Alert]:
    """Return the alerts: that the store is down, then the oldest first.

    It takes the operations that are live, or failed and not acknowledged; the maintenances that are
    open; all holds; and audiences by operation. An operation without an audience raises no alert
    about its readers. `up_since` is the service's start, from which on it knows the requests of
    machines. `observed` are the alerts from observations of hosts, and from their drains.
    """
    operations = tuple(operations)
    waiting: dict[str, list[str]] = {}
    for operation in operations:
        waiting.setdefault(operation.waits_for, []).append(operation.id)
    found = [
        alert
        for operation in operations
        for alert in (
            *_of_ended(operation, waiting.get(operation.id, ()), now),
            *_of_live(operation, audiences.get(operation.id), now, up_since),
        )
    ]
    for hold in holds:
        why = f"{hold.by or 'somebody'}: {hold.reason}".removesuffix(": ")
        ends = "" if hold.until is None else f"{notice.spoken(hold.until)}, or until "
        message = f"held by {why}; nothing starts until {ends}it is released"
        found.append(Alert(AlertKind.HELD, str(hold), message, hold.at))
    for maintenance in maintenances:
        found += _of_maintenance(maintenance, now)
    down = AlertKind.STORE_DOWN  # nothing else can be ended before it
    return sorted(
        [*found, *observed],
        key=lambda a: (a.kind is not down, a.since, a.kind, planner.numbered(a.about)),
    )


def store_down(why: object, since: datetime) -> Alert:
    """Return the alert about a store that cannot be written, and why."""
    message = f"nothing starts, and approvals and changes are answered 503: {why}"
    return Alert(AlertKind.STORE_DOWN, "store", message, since)


def of_drains(drains: Iterable[model.Drain], now: datetime) -> Iterator[Alert]:
    """Yield an alert for each host whose drain is stuck."""
    for drain in drains:
        if drain.state is model.HostState.STUCK:
            message = f"its drain is stuck {standing.of_host(drain, now)}"
            about = f"host {drain.host}"
            yield Alert(AlertKind.HOST_STUCK, about, message, drain.changed_at)


def _of_maintenance(maintenance: model.Maintenance, now: datetime) -> Iterator[Alert]:
    number, since = str(maintenance.number), maintenance.changed_at
    if maintenance.state is MaintenanceState.HALTED:
        assert since is not None
        message = standing.of_maintenance(maintenance, now)
        yield Alert(AlertKind.HALTED, number, message, since)
    elif maintenance.unconfirmed:
        assert maintenance.wave_at is not None
        yield Alert(AlertKind.UNCONFIRMED, number, maintenance.reason, maintenance.wave_at)
    elif maintenance.state is MaintenanceState.RUNNING:
        yield from _of_refused(maintenance, now)


def _of_refused(maintenance: model.Maintenance, now: datetime) -> Iterator[Alert]:
    since = {
        unit.name: unit.refused_at
        for unit in maintenance.units
        if unit.state is UnitState.WAITING
        and unit.refused_at is not None
        and now - unit.refused_at >= REFUSED_AFTER
    }
    if since:
        first = min(since, key=lambda name: (since[name], name))
        why = next(unit.reason for unit in maintenance.units if unit.name == first)
        message = f"refused again and again: {model.listed(tuple(since))}: {why}"
        yield Alert(AlertKind.REFUSED, str(maintenance.number), message, since[first])


def _of_ended(operation: model.Operation, waiting: Sequence[str], now: datetime) -> Iterator[Alert]:
    if operation.ended_at is None:
        return
    waits = (
        f"; {model.listed(waiting)} {'waits' if len(waiting) == 1 else 'wait'}" if waiting else ""
    )
    if operation.status is EventStatus.FAILED and not operation.acknowledged_by:
        message = f"{operation.event_type} failed: {operation.outcome}".removesuffix(": ")
        yield Alert(AlertKind.FAILED, operation.id, message + waits, operation.ended_at)
    completed = operation.status is EventStatus.COMPLETED
    if completed and operation.awaited and now - operation.ended_at >= NOT_BACK_AFTER:
        message = f"agents that have not said they are back: {model.listed(operation.awaited)}"
        yield Alert(AlertKind.NOT_BACK, operation.id, message + waits, operation.ended_at)


def _of_live(
    operation: model.Operation, audience: Audience | None, now: datetime, up_since: datetime
) -> Iterator[Alert]:
    what = str(operation.event_type)
    if operation.status is EventStatus.STARTED:
        assert operation.started_at is not None
        if operation.outcome_unknown:
            message = f"{what} of {model.listed(operation.machines)}: {operation.outcome_unknown}"
            yield Alert(AlertKind.UNKNOWN, operation.id, message, operation.started_at)
        elif now - operation.started_at > patience(operation):
            message = f"{what} has been running since {operation.started_at:%H:%M:%SZ}"
            yield Alert(AlertKind.STUCK, operation.id, message, operation.started_at)
    if operation.arrived:
        message = (
            f"{model.listed(operation.arrived)} came to host {operation.on_host} without notice of "
            "it, and it does not start: move them away, or cancel it and ask again"
        )
        since = min(operation.announced_at, now)
        yield Alert(AlertKind.ARRIVED, operation.id, message, since)
    if operation.pending and not operation.silent and not operation.approved:
        for kind, message in _of_unapproved(operation, audience, now, now - up_since):
            yield Alert(kind, operation.id, message, operation.announced_at)


def _of_unapproved(
    operation: model.Operation, audience: Audience | None, now: datetime, up: timedelta
) -> Iterator[tuple[AlertKind, str]]:
    if operation.held_at is None and operation.not_before - now <= CLOSE:
        over = "is over" if operation.not_before <= now else "ends soon"
        yield AlertKind.UNAPPROVED, f"not approved, and its notice {over}"
    if audience is not None and (message := _unseen(audience, up)):
        yield AlertKind.UNSEEN, message
    if audience is not None and audience.held:
        yield AlertKind.AGENT_HELD, f"not prepared: {model.listed(audience.held)}"


def _unseen(audience: Audience, up: timedelta) -> str:
    silent = audience.machines - audience.asking if up >= SILENT_AFTER else 0
    blind = audience.asking - audience.seeing
    of = f"of {audience.machines} machines"
    said = [f"{silent} {of} have not asked in the last five minutes"] if silent else []
    said += [f"{blind} {of} use an api-version that does not show it"] if blind else []
    return "; ".join(said)


def patience(operation: model.Operation) -> timedelta:
    """Return the duration after which an operation counts as stuck."""
    if operation.duration_seconds <= 0:
        return STUCK_AFTER
    return max(LEAST_STUCK, STUCK_FACTOR * timedelta(seconds=operation.duration_seconds))

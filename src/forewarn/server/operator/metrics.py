"""The metrics for Prometheus: counters of operations, and the state of the service at each scrape.

What happens is counted by Prometheus' own objects, where it happens; what is, such as the number of
live operations, is read at each scrape. docs/reference/metrics.md explains them all; a test
compares.
"""

import asyncio
import functools
import platform
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Final, TypeAlias

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from forewarn.control.relay_watch import RelayWatch
from forewarn.maintenance import model
from forewarn.maintenance.alerts import AlertKind
from forewarn.maintenance.units import MaintenanceState, UnitState
from forewarn.server.guest.endpoint import Figures
from forewarn.server.operator import views
from forewarn.server.operator.inventory import Inventory
from forewarn.server.operator.routing import STORE_SECONDS, Backend
from forewarn.server.operator.schemas import RelayPresence
from forewarn.store.port import StoreError
from forewarn.version import __version__
from forewarn.vocabulary import AgentStatus

_Family: TypeAlias = CounterMetricFamily | GaugeMetricFamily
_ByLabels: TypeAlias = Mapping[tuple[str, ...], float]

CONTENT_TYPE: Final = prometheus_client.CONTENT_TYPE_PLAIN_0_0_4
"""The text format that every Prometheus reads."""

LATENESS_BUCKETS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0)
"""Seconds: from a timer's delay to what somebody should look into."""

FAMILIES: Final[tuple[tuple[type[_Family], str, tuple[str, ...], str], ...]] = (
    (GaugeMetricFamily, "ready", (), "1 while the service does all its work."),
    (GaugeMetricFamily, "store_up", (), "1 if the store was read and written for this scrape."),
    (GaugeMetricFamily, "replicas", (), "Replicas that live, as this one knows."),
    (GaugeMetricFamily, "replica_behind_seconds", (), "Since when memory may lack changes."),
    (GaugeMetricFamily, "guest_connections", (), "Open connections of guests."),
    (CounterMetricFamily, "guest_connections_accepted", (), "Connections of guests so far."),
    (GaugeMetricFamily, "guest_waiters", (), "Requests that wait for their document."),
    (CounterMetricFamily, "guest_requests", ("resource", "code"), "Answers to guests."),
    (CounterMetricFamily, "guest_refusals", ("reason",), "Guests' refused requests, connections."),
    (GaugeMetricFamily, "machines_listening", (), "Machines that asked in the last 5 minutes."),
    (GaugeMetricFamily, "machines", (), "Registered machines."),
    (GaugeMetricFamily, "tasks_running", (), "Tasks that the connector carries out."),
    (GaugeMetricFamily, "scopes", ("state",), "Scopes, by whether their guests get events."),
    (GaugeMetricFamily, "operations", ("type", "status"), "Live operations."),
    (GaugeMetricFamily, "events", ("type", "status"), "Events that guests see."),
    (GaugeMetricFamily, "agents", ("status",), "Machines of live events, by their agents' word."),
    (GaugeMetricFamily, "notice_left_min_seconds", (), "The least notice left; absent for none."),
    (GaugeMetricFamily, "hosts", ("state",), "Hosts that are drained, by the state of the drain."),
    (GaugeMetricFamily, "maintenances", ("state",), "Maintenances with units that are not over."),
    (GaugeMetricFamily, "units", ("state",), "Units of these maintenances, by their state."),
    (GaugeMetricFamily, "relays", ("state",), "Relays of hosts, by whether they ask."),
    (GaugeMetricFamily, "relay_waiters", (), "Requests of relays that wait for a change."),
    (GaugeMetricFamily, "alerts", ("kind",), "What needs an operator; absent without the store."),
)
"""The metrics that a scrape computes: kind, name after `forewarn_`, labels, and help."""

DRAINED: Final = [state for state in model.HostState if state is not model.HostState.UP]
GOING: Final = [state for state in MaintenanceState if not state.over]
"""The states of drains, and of open maintenances."""

# A series with the start of each counter would double their number and help nobody.
_disable_created: Callable[[], None] = prometheus_client.disable_created_metrics
_disable_created()


class OperationMetrics:
    """Counts what happens to operations; told of each change before the inventory is."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        counters = started, ended, approvals = tuple(
            Counter(f"forewarn_{name}", documentation, labels, registry=None)
            for name, documentation, labels in (
                ("operations_started", "Operations that started, by cause.", ("type", "cause")),
                ("operations_ended", "Operations that ended, by result.", ("type", "status")),
                ("approvals", "Events that were approved, by approver.", ("by",)),
            )
        )
        self._lateness = Histogram(
            "forewarn_start_lateness_seconds",
            "Seconds from NotBefore to the start, of operations that only time held back.",
            buckets=LATENESS_BUCKETS,
            registry=None,
        )
        self.collectors = (*counters, self._lateness)
        # Prometheus' own way to a series by its labels takes twice as long: a lock, and text.
        self._started, self._ended, self._approvals = map(
            functools.cache, (started.labels, ended.labels, approvals.labels)
        )

    def learn(self, changes: model.Changes) -> None:
        """Count what changed."""
        for operation in changes.operations:
            before = self._inventory.operations.get(operation.id)
            if before is not None or not operation.status.over:  # else it was only acknowledged
                self._count(before, operation)

    def _count(self, before: model.Operation | None, operation: model.Operation) -> None:
        known = before.events if before is not None else ()
        approved = {event.id for event in known if event.approval is not None}
        for event in operation.events:
            if event.approval is not None and event.id not in approved:
                self._approvals(event.approval.kind).inc()
        if operation.status.over and not (before is not None and before.status.over):
            self._ended(operation.event_type, operation.status).inc()
        was_started = before is not None and before.started_at is not None
        if operation.started_at is None or operation.start_cause is None or was_started:
            return
        self._started(operation.event_type, operation.start_cause).inc()
        due = before.wakeup_at if before is not None else None
        if due is not None and operation.start_cause is model.StartCause.NOTICE_OVER:
            self._lateness.observe(max(0.0, (operation.started_at - due).total_seconds()))


async def render(backend: Backend) -> bytes:
    """Return every metric as CONTENT_TYPE."""
    try:
        async with asyncio.timeout(STORE_SECONDS):
            found = await backend.read(backend.ask_for_alerts(backend.now()))
    except (StoreError, TimeoutError):
        found = None
    state, now = await backend.readiness(), backend.now()
    read: Figures = {
        "ready": not state.reasons,
        "store_up": state.store_up and found is not None,
        "replicas": backend.replicas.live(),
        "replica_behind_seconds": backend.replicas.follower.behind_seconds,
        "machines": len(backend.inventory.machines),
        "tasks_running": backend.tasks(),
        "relay_waiters": backend.relay_waiters(),
        **backend.guests.figures(),
        "relays": _relays_by_state(backend.relays, now),
    }
    policy = backend.settings.rules.policy
    drains = tuple(backend.hosts.drains.values())
    opened = tuple(backend.maintenances.open.values())
    scopes = tuple(backend.inventory.scopes.values())
    operations = tuple(backend.inventory.operations.values())
    machines, since = tuple(backend.inventory.machines), now - model.LISTENING
    sighting = backend.inventory.sighting

    def written() -> bytes:
        registry = CollectorRegistry()
        counted = {
            **read,
            # By whichever replica or relay: a machine asks one of them.
            "machines_listening": sum(
                seen is not None and seen.asked_at >= since for seen in map(sighting, machines)
            ),
            "scopes": _scopes_by_state(scopes, policy, now),
            **_of_operations(operations, sighting, now),
            "alerts": {} if found is None else _by(AlertKind, (each.kind for each in found)),
            "hosts": _by(DRAINED, (drain.state for drain in drains)),
            "maintenances": _by(GOING, (each.state for each in opened)),
            "units": _by(UnitState, (unit.state for each in opened for unit in each.units)),
        }
        for collector in (_State(counted), *backend.collectors):
            registry.register(collector)
        ProcessCollector(registry=registry)
        return prometheus_client.generate_latest(registry)

    # On another thread: to count 100,000 scopes must not delay guests.
    return await backend.beside(written)


class _State(Collector):
    """The state of the service at one scrape."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        """Yield each metric of FAMILIES, and the release."""
        yield InfoMetricFamily(
            "forewarn_build",
            "The release, and the version of Python.",
            {"version": __version__, "python": platform.python_version()},
        )
        for family, name, labels, documentation in FAMILIES:
            metric = family(f"forewarn_{name}", documentation, labels=labels)
            found = self._figures[name]
            by_labels = found if isinstance(found, Mapping) else {(): found}
            for values, value in sorted(by_labels.items()):
                metric.add_metric(values, value)
            yield metric


def _scopes_by_state(
    scopes: Sequence[model.Scope], policy: model.Policy, now: datetime
) -> _ByLabels:
    on = len(scopes)
    if policy.enablement is not model.Enablement.ALWAYS:
        on = sum(policy.is_on(scope, now) for scope in scopes)
    return {("on",): on, ("off",): len(scopes) - on}


def _of_operations(
    operations: Sequence[model.Operation], sighting: model.Sightings, now: datetime
) -> dict[str, _ByLabels]:
    visible = [o for o in operations if o.status.visible]
    events = Tally(_labels(o) for o in visible for event in o.events if not event.silent)
    machines = {model.key(name) for operation in operations for name in operation.machines}
    words = (seen.agent for seen in map(sighting, machines) if seen is not None)
    left = [
        (o.not_before - now).total_seconds()
        for o in operations
        if o.pending and o.held_at is None and not o.approved and not o.silent
    ]
    return {
        "operations": Tally(map(_labels, operations)),
        "events": {labels: events[labels] for labels in map(_labels, visible)},
        "agents": _by(AgentStatus, words),
        "notice_left_min_seconds": {(): max(0.0, min(left))} if left else {},
    }


def _relays_by_state(watch: RelayWatch | None, now: datetime) -> _ByLabels:
    if watch is None:
        return {}
    hosts = {token.host for token in watch.tokens.values()}
    return _by(RelayPresence, (views.presence(host, watch, now) for host in hosts))


def _by(kinds: Iterable[StrEnum], found: Iterable[object]) -> _ByLabels:
    """Return how many of each kind there are, also of those without any."""
    counts = Tally(found)
    return {(kind.value,): counts[kind] for kind in kinds}


def _labels(operation: model.Operation) -> tuple[str, ...]:
    return operation.event_type.value, operation.status.value

"""The metrics for Prometheus: counters of operations, and the state of the service at each scrape.

What happens is counted by Prometheus' own objects, where it happens; what is, such as the number of
live operations, is read at each scrape. docs/reference/metrics.md explains them all; a test
compares.
"""

import asyncio
import platform
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec
import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from forewarn.maintenance import alerts, decide
from forewarn.maintenance.model import (
    Changes,
    Enablement,
    Operation,
    Policy,
    Scope,
    StartCause,
    key,
)
from forewarn.server.guest.counters import Figures
from forewarn.server.operator.requests import Backend, ServiceState
from forewarn.server.operator.views import Sightings
from forewarn.store.port import StoreError
from forewarn.version import __version__
from forewarn.vocabulary import AgentStatus, EventStatus

CONTENT_TYPE: Final = prometheus_client.CONTENT_TYPE_PLAIN_0_0_4
"""The text format that every Prometheus reads."""

LATENESS_BUCKETS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0)
"""Seconds: from a timer's delay to what somebody should look into."""

STORE_SECONDS: Final = 2.0
"""How long a scrape waits for the store: scrapers wait ten for all of it."""

# A series with the start of each counter would double their number and help nobody.
_disable_created: Callable[[], None] = prometheus_client.disable_created_metrics
_disable_created()


class OperationMetrics:
    """Counts what happens to operations; filled and updated on one thread."""

    def __init__(self) -> None:
        self._live: dict[str, Operation] = {}
        self._started = Counter(
            "forewarn_operations_started",
            "Operations that started, by cause.",
            ("type", "cause"),
            registry=None,
        )
        self._ended = Counter(
            "forewarn_operations_ended",
            "Operations that ended, by result.",
            ("type", "status"),
            registry=None,
        )
        self._approvals = Counter(
            "forewarn_approvals", "Events that were approved, by approver.", ("by",), registry=None
        )
        self._lateness = Histogram(
            "forewarn_start_lateness_seconds",
            "Seconds from NotBefore to the start, of operations that only time held back.",
            buckets=LATENESS_BUCKETS,
            registry=None,
        )
        self.collectors: tuple[Collector, ...] = (
            self._started,
            self._ended,
            self._approvals,
            self._lateness,
        )

    def fill(self, operations: Iterable[Operation]) -> None:
        """Take over what is live, without counting it."""
        self._live = {operation.id: operation for operation in operations}

    def learn(self, changes: Changes) -> None:
        """Count what changed."""
        for operation in changes.operations:
            before = self._live.pop(operation.id, None)
            if operation.status.visible:
                self._live[operation.id] = operation
            elif before is None:
                continue  # it was over already, and somebody acknowledged it
            self._count(before, operation)

    def _count(self, before: Operation | None, operation: Operation) -> None:
        known = before.events if before is not None else ()
        approved = {event.id for event in known if event.approval is not None}
        for event in operation.events:
            if event.approval is not None and event.id not in approved:
                self._approvals.labels(event.approval.kind).inc()
        if operation.status.over:
            self._ended.labels(operation.event_type, operation.status).inc()
        was_started = before is not None and before.status is EventStatus.STARTED
        if operation.started_at is None or operation.start_cause is None or was_started:
            return
        self._started.labels(operation.event_type, operation.start_cause).inc()
        due = decide.wakeup_at(before) if before is not None else None
        if due is not None and operation.start_cause is StartCause.NOTICE_OVER:
            self._lateness.observe(max(0.0, (operation.started_at - due).total_seconds()))


class Scrape(msgspec.Struct, frozen=True, kw_only=True):
    """All that one scrape reads, taken on the event loop at one instant."""

    now: datetime
    figures: Figures
    machines: int
    scopes: Sequence[Scope]
    policy: Policy
    operations: Sequence[Operation]
    """Those that are Scheduled or Started."""
    sighting: Sightings
    tasks: int
    state: ServiceState
    trusted: bool
    """Whether the time of day is trusted."""
    alerts: Sequence[alerts.Alert] | None
    """What needs an operator; None where the store is unavailable."""


async def render(backend: Backend) -> bytes:
    """Return every metric as CONTENT_TYPE.

    They are counted on another thread: 100,000 scopes must not delay guests.
    """
    now = backend.now()
    try:
        async with asyncio.timeout(STORE_SECONDS):
            found = await backend.alerts(now)
    except (StoreError, TimeoutError):
        found = None
    scrape = Scrape(
        now=now,
        figures=backend.figures(),
        machines=len(backend.inventory.machines),
        scopes=tuple(backend.inventory.scopes.values()),
        policy=backend.policy,
        operations=tuple(backend.inventory.operations.values()),
        sighting=backend.sighting,
        tasks=backend.tasks(),
        state=await backend.readiness(),
        trusted=backend.heartbeat.clock_doubt() is None,
        alerts=found,
    )
    return await asyncio.to_thread(_render, scrape, backend.collectors)


def _render(scrape: Scrape, collectors: Sequence[Collector]) -> bytes:
    registry = CollectorRegistry()
    registry.register(_Figures(scrape))
    for collector in collectors:
        registry.register(collector)
    ProcessCollector(registry=registry)
    return prometheus_client.generate_latest(registry)


class _Figures(Collector):
    """The state of the service at one scrape."""

    def __init__(self, scrape: Scrape) -> None:
        self._scrape = scrape

    def collect(self) -> Iterator[Metric]:
        """Yield what is read at the scrape."""
        scrape, figures = self._scrape, self._scrape.figures
        yield InfoMetricFamily(
            "forewarn_build",
            "The release, and the version of Python.",
            {"version": __version__, "python": platform.python_version()},
        )
        store_up = scrape.state.store_up and scrape.alerts is not None
        for name, documentation, value in (
            ("ready", "1 while the service does all its work.", not scrape.state.reasons),
            ("clock_trusted", "1 while the time of day is trusted.", scrape.trusted),
            ("store_up", "1 if the store could be read and written for this scrape.", store_up),
            ("guest_connections", "Open connections of guests.", figures.connections),
            ("guest_waiters", "Requests that wait for their document.", figures.waiters),
            ("machines_seen", "Machines that asked for events since the start.", figures.seen),
            ("machines", "Registered machines.", scrape.machines),
            ("tasks_running", "Tasks that the connector carries out.", scrape.tasks),
        ):
            yield GaugeMetricFamily(f"forewarn_{name}", documentation, int(value))
        yield CounterMetricFamily(
            "forewarn_guest_connections_accepted", "Connections of guests so far.", figures.accepted
        )
        answers = CounterMetricFamily(
            "forewarn_guest_requests", "Answers to guests.", labels=("resource", "code")
        )
        for resource, codes in figures.answers.items():
            _add(answers, {(resource, str(code)): count for code, count in codes.items()})
        yield answers
        refusals = CounterMetricFamily(
            "forewarn_guest_refusals",
            "Requests and connections of guests that were refused.",
            labels=("reason",),
        )
        yield _add(refusals, {(reason,): count for reason, count in figures.refusals.items()})
        yield from _maintenance(scrape)


def _maintenance(scrape: Scrape) -> Iterator[Metric]:
    """Yield the figures of scopes, of live operations, and of what needs an operator."""
    on = len(scrape.scopes)
    if scrape.policy.enablement is not Enablement.ALWAYS:
        on = sum(scrape.policy.is_on(scope, scrape.now) for scope in scrape.scopes)
    scopes = GaugeMetricFamily(
        "forewarn_scopes", "Scopes, by whether their guests get events.", labels=("state",)
    )
    yield _add(scopes, {("on",): on, ("off",): len(scrape.scopes) - on})
    live: Tally[tuple[str, ...]] = Tally()
    shown: Tally[tuple[str, ...]] = Tally()
    for operation in scrape.operations:
        labels = (operation.event_type.value, operation.status.value)
        live[labels] += 1
        shown[labels] += sum(not event.silent for event in operation.events)
    names = ("type", "status")
    yield _add(GaugeMetricFamily("forewarn_operations", "Live operations.", labels=names), live)
    yield _add(GaugeMetricFamily("forewarn_events", "Events that guests see.", labels=names), shown)
    concerned = {key(name) for operation in scrape.operations for name in operation.machines}
    words = Tally(seen.agent for seen in map(scrape.sighting, concerned) if seen is not None)
    agents = GaugeMetricFamily(
        "forewarn_agents",
        "Machines of live events, by what their agents said last.",
        labels=("status",),
    )
    yield _add(agents, {(status.value,): words[status] for status in AgentStatus})
    notices = [
        (operation.not_before - scrape.now).total_seconds()
        for operation in scrape.operations
        if operation.status is EventStatus.SCHEDULED
        and operation.held_at is None
        and not operation.approved
        and not operation.silent
    ]
    least = GaugeMetricFamily(
        "forewarn_notice_left_min_seconds",
        "The least notice left of what is Scheduled and not approved; absent if there is none.",
        labels=(),
    )
    yield _add(least, {(): max(0.0, min(notices))} if notices else {})
    needs = GaugeMetricFamily(
        "forewarn_alerts",
        "What needs an operator; absent while the store is unavailable.",
        labels=("kind",),
    )
    found = Tally(alert.kind for alert in scrape.alerts or ())
    kinds = () if scrape.alerts is None else alerts.AlertKind
    yield _add(needs, {(kind.value,): found[kind] for kind in kinds})


def _add(
    family: CounterMetricFamily | GaugeMetricFamily, values: Mapping[tuple[str, ...], float]
) -> Metric:
    """Return a family with a sample for each tuple of labels."""
    for labels, value in sorted(values.items()):
        family.add_metric(labels, value)
    return family

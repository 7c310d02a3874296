"""What Prometheus reads: the figures of all rooms, gathered at each scrape.

Nothing is registered anywhere and nobody pushes: the rooms count plain numbers, and a scrape reads
them. docs/reference/metrics.md says what each is for; a test compares.
"""

import asyncio
import platform
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final, Protocol, TypeAlias

import msgspec
from prometheus_client import (
    CONTENT_TYPE_PLAIN_0_0_4,
    CollectorRegistry,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

from forewarn.control.measures import Course, Histogram
from forewarn.maintenance import alerts
from forewarn.maintenance.model import Enablement, Operation, Policy, Scope
from forewarn.server.guest.tally import Figures
from forewarn.version import __version__
from forewarn.vocabulary import EventStatus

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
"""The text that every Prometheus reads, and most else."""

Families: TypeAlias = Iterator[Metric]


class Writer(Protocol):
    """The control plane's writer, as it is measured."""

    commits: Histogram
    jobs: int

    def waiting(self) -> int:
        """Return how many jobs wait to be taken up."""
        ...


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """The rooms that count, beside those that the operators' routes work with anyway."""

    policy: Policy
    course: Course
    writer: Writer
    figures: Callable[[], Figures]
    acts: Callable[[], int]
    """How many are being carried out."""


class Scrape(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one scrape reads, taken on the event loop at one instant."""

    now: datetime
    figures: Figures
    machines: int
    scopes: Sequence[Scope]
    operations: Sequence[Operation]
    """Those that are Scheduled or Started."""
    policy: Policy
    course: Course
    writer: Writer
    acts: int
    reasons: tuple[str, ...]
    """Why the service is not ready."""
    doubt: str
    """Why the time of day is not trusted; `""` when it is."""
    needs: Sequence[alerts.Alert] | None
    """What needs an operator; None where the store is away."""


async def render(scrape: Scrape) -> bytes:
    """Return a scrape as CONTENT_TYPE.

    Done on another thread: a fleet of 100,000 scopes is counted without holding guests up.
    """
    return await asyncio.to_thread(_render, scrape)


def _render(scrape: Scrape) -> bytes:
    registry = CollectorRegistry()
    registry.register(_Collector(scrape))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class _Collector:
    """Tells one scrape."""

    def __init__(self, scrape: Scrape) -> None:
        self._scrape = scrape

    def collect(self) -> Iterable[Metric]:
        """Yield every metric of ours."""
        scrape = self._scrape
        yield from _service(scrape)
        yield from _guests(scrape.figures)
        yield from _fleet(scrape)
        yield from _operations(scrape)
        yield from _course(scrape.course)
        yield from _writer(scrape.writer)
        yield from _attention(scrape)


def _service(scrape: Scrape) -> Families:
    yield InfoMetricFamily(
        "forewarn_build",
        "Which release this is, on which Python.",
        {"version": __version__, "python": platform.python_version()},
    )
    yield GaugeMetricFamily(
        "forewarn_ready", "1 while the service does all its work.", int(not scrape.reasons)
    )
    yield GaugeMetricFamily(
        "forewarn_clock_trusted",
        "1 while the time of day is trusted; nothing starts otherwise.",
        int(not scrape.doubt),
    )
    yield GaugeMetricFamily(
        "forewarn_store_up",
        "1 if the store answered this scrape.",
        int(scrape.needs is not None),
    )


def _guests(figures: Figures) -> Families:
    requests = CounterMetricFamily(
        "forewarn_guest_requests", "Answers to guests.", labels=("resource", "code")
    )
    for resource, codes in figures.answers.items():
        for code, count in sorted(codes.items()):
            requests.add_metric((resource, str(code)), count)
    yield requests
    refusals = CounterMetricFamily(
        "forewarn_guest_refusals",
        "Guests turned away for who they are or by the transport.",
        labels=("reason",),
    )
    for reason, count in figures.refusals.items():
        refusals.add_metric((reason,), count)
    yield refusals
    yield GaugeMetricFamily(
        "forewarn_guest_connections", "Open connections of guests.", figures.connections
    )
    yield CounterMetricFamily(
        "forewarn_guest_connections_accepted", "Connections of guests so far.", figures.accepted
    )
    yield GaugeMetricFamily(
        "forewarn_guest_waiters", "Requests that wait for their document.", figures.waiters
    )
    yield GaugeMetricFamily(
        "forewarn_machines_seen",
        "Machines that asked for events, or approved some, since the start.",
        figures.seen,
    )


def _fleet(scrape: Scrape) -> Families:
    yield GaugeMetricFamily("forewarn_machines", "Machines of the fleet.", scrape.machines)
    enabled = len(scrape.scopes)
    if scrape.policy.enablement is not Enablement.ALWAYS:
        enabled = sum(scrape.policy.is_on(scope, scrape.now) for scope in scrape.scopes)
    scopes = GaugeMetricFamily(
        "forewarn_scopes", "Scopes, by whether their guests are told.", labels=("state",)
    )
    scopes.add_metric(("on",), enabled)
    scopes.add_metric(("off",), len(scrape.scopes) - enabled)
    yield scopes


def _operations(scrape: Scrape) -> Families:
    operations = GaugeMetricFamily(
        "forewarn_operations", "Live operations.", labels=("type", "status")
    )
    events = GaugeMetricFamily(
        "forewarn_events", "Events that guests see.", labels=("type", "status")
    )
    live: Counter[tuple[str, str]] = Counter()
    shown: Counter[tuple[str, str]] = Counter()
    for operation in scrape.operations:
        place = (operation.event_type.value, operation.status.value)
        live[place] += 1
        shown[place] += sum(not event.silent for event in operation.events)
    for place, count in sorted(live.items()):
        operations.add_metric(place, count)
        events.add_metric(place, shown[place])
    yield operations
    yield events
    yield GaugeMetricFamily("forewarn_acts_running", "Acts being carried out.", scrape.acts)
    left = GaugeMetricFamily(
        "forewarn_notice_left_min_seconds",
        "The least notice left of what is Scheduled and not approved; nothing where there is none.",
    )
    waiting = [
        (operation.not_before - scrape.now).total_seconds()
        for operation in scrape.operations
        if operation.status is EventStatus.SCHEDULED
        and operation.held_at is None
        and not operation.approved
        and not operation.silent
    ]
    if waiting:
        left.add_metric((), max(0.0, min(waiting)))
    yield left


def _course(course: Course) -> Families:
    started = CounterMetricFamily(
        "forewarn_operations_started",
        "Operations that started, by why they might.",
        labels=("type", "cause"),
    )
    for (event_type, cause), count in sorted(course.started.copy().items()):
        started.add_metric((event_type.value, cause.value), count)
    yield started
    ended = CounterMetricFamily(
        "forewarn_operations_ended", "Operations that ended, and how.", labels=("type", "status")
    )
    for (event_type, status), count in sorted(course.ended.copy().items()):
        ended.add_metric((event_type.value, status.value), count)
    yield ended
    approvals = CounterMetricFamily(
        "forewarn_approvals", "Events that were approved, by whose word.", labels=("by",)
    )
    for kind, count in sorted(course.approved.copy().items()):
        approvals.add_metric((kind.value,), count)
    yield approvals
    yield _histogram(
        "forewarn_start_lateness_seconds",
        "From NotBefore to the start, of what only the time held back.",
        course.lateness,
    )


def _writer(writer: Writer) -> Families:
    yield _histogram(
        "forewarn_commit_seconds",
        "From a transaction's begin to the answers of all its jobs.",
        writer.commits,
    )
    yield CounterMetricFamily(
        "forewarn_writer_jobs", "Changes that the writer took up.", writer.jobs
    )
    yield GaugeMetricFamily(
        "forewarn_writer_jobs_waiting", "Changes that wait for the writer.", writer.waiting()
    )


def _attention(scrape: Scrape) -> Families:
    family = GaugeMetricFamily(
        "forewarn_attention",
        "What needs an operator; nothing while the store is away.",
        labels=("kind",),
    )
    if scrape.needs is not None:
        found = Counter(item.kind for item in scrape.needs)
        for kind in alerts.AlertKind:
            family.add_metric((kind.value,), found[kind])
    yield family


def _histogram(name: str, documentation: str, measured: Histogram) -> Metric:
    counts = list(measured.counts)
    running = 0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip((*measured.bounds, float("inf")), counts, strict=True):
        running += count
        buckets.append(("+Inf" if bound == float("inf") else repr(bound), running))
    return HistogramMetricFamily(name, documentation, buckets, measured.total)

"""What a relay shows of itself: `/status` and the metrics, which `FAMILIES` lists."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from forewarn import status_port
from forewarn.server.guest.counters import Figures
from forewarn.status_port import Labels

PREFIX: Final = "forewarn_relay_"

FAMILIES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "serving": "1 if guests are answered, 0 while they are not.",
        "upstream_up": "1 if a replica of the service is heard, 0 otherwise.",
        "age_seconds": "How long the documents may have been out of date: 0 while a replica is "
        "heard.",
        "machines": "Machines of this host.",
        "machines_seen": "Machines that asked for their events since the start.",
        "news_total": "Answers to requests for news, those without anything new included.",
        "news_refused_total": "News that was not taken, by fault.",
        "upstream_failures_total": "Requests for news that a replica did not answer as it should.",
        "approvals_total": "Approvals that were sent to the service, by outcome.",
        "stalled_seconds_total": "Time in which guests got no answer, since the start.",
        "state_saved": "1 if the disk has the documents, 0 while they cannot be saved.",
        "started_timestamp_seconds": "When the relay started, in seconds since 1970.",
        "guest_connections": "Connections of guests that are open.",
        "guest_connections_accepted_total": "Connections of guests since the start.",
        "guest_waiters": "Requests that wait for their document to change.",
        "guest_requests_total": "Answers to guests, by resource and status.",
        "guest_refusals_total": "Requests and connections of guests that a limit turned away, by "
        "reason.",
    }
)
"""The help of every metric, by its name without PREFIX; a counter's name ends in `_total`."""


class RelayStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What `/status` shows: how a relay fares."""

    version: str
    host: str
    """`""` before the first news."""
    machines: int
    serving: bool
    """Whether guests are answered."""
    revoked: bool
    """Whether every replica refuses this host's token."""
    age_seconds: float
    """How long the documents may have been out of date; 0 while a replica is heard."""
    replica: str
    """The replica that is asked first."""
    trouble: str
    """Why no replica is heard; `""` while one is."""
    saved: bool
    """Whether the disk has the documents."""
    process: int

    def line(self) -> str:
        """Return it in one line, for systemd."""
        if self.revoked:
            return f"Guests of {self.host} are not answered: the service refuses its token"
        if not self.serving:
            return f"Guests are not answered yet: {self.trouble or 'waiting for the service'}"
        served = f"{self.machines} machine{'' if self.machines == 1 else 's'} of {self.host}"
        if self.age_seconds:
            return f"{served}, without the service for {self.age_seconds:.0f} s: {self.trouble}"
        return f"{served}, by {self.replica}"


class RelayCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What the relay counted since its start."""

    news: int
    news_refused: Mapping[str, int]
    upstream_failures: int
    approvals: Mapping[str, int]
    stalled_seconds: float
    started_at: float


def metrics(status: RelayStatus, counts: RelayCounts, guests: Figures) -> bytes:
    """Return all metrics as text; `guests` is what the guest plane counted."""
    told = {
        name: _family(guests[known])
        for name, known in (
            ("machines_seen", "machines_seen"),
            ("guest_connections", "guest_connections"),
            ("guest_connections_accepted_total", "guest_connections_accepted"),
            ("guest_waiters", "guest_waiters"),
            ("guest_requests_total", "guest_requests"),
            ("guest_refusals_total", "guest_refusals"),
        )
        if known in guests
    }
    families: dict[str, Mapping[Labels, float]] = {
        "serving": {(): int(status.serving)},
        "upstream_up": {(): int(not status.trouble)},
        "age_seconds": {(): status.age_seconds},
        "machines": {(): status.machines},
        "news_total": {(): counts.news},
        "news_refused_total": _by("fault", counts.news_refused),
        "upstream_failures_total": {(): counts.upstream_failures},
        "approvals_total": _by("outcome", counts.approvals),
        "stalled_seconds_total": {(): counts.stalled_seconds},
        "state_saved": {(): int(status.saved)},
        "started_timestamp_seconds": {(): counts.started_at},
        **told,
    }
    return status_port.metrics_page(PREFIX, FAMILIES, families)


LABELS: Final[Mapping[int, tuple[str, ...]]] = MappingProxyType(
    {1: ("reason",), 2: ("resource", "status")}
)
"""The names of the guest plane's labels, by how many there are."""


def _family(values: float | Mapping[tuple[str, ...], float]) -> Mapping[Labels, float]:
    if not isinstance(values, Mapping):
        return {(): values}
    return {
        tuple(zip(LABELS[len(words)], words, strict=True)): value for words, value in values.items()
    }


def _by(label: str, values: Mapping[str, int]) -> Mapping[Labels, float]:
    return {((label, str(word)),): count for word, count in values.items()}

"""What the judges go by: the journals, the service's last word, and times that can be compared."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

Entry = Mapping[str, Any]
Journals = Mapping[str, list[dict[str, Any]]]


class Final(NamedTuple):
    """What the service shows after its last start, when everything has had its time to end."""

    operations: dict[str, dict[str, Any]]
    maintenances: dict[int, dict[str, Any]]
    live: list[dict[str, Any]]
    documents: dict[str, dict[str, Any]]
    """The guests' documents by scope."""
    marks: dict[str, str]
    """The `mark` of each machine that has that tag."""
    now: datetime
    """The service's time, read between these two times of the machine."""
    read_between: tuple[float, float]
    scale: float
    stale_seconds: float = 0.0
    """Real seconds for which what a replica shows proves nothing about the others."""


class Times:
    """The machine's times as the service's."""

    def __init__(self, final: Final) -> None:
        self._final = final

    def latest(self, at: float) -> datetime:
        """Return what the service's clock showed at most."""
        return self._moved(at - self._final.read_between[0])

    def earliest(self, at: float) -> datetime:
        """Return what the service's clock showed at least."""
        return self._moved(at - self._final.read_between[1])

    def _moved(self, seconds: float) -> datetime:
        return self._final.now + timedelta(seconds=seconds * self._final.scale)


def moment(text: str) -> datetime:
    """Return a time as the API writes it."""
    return datetime.fromisoformat(text)

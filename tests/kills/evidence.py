"""What the judges go by: the journals, the service's last word, and times that can be compared."""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from json import loads
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


class Asked(NamedTuple):
    """A request, from its sending to its answer or the breaking of its connection."""

    client: str
    sent: float
    done: float
    status: int
    """0 for one that was never answered."""
    entry: Entry

    @property
    def operations(self) -> list[dict[str, Any]]:
        """The operations that it was answered with."""
        return list(loads(self.entry["said"])["operations"]) if self.status in {200, 201} else []


class Evidence:
    """All that the judges go by.

    Args:
        journals: What each client wrote down, in its order.
        runs: What the connector's program wrote down, in its order.
        final: What the service shows at the end.
    """

    def __init__(self, journals: Journals, runs: list[dict[str, Any]], final: Final) -> None:
        self.journals = journals
        self.runs = runs
        self.final = final
        self.times = Times(final)
        self.starts: dict[str, float] = {}
        """When each operation's program first ran."""
        self.ends: dict[str, float] = {}
        """When it ended last."""
        for run in runs:
            name, at = run["operation"], run["at"]
            if run["what"] == "start":
                self.starts[name] = min(at, self.starts.get(name, at))
            elif run["what"] == "end":
                self.ends[name] = max(at, self.ends.get(name, at))
        self.unannounced = {
            one.entry["asked"]["description"]
            for one in self.asked("request")
            if one.entry["asked"].get("no_notice")
        }
        """The descriptions of what was to happen without notice."""

    def asked(self, *kinds: str) -> Iterator[Asked]:
        """Yield the requests of these kinds that may have arrived."""
        for client, entries in self.journals.items():
            sent = dict.fromkeys(kinds, 0.0)
            for entry in entries:
                kind = entry.get("kind")
                if kind not in kinds:
                    continue
                if entry["what"] == "sends":
                    sent[kind] = entry["at"]
                else:
                    yield Asked(client, sent[kind], entry["at"], entry.get("status", 0), entry)

    def noted(self, what: str) -> Iterator[tuple[str, Entry]]:
        """Yield each client's entries of a kind."""
        for client, entries in self.journals.items():
            for entry in entries:
                if entry["what"] == what:
                    yield client, entry

    def read(self) -> Iterator[tuple[str, Entry, dict[str, Any]]]:
        """Yield each event that a client read, with the entry of its document."""
        for client, entry in self.noted("read"):
            for event in entry["document"]["Events"]:
                yield client, entry, event

    def postponed(self) -> Iterator[tuple[str, float, datetime]]:
        """Yield an event's id, when its postponement was answered, and until when it waits."""
        for one in self.asked("postpone"):
            for operation in one.operations:
                for event in operation["events"]:
                    yield event["id"], one.done, moment(operation["not_before"])


def machines(operation: Mapping[str, Any]) -> set[str]:
    """Return the machines of an operation."""
    return {machine for event in operation["events"] for machine in event["machines"]}

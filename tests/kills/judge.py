"""Judges a run by what its clients and the connector's program wrote down, never by the store.

What the service shows at the end, by its two planes, is the accused; the journals are the
witnesses. Times in the journals are the machine's; the service's are scaled. `Final.latest` has
a bound that is certain, so a complaint is never a matter of rounding.

The rules' own turns, of units and of domains that are down until they are back, are judged where
time is simulated (tests/simulation) and by the service itself at each decision.

A hold or a postponement is only held against what is certain: that it was answered, that the
operation was Scheduled after that by what a client read, and that nobody had asked for a release
by then.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from json import loads
from typing import Any, NamedTuple
from typing import Final as Constant

from trace_judge import Trace

OVER: Constant = frozenset({"Completed", "Failed", "Canceled"})
AT_ONCE: Constant = frozenset({"Preempt", "Terminate"})
"""They take all update domains at once, and wait for none."""

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
    """The service's time."""
    read_from: float
    """The machine's time just before that was asked for."""
    scale: float
    stale_seconds: float = 0.0
    """Real seconds for which what a replica shows proves nothing about the others."""

    def latest(self, at: float) -> datetime:
        """Return what the service's clock showed at most at a time of the machine's."""
        return self.now + timedelta(seconds=(at - self.read_from) * self.scale)


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
                for event in operation["events"] if operation["not_before"] else ():
                    yield event["id"], one.done, moment(operation["not_before"])


def machines(operation: Mapping[str, Any]) -> set[str]:
    """Return the machines of an operation."""
    return {machine for event in operation["events"] for machine in event["machines"]}


CLOCKS_SECONDS: Constant = 2.0
"""The most by which replicas' clocks may part. Each follows the database's little by little,
and asks over a connection that a busy machine holds up; a replica that is off by more ends."""

STALE_SECONDS: Constant = 30.0
"""The time for which an answer of one replica proves nothing about the others: many times the lag
of a replica, and of a relay that looks for another one while replicas are killed."""


def judge(
    journals: Journals, runs: list[dict[str, Any]], final: Final, *others: Final
) -> list[str]:
    """Return what is wrong, each in a sentence; nothing when all that was promised holds.

    Replicas are one service. Who asks the same one never reads backwards; who asks another may
    read, for a moment, what another has shown before. Nobody is blamed for how long: on a busy
    machine it is the machine's.

    Args:
        journals: What each client wrote down, in its order.
        runs: What the connector's program wrote down, in its order.
        final: What the service shows at the end.
        others: What the other replicas show.
    """
    if others:  # the time that is told here is one's alone
        read_from = final.read_from - CLOCKS_SECONDS
        final = final._replace(read_from=read_from, stale_seconds=STALE_SECONDS)
    seen = Evidence(journals, runs, final)
    trace = _traced(seen)
    _starts(trace, seen)
    return [
        *trace.complaints,
        *_requests_are_there(seen),
        *_approvals_are_there(seen),
        *_holds_are_kept(seen),
        *_postponements_are_read(seen),
        *_cancels_are_kept(seen),
        *_fleets_are_kept(seen),
        *_runs_are_of_their_operations(seen),
        *_outcomes_are_the_program_s(seen),
        *_everything_ended(final),
        *_replicas_agree(final, others),
        *(f"{name} was answered {odd['status']}: {odd['said'][:300]}"
          for name, odd in seen.noted("odd")),
    ]  # fmt: skip


def _traced(seen: Evidence) -> Trace:
    """Return the documents, runs, domains and ends that the witnesses saw."""
    trace, final = Trace(), seen.final
    bound = {
        operation["id"]: operation
        for operation in final.operations.values()
        if operation["event_type"] not in AT_ONCE
        and operation["description"] not in seen.unannounced
    }
    taken = {e["id"]: (name, e["update_domain"]) for name, o in bound.items() for e in o["events"]}
    for name, entry in seen.noted("read"):
        document = entry["document"]
        number, events = document["DocumentIncarnation"], str(document["Events"])
        # In order for each that it asks: replicas may be a moment apart.
        reader = f"{name} at {entry['replica']}" if entry.get("replica") else name
        trace.read(reader, entry["scope"], number, events)
        ids = {event["EventId"] for event in document["Events"]}
        trace.shown(name, entry["scope"], [taken[one] for one in ids & taken.keys()])
    for _, entry in seen.noted("ends"):
        for name, end in entry["ends"].items():
            trace.ended(name, tuple(end))
    for (reader, scope), number in trace.latest.items():  # nobody has read a higher one
        last = final.documents[scope]["DocumentIncarnation"]
        if last < number:
            trace.complain(
                f"{reader} had read incarnation {number} of {scope}, and at the end it is {last}"
            )
    for known in final.operations.values():
        if known["status"] in OVER:
            end = known["status"], known["outcome"], known["ended_at"]
            trace.ended(known["id"], end)
    attempts: dict[tuple[str, str], list[int]] = defaultdict(list)
    for run in seen.runs:
        if run["what"] == "start":
            attempts[run["operation"], run["machine"]].append(run["attempt"])
    for (operation, machine), of in attempts.items():
        if len(of) > 1:
            trace.complain(f"{operation} was done {len(of)} x to {machine}, by attempts {of}")
    both = seen.starts.keys() & seen.ends.keys() & bound.keys()
    for name in sorted(both, key=seen.starts.__getitem__):
        for event in bound[name]["events"]:
            span = seen.starts[name], seen.ends[name]
            trace.down(name, event["scope"], event["update_domain"], *span)
    return trace


def _requests_are_there(seen: Evidence) -> Iterator[str]:
    final = seen.final
    for one in seen.asked("request"):
        if one.status != 201:
            continue
        number = loads(one.entry["said"])["maintenance"]["number"]
        kept, wanted = final.maintenances.get(number), one.entry["asked"]["description"]
        if kept is None:
            yield f"{one.client} was answered 201 for maintenance {number}, and it is not there"
        elif kept["description"] != wanted:
            yield (
                f"maintenance {number} was {wanted!r} when it was answered 201, and is "
                f"{kept['description']!r}"
            )
        for operation in one.operations:
            there, told = final.operations.get(operation["id"]), f"operation {operation['id']}"
            events = {event["id"] for event in operation["events"]}
            if there is None or {event["id"] for event in there["events"]} != events:
                yield f"{one.client} was answered 201 with {told}, and it is gone"
    asked = [m["description"] for m in final.maintenances.values()]
    for description in sorted(set(asked)):
        if asked.count(description) > 1:
            yield f"{description!r} was asked for once and is there {asked.count(description)} x"


def _approvals_are_there(seen: Evidence) -> Iterator[str]:
    events = {
        event["id"]: (operation, event)
        for operation in seen.final.operations.values()
        for event in operation["events"]
    }
    for one in seen.asked("approve", "vouch"):
        for event_id in one.entry["events"] if one.status == 200 else ():
            if event_id not in events:
                yield f"{one.client} approved {event_id}, was told 200, and there is no such event"
                continue
            operation, event = events[event_id]
            left = operation["started_at"] or operation["ended_at"]
            approval = event["approval"]
            by_then = seen.final.latest(one.done)
            told = (
                f"{one.client} approved {event_id} of operation {operation['id']}, was answered "
                f"200 by {by_then}, and"
            )
            if approval is None and (left is None or moment(left) > by_then):
                yield f"{told} there is no approval; it left Scheduled at {left}"
            elif approval is not None and moment(approval["at"]) > by_then:
                yield f"{told} the approval that is there is of {approval['at']}"


def _starts(trace: Trace, seen: Evidence) -> None:
    notices: dict[str, list[tuple[float, datetime]]] = defaultdict(list)
    """Of each event each NotBefore that a client was told, and when it had been."""
    for event_id, told, not_before in seen.postponed():
        notices[event_id].append((told, not_before))
    for _, entry, event in seen.read():
        if event["NotBefore"]:
            shown = parsedate_to_datetime(event["NotBefore"])
            notices[event["EventId"]].append((entry["at"], shown))
    words: dict[str, list[float]] = defaultdict(list)
    """When approvals of each event were sent, answered or not."""
    for _, entry in seen.noted("sends"):
        for event_id in entry["events"] if entry["kind"] in {"approve", "vouch"} else ():
            words[event_id].append(entry["at"])
    for run in seen.runs:
        operation = seen.final.operations.get(run["operation"])
        if run["what"] != "start" or operation is None:
            continue  # a start without an operation is told with the repeated ones
        if operation["description"] in seen.unannounced:
            continue
        for event in operation["events"]:
            if any(sent <= run["at"] for sent in words[event["id"]]):
                continue
            read = [at for known, at in notices[event["id"]] if known <= run["at"]]
            if not read:
                # Nobody read of it: then the service's own word is all there is.
                read = [moment(operation["not_before"])]
            what = f"the program for {run['operation']}"
            trace.started(what, seen.final.latest(run["at"]), max(read), approved=False)


def _runs_are_of_their_operations(seen: Evidence) -> Iterator[str]:
    started = {(r["operation"], r["machine"]) for r in seen.runs if r["what"] == "start"}
    for operation, machine in started:
        known = seen.final.operations.get(operation)
        if known is None:
            yield f"the program ran for {operation}, and there is no such operation"
        elif machine not in machines(known):
            yield f"the program ran for {operation} on {machine}, which it does not concern"


def _outcomes_are_the_program_s(seen: Evidence) -> Iterator[str]:
    statuses: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for run in seen.runs:
        if run["what"] == "end":
            statuses[run["operation"]][run["machine"]].add(run["status"])
    for operation in seen.final.operations.values():
        ended = {machine: sorted(found) for machine, found in statuses[operation["id"]].items()}
        if operation["status"] == "Canceled" and ended:
            yield f"{operation['id']} is Canceled, and its program ran"
        if operation["status"] not in {"Completed", "Failed"}:
            continue
        if set(ended) != machines(operation):
            yield (
                f"{operation['id']} is {operation['status']} for {sorted(machines(operation))}, "
                f"and its program ended for {sorted(ended)}"
            )
        failed = any(status for found in ended.values() for status in found)
        if operation["status"] == "Failed" and operation["carried_out_at"] and not failed:
            continue  # it was done, and a machine did not come back
        if failed != (operation["status"] == "Failed"):
            yield f"{operation['id']} is {operation['status']}, and its program ended {ended}"


def _everything_ended(final: Final) -> Iterator[str]:
    for operation in final.operations.values():
        if operation["status"] not in OVER:
            yield f"{operation['id']} has not ended: it is {operation['status']}"
    for event in final.live:
        yield f"event {event['id']} of {event['operation']} is still {event['status']}"
    for scope, document in final.documents.items():
        if document["Events"]:
            yield f"the document of {scope} still shows {document['Events']}"


def _replicas_agree(first: Final, others: Sequence[Final]) -> Iterator[str]:
    for number, other in enumerate(others, 2):
        for name in ("documents", "operations", "maintenances"):
            one, two = getattr(first, name), getattr(other, name)
            for key in one.keys() | two.keys():
                if one.get(key) != two.get(key):
                    told = f"{one.get(key)} and {two.get(key)}"
                    yield f"replicas 1 and {number} show {name} {key} differently: {told}"


# What operators were promised: holds, postponements, cancels and fleets.


def _holds_are_kept(seen: Evidence) -> Iterator[str]:
    releases = list(seen.asked("release"))
    waiting = _seen_waiting(seen)
    for hold in seen.asked("hold"):
        if hold.status != 201:
            continue
        place = hold.entry["place"]
        may_end = [
            one.sent for one in releases if one.entry["place"] == place and one.done >= hold.sent
        ]
        until = min(may_end, default=float("inf"))
        held = {o["id"] for o in hold.operations}
        for name, at in seen.starts.items():
            operation = seen.final.operations.get(name)
            if operation is None or not (hold.done < at < until) or not covers(place, operation):
                continue
            known = any(hold.done <= began and told <= at for began, told in waiting[name])
            if name in held or known:
                yield (
                    f"{hold.client} held {place} and was answered 201; {name}, which had not "
                    f"started, was carried out {at - hold.done:.3f} s later, unreleased"
                )


def covers(place: Mapping[str, str], operation: Mapping[str, Any]) -> bool:
    """Tell whether a hold of this place covers an operation."""
    match place["kind"]:
        case "everything":
            return True
        case "scope":
            return any(event["scope"] == place["name"] for event in operation["events"])
        case "host":
            return place["name"] in operation["hosts"]
        case _:
            return any(place["name"] in event["machines"] for event in operation["events"])


def _seen_waiting(seen: Evidence) -> dict[str, list[tuple[float, float]]]:
    """Return when clients were told that operations were Scheduled: asked from, known at."""
    events: dict[str, list[tuple[float, float]]] = defaultdict(list)
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for _, entry, event in seen.read():
        if event["EventStatus"] == "Scheduled":
            true_from = entry["began"] - seen.final.stale_seconds
            events[event["EventId"]].append((true_from, entry["at"]))
    for one in seen.asked("request"):
        for operation in one.operations:
            if operation["status"] == "Scheduled":
                found[operation["id"]].append((one.sent, one.done))
    for operation in seen.final.operations.values():
        for event in operation["events"]:
            found[operation["id"]] += events[event["id"]]
    return found


def _postponements_are_read(seen: Evidence) -> Iterator[str]:
    """Whoever asks after the answer reads the later time, or a later one still."""
    promised: dict[str, list[tuple[float, datetime]]] = defaultdict(list)
    for event_id, told, not_before in seen.postponed():
        promised[event_id].append((told, not_before))
    for client, entry, event in seen.read():
        shown = event["NotBefore"] and parsedate_to_datetime(event["NotBefore"])
        for told, not_before in promised[event["EventId"]]:
            late = told + seen.final.stale_seconds <= entry["began"]
            if shown and late and shown < not_before:
                yield (
                    f"{event['EventId']} was postponed to {not_before}, which was answered "
                    f"200, and {client} read {shown} after that"
                )


def _cancels_are_kept(seen: Evidence) -> Iterator[str]:
    final = seen.final
    for one in seen.asked("cancel"):
        if one.status != 200:
            continue
        reference = one.entry["reference"]
        told = f"{one.client} cancelled {reference}, was answered 200, and"
        for name in (o["id"] for o in one.operations if o["status"] == "Canceled"):
            operation = final.operations.get(name)
            status = operation["status"] if operation else "not there"
            if status != "Canceled":
                yield f"{told} {name} is {status}"
            if name in seen.starts:
                yield f"{told} the program ran for {name}"
        if "." in reference:
            continue
        for operation in final.operations.values():
            at = operation["announced_at"]
            later = operation["status"] == "Queued"
            later = later or (at is not None and moment(at) > seen.final.latest(one.done))
            if operation["maintenance"] == int(reference) and later:
                yield f"{told} {operation['id']} was announced after that"


def _fleets_are_kept(seen: Evidence) -> Iterator[str]:
    marks: dict[str, int] = {}
    for one in seen.asked("fleet"):
        if one.status == 200:
            machine = one.entry["machine"]
            marks[machine] = max(marks.get(machine, 0), one.entry["mark"])
    for machine, mark in marks.items():
        kept = int(seen.final.marks.get(machine, "0"))
        if kept < mark:
            yield f"a fleet with mark {mark} of {machine} was answered 200, and it has {kept}"

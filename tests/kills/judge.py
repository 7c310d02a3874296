"""Judges a run by what its clients and the connector's program wrote down, never by the store.

What the service shows at the end, by its two planes, is the accused; the journals are the
witnesses. Times in the journals are the machine's; the service's are scaled. `Times` compares
them by bounds that are certain, so a complaint is never a matter of rounding.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from json import loads
from typing import Any
from typing import Final as Constant

from kills import promises
from kills.evidence import Entry, Final, Journals, Times, moment
from trace_judge import Trace

OVER: Constant = frozenset({"Completed", "Failed", "Canceled"})


def judge(journals: Journals, runs: list[dict[str, Any]], final: Final) -> list[str]:
    """Return what is wrong, each in a sentence; nothing when all that was promised holds.

    Args:
        journals: What each client wrote down, in its order.
        runs: What the connector's program wrote down, in its order.
        final: What the service shows at the end.
    """
    times = Times(final)
    trace = _traced(journals, runs, final)
    _starts(trace, journals, runs, final, times)
    return [
        *trace.complaints,
        *_requests_are_there(journals, final),
        *_approvals_are_there(journals, final, times),
        *promises.judge(journals, runs, final, times),
        *_runs_are_of_their_operations(runs, final),
        *_outcomes_are_the_program_s(runs, final),
        *_everything_ended(final),
        *_nothing_odd(journals),
    ]


class ServiceTrace(Trace):
    """What was seen of a service: also what its program did, and how it looks at the end."""

    def __init__(self) -> None:
        super().__init__()
        self._attempts: dict[tuple[str, str], list[int]] = {}

    def at_last(self, scope: str, incarnation: int) -> None:
        """Take a document at the end: nobody has read a higher number."""
        for (reader, other), number in self.latest.items():
            if other == scope and incarnation < number:
                self.complain(
                    f"{reader} had read incarnation {number} of {scope}, and at the end it is "
                    f"{incarnation}"
                )

    def carried_out(self, operation: str, machine: str, attempt: int) -> None:
        """Take the beginning of a task on a machine: one for each operation."""
        attempts = self._attempts.setdefault((operation, machine), [])
        attempts.append(attempt)
        if len(attempts) > 1:
            self.complain(
                f"{operation} was done {len(attempts)} x to {machine}, by attempts {attempts}"
            )


def _traced(journals: Journals, runs: list[dict[str, Any]], final: Final) -> Trace:
    """Return the documents, runs and ends that the witnesses saw."""
    trace = ServiceTrace()
    unannounced = promises.unannounced(journals)
    taken = {
        event_id: (operation["id"], event["update_domain"])
        for event_id, (operation, event) in _events(final).items()
        if operation["event_type"] not in promises.AT_ONCE
        and operation["description"] not in unannounced
    }
    for name, entries in journals.items():
        for entry in entries:
            if entry["what"] == "read":
                document = entry["document"]
                number, events = document["DocumentIncarnation"], str(document["Events"])
                # In order for each that it asks: replicas may be a moment apart.
                reader = f"{name} at {entry['replica']}" if entry.get("replica") else name
                trace.read(reader, entry["scope"], number, events)
                ids = {event["EventId"] for event in document["Events"]}
                trace.shown(name, entry["scope"], [taken[one] for one in ids & taken.keys()])
            for operation, end in entry["ends"].items() if entry["what"] == "ends" else ():
                trace.ended(operation, tuple(end))
    for scope, document in final.documents.items():
        trace.at_last(scope, document["DocumentIncarnation"])
    for operation in final.operations.values():
        if operation["status"] in OVER:
            trace.ended(operation["id"], _end(operation))
    for run in runs:
        if run["what"] == "start":
            trace.carried_out(run["operation"], run["machine"], run["attempt"])
    return trace


def _requests_are_there(journals: Journals, final: Final) -> Iterator[str]:
    for name, entry in _answered(journals, "request", 201):
        plan = loads(entry["said"])
        number = plan["maintenance"]["number"]
        kept = final.maintenances.get(number)
        if kept is None:
            yield f"{name} was answered 201 for maintenance {number}, and it is not there"
        elif kept["description"] != entry["asked"]["description"]:
            yield (
                f"maintenance {number} was {entry['asked']['description']!r} when it was answered "
                f"201, and is {kept['description']!r}"
            )
        for operation in plan["operations"]:
            there = final.operations.get(operation["id"])
            events = {event["id"] for event in operation["events"]}
            if there is None or {event["id"] for event in there["events"]} != events:
                yield f"{name} was answered 201 with operation {operation['id']}, and it is gone"
    asked = [m["description"] for m in final.maintenances.values()]
    for description in sorted(set(asked)):
        if asked.count(description) > 1:
            yield f"{description!r} was asked for once and is there {asked.count(description)} x"


def _approvals_are_there(journals: Journals, final: Final, times: Times) -> Iterator[str]:
    events = _events(final)
    for name, entry in (
        *_answered(journals, "approve", 200),
        *_answered(journals, "vouch", 200),
    ):
        for event_id in entry["events"]:
            if event_id not in events:
                yield f"{name} approved {event_id}, was answered 200, and there is no such event"
                continue
            operation, event = events[event_id]
            left = operation["started_at"] or operation["ended_at"]
            approval = event["approval"]
            by_then = times.latest(entry["at"])
            if approval is None and (left is None or moment(left) > by_then):
                yield (
                    f"{name} approved {event_id} of operation {operation['id']}, was answered 200 "
                    f"by {by_then}, and there is no approval; it left Scheduled at {left}"
                )
            elif approval is not None and moment(approval["at"]) > by_then:
                yield (
                    f"{name} approved {event_id} of operation {operation['id']}, was answered 200 "
                    f"by {by_then}, and the approval that is there is of {approval['at']}"
                )


def _starts(
    trace: Trace, journals: Journals, runs: list[dict[str, Any]], final: Final, times: Times
) -> None:
    notices = _notices(journals)
    words = _approvals_sent(journals)
    unannounced = promises.unannounced(journals)
    for run in runs:
        operation = final.operations.get(run["operation"])
        if run["what"] != "start" or operation is None:
            continue  # a start without an operation is told with the repeated ones
        if operation["description"] in unannounced:
            continue
        for event in operation["events"]:
            if any(sent <= run["at"] for sent in words[event["id"]]):
                continue
            read = [at for seen, at in notices[event["id"]] if seen <= run["at"]]
            if not read:
                # Nobody read of it: then the service's own word is all there is.
                read = [moment(operation["not_before"])]
            what = f"the program for {run['operation']}"
            trace.started(what, times.latest(run["at"]), max(read), approved=False)


def _runs_are_of_their_operations(runs: list[dict[str, Any]], final: Final) -> Iterator[str]:
    for operation, machine in {
        (r["operation"], r["machine"]) for r in runs if r["what"] == "start"
    }:
        known = final.operations.get(operation)
        if known is None:
            yield f"the program ran for {operation}, and there is no such operation"
        elif machine not in _machines(known):
            yield f"the program ran for {operation} on {machine}, which it does not concern"


def _outcomes_are_the_program_s(runs: list[dict[str, Any]], final: Final) -> Iterator[str]:
    statuses: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for run in runs:
        if run["what"] == "end":
            statuses[run["operation"]][run["machine"]].add(run["status"])
    for operation in final.operations.values():
        ended = {machine: sorted(found) for machine, found in statuses[operation["id"]].items()}
        if operation["status"] == "Canceled" and ended:
            yield f"{operation['id']} is Canceled, and its program ran"
        if operation["status"] not in {"Completed", "Failed"}:
            continue
        if set(ended) != set(_machines(operation)):
            yield (
                f"{operation['id']} is {operation['status']} for {_machines(operation)}, and its "
                f"program ended for {sorted(ended)}"
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


def _nothing_odd(journals: Journals) -> Iterator[str]:
    """An answer that is neither what was asked for nor a refusal that had to be expected."""
    for name, entries in journals.items():
        for entry in entries:
            if entry["what"] == "odd":
                yield f"{name} was answered {entry['status']}: {entry['said'][:300]}"


def _answered(journals: Journals, kind: str, status: int) -> Iterator[tuple[str, Entry]]:
    for name, entries in journals.items():
        for entry in entries:
            if entry["what"] == "answered" and (entry["kind"], entry["status"]) == (kind, status):
                yield name, entry


def _notices(journals: Journals) -> dict[str, list[tuple[float, datetime]]]:
    """Return of each event each NotBefore that a client was told, and when it had been."""
    found: dict[str, list[tuple[float, datetime]]] = defaultdict(list)
    for event_id, told, not_before in promises.postponed(journals):
        found[event_id].append((told, not_before))
    for entries in journals.values():
        for entry in entries:
            for event in entry["document"]["Events"] if entry["what"] == "read" else ():
                if event["NotBefore"]:
                    at = parsedate_to_datetime(event["NotBefore"])
                    found[event["EventId"]].append((entry["at"], at))
    return found


def _approvals_sent(journals: Journals) -> dict[str, list[float]]:
    """Return when approvals of each event were sent, answered or not."""
    found: dict[str, list[float]] = defaultdict(list)
    for entries in journals.values():
        for entry in entries:
            if entry["what"] == "sends" and entry["kind"] in {"approve", "vouch"}:
                for event_id in entry["events"]:
                    found[event_id].append(entry["at"])
    return found


def _events(final: Final) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    return {
        event["id"]: (operation, event)
        for operation in final.operations.values()
        for event in operation["events"]
    }


def _machines(operation: Mapping[str, Any]) -> list[str]:
    return sorted(name for event in operation["events"] for name in event["machines"])


def _end(operation: Mapping[str, Any]) -> tuple[str, ...]:
    return operation["status"], operation["outcome"], operation["ended_at"]

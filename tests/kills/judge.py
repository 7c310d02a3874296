"""Judges a run by what its clients and the connector's program wrote down, never by the store.

What the service shows at the end, by its two planes, is the accused; the journals are the
witnesses. Times in the journals are the machine's; the service's are scaled. `Times` compares
them by bounds that are certain, so a complaint is never a matter of rounding.
"""

from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime
from email.utils import parsedate_to_datetime
from json import loads
from typing import Any
from typing import Final as Constant

from kills import promises
from kills.evidence import Evidence, Final, Journals, machines, moment
from trace_judge import Trace

OVER: Constant = frozenset({"Completed", "Failed", "Canceled"})


def judge(journals: Journals, runs: list[dict[str, Any]], final: Final) -> list[str]:
    """Return what is wrong, each in a sentence; nothing when all that was promised holds.

    Args:
        journals: What each client wrote down, in its order.
        runs: What the connector's program wrote down, in its order.
        final: What the service shows at the end.
    """
    seen = Evidence(journals, runs, final)
    trace = _traced(seen)
    _starts(trace, seen)
    return [
        *trace.complaints,
        *_requests_are_there(seen),
        *_approvals_are_there(seen),
        *promises.judge(seen),
        *_runs_are_of_their_operations(seen),
        *_outcomes_are_the_program_s(seen),
        *_everything_ended(final),
        *(f"{name} was answered {odd['status']}: {odd['said'][:300]}"
          for name, odd in seen.noted("odd")),
    ]  # fmt: skip


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


def _traced(seen: Evidence) -> Trace:
    """Return the documents, runs, domains and ends that the witnesses saw."""
    trace, final = ServiceTrace(), seen.final
    bound = {
        operation["id"]: operation
        for operation in final.operations.values()
        if operation["event_type"] not in promises.AT_ONCE
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
    for scope, document in final.documents.items():
        trace.at_last(scope, document["DocumentIncarnation"])
    for operation in final.operations.values():
        if operation["status"] in OVER:
            end = operation["status"], operation["outcome"], operation["ended_at"]
            trace.ended(operation["id"], end)
    for run in seen.runs:
        if run["what"] == "start":
            trace.carried_out(run["operation"], run["machine"], run["attempt"])
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
            by_then = seen.times.latest(one.done)
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
            trace.started(what, seen.times.latest(run["at"]), max(read), approved=False)


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

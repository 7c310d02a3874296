"""Judges what operators were promised: holds, postponements, cancels, fleets, and turns.

As in `judge`, the witnesses are the clients' journals and the program's log. A hold or a
postponement is only held against what is certain: that it was answered, that the operation was
Scheduled after that by what a client read, and that nobody had asked for a release by then.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from itertools import combinations, pairwise
from typing import Any
from typing import Final as Constant

from kills.evidence import Evidence, machines, moment

AT_ONCE: Constant = frozenset({"Preempt", "Terminate"})
"""They take all update domains at once, and wait for none."""


def judge(seen: Evidence) -> Iterator[str]:
    """Yield what is wrong, each in a sentence."""
    yield from _holds_are_kept(seen)
    yield from _postponements_are_read(seen)
    yield from _cancels_are_kept(seen)
    yield from _fleets_are_kept(seen)
    yield from _units_take_turns(seen)
    yield from _a_domain_is_down_until_it_is_back(seen)
    yield from _machines_came_back(seen)


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
            later = moment(operation["announced_at"]) > seen.times.latest(one.done)
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


def _units_take_turns(seen: Evidence) -> Iterator[str]:
    """In a scope, an operation of a unit is announced when the one before it has ended well.

    Or an operator resumed the maintenance. One whose machines have all left its host failed nobody.
    One that is held gives way: it may be announced after those of later numbers, or be cancelled
    unannounced while they go.
    """
    resumed: dict[int, list[float]] = defaultdict(list)
    for one in seen.asked("resume"):
        resumed[one.entry["number"]].append(one.sent)
    shown = {event["EventId"] for _, _, event in seen.read()}
    turns: dict[tuple[int, str], list[Mapping[str, Any]]] = defaultdict(list)
    for operation in seen.final.operations.values():
        for event in operation["events"] if operation["unit"] is not None else ():
            turns[operation["maintenance"], event["scope"]].append(operation)
    for (number, _), its in turns.items():
        its.sort(key=lambda operation: moment(operation["announced_at"]))
        for before, after in combinations(its, 2):
            gave_way = before["status"] == "Canceled" and shown.isdisjoint(
                event["id"] for event in before["events"]
            )
            if not gave_way and not _ended_by(before, after):
                yield f"{after['id']} was announced before {before['id']} had ended"
        for before, after in pairwise(its):
            announced = moment(after["announced_at"])
            if _ended_by(before, after) and not (
                before["status"] == "Completed"
                or "have left host" in before["outcome"]
                or any(seen.times.earliest(sent) <= announced for sent in resumed[number])
            ):
                yield (
                    f"{after['id']} was announced although {before['id']} is {before['status']}, "
                    "and nobody had asked to resume"
                )


def _ended_by(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    ended = before["ended_at"]
    return bool(ended) and moment(ended) <= moment(after["announced_at"])


def _a_domain_is_down_until_it_is_back(seen: Evidence) -> Iterator[str]:
    """Nobody goes down before another domain's machines are back, or its failure acknowledged."""
    final, ends, struck = seen.final, seen.ends, seen.unannounced
    acknowledged: dict[str, float] = {}
    for one in seen.asked("acknowledge"):
        for name in one.entry["references"]:
            acknowledged[name] = min(one.sent, acknowledged.get(name, one.sent))
    for name, operation in final.operations.items():
        if name not in ends or not operation["ended_at"]:
            continue
        over = moment(operation["ended_at"])
        for late, at in seen.starts.items():
            other = final.operations.get(late)
            bound = other and other["event_type"] not in AT_ONCE
            if not other or not bound or other["description"] in struck or at < ends[name]:
                continue
            if not _in_two_domains(operation, other):
                continue
            # Requests that share a transaction share its time.
            had_started = moment(other["started_at"]) <= moment(operation["started_at"])
            waits_for_none = operation["event_type"] in AT_ONCE
            if had_started and (waits_for_none or operation["description"] in struck):
                continue  # it was Started when the other came, without notice or beside it
            if operation["carried_out_at"] and seen.times.latest(at) < over:
                yield f"{late} went down before {name} was back"
            elif (
                operation["status"] == "Failed"
                and acknowledged.get(name, at) >= at
                and not _repaired(operation, seen, at)
            ):
                yield f"{late} went down, and nobody had acknowledged the failure of {name}"


def _in_two_domains(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    domains = {event["scope"]: event["update_domain"] for event in one["events"]}
    return any(
        domains.get(event["scope"], event["update_domain"]) != event["update_domain"]
        for event in other["events"]
    )


def _repaired(operation: Mapping[str, Any], seen: Evidence, by: float) -> bool:
    """Tell whether later operations on all machines of a failed one had completed by then."""
    repaired: set[str] = set()
    for name, end in seen.ends.items():
        other = seen.final.operations.get(name)
        if other and other["status"] == "Completed" and seen.ends[operation["id"]] < end <= by:
            repaired |= machines(other)
    return machines(operation) <= repaired


def _machines_came_back(seen: Evidence) -> Iterator[str]:
    """What was over when its machines were back: one of them had asked by then.

    A machine that was deleted meanwhile need not ask.
    """
    asks: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for entries in seen.journals.values():
        for entry in entries:
            for began, ended, machine in entry.get("asks", ()):
                asks[machine].append((began, ended))
    completed = [o for o in seen.final.operations.values() if o["status"] == "Completed"]
    deleted = set[str]().union(*(machines(o) for o in completed if o["event_type"] in AT_ONCE))
    for operation in completed:
        if not operation["carried_out_at"]:
            continue
        done, over = moment(operation["carried_out_at"]), moment(operation["ended_at"])
        if deleted.isdisjoint(machines(operation)) and not any(
            seen.times.latest(ended) > done and seen.times.earliest(began) <= over
            for machine in machines(operation)
            for began, ended in asks[machine]
        ):
            yield (
                f"{operation['id']} was carried out at {done} and over at {over}, and no machine "
                "had asked"
            )

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
from json import loads
from typing import Any, NamedTuple
from typing import Final as Constant

from kills.evidence import Final, Journals, Times, moment

AT_ONCE: Constant = frozenset({"Preempt", "Terminate"})
"""They take all update domains at once, and wait for none."""


class Asked(NamedTuple):
    """A request, from its sending to its answer or the breaking of its connection."""

    client: str
    sent: float
    done: float
    status: int
    """0 for one that was never answered."""
    entry: Mapping[str, Any]


def asked(journals: Journals, kind: str) -> Iterator[Asked]:
    """Yield the requests of a kind that may have arrived."""
    for client, entries in journals.items():
        sent = 0.0
        for entry in entries:
            if entry.get("kind") != kind:
                continue
            if entry["what"] == "sends":
                sent = entry["at"]
            else:
                yield Asked(client, sent, entry["at"], entry.get("status", 0), entry)


def judge(
    journals: Journals, runs: list[dict[str, Any]], final: Final, times: Times
) -> Iterator[str]:
    """Yield what is wrong, each in a sentence."""
    yield from _holds_are_kept(journals, runs, final)
    yield from _postponements_are_read(journals, final)
    yield from _cancels_are_kept(journals, runs, final, times)
    yield from _fleets_are_kept(journals, final)
    yield from _units_take_turns(journals, final, times)
    yield from _one_domain_is_down_at_a_time(journals, runs, final)
    yield from _a_domain_is_down_until_it_is_back(journals, runs, final, times)
    yield from _machines_came_back(journals, final, times)


def postponed(journals: Journals) -> Iterator[tuple[str, float, datetime]]:
    """Yield an event's id, when its postponement was answered, and until when it may not start."""
    for one in asked(journals, "postpone"):
        for operation in loads(one.entry["said"])["operations"] if one.status == 200 else ():
            for event in operation["events"]:
                yield event["id"], one.done, moment(operation["not_before"])


def _holds_are_kept(journals: Journals, runs: list[dict[str, Any]], final: Final) -> Iterator[str]:
    starts = _starts(runs)
    releases = list(asked(journals, "release"))
    waiting = _seen_waiting(journals, final)
    for hold in asked(journals, "hold"):
        if hold.status != 201:
            continue
        place = hold.entry["place"]
        may_end = [
            one.sent for one in releases if one.entry["place"] == place and one.done >= hold.sent
        ]
        until = min(may_end, default=float("inf"))
        held = {o["id"] for o in loads(hold.entry["said"])["operations"]}
        for name, at in starts.items():
            operation = final.operations.get(name)
            if operation is None or not (hold.done < at < until) or not covers(place, operation):
                continue
            seen = any(hold.done <= began and known <= at for began, known in waiting[name])
            if name in held or seen:
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


def _seen_waiting(journals: Journals, final: Final) -> dict[str, list[tuple[float, float]]]:
    """Return when clients were told that operations were Scheduled: asked from, known at."""
    events: dict[str, list[tuple[float, float]]] = defaultdict(list)
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for entries in journals.values():
        for entry in entries:
            for event in entry["document"]["Events"] if entry["what"] == "read" else ():
                if event["EventStatus"] == "Scheduled":
                    true_from = entry["began"] - final.stale_seconds
                    events[event["EventId"]].append((true_from, entry["at"]))
    for one in asked(journals, "request"):
        for operation in loads(one.entry["said"])["operations"] if one.status == 201 else ():
            if operation["status"] == "Scheduled":
                found[operation["id"]].append((one.sent, one.done))
    for operation in final.operations.values():
        for event in operation["events"]:
            found[operation["id"]] += events[event["id"]]
    return found


def _postponements_are_read(journals: Journals, final: Final) -> Iterator[str]:
    """Whoever asks after the answer reads the later time, or a later one still."""
    promised: dict[str, list[tuple[float, datetime]]] = defaultdict(list)
    for event_id, told, not_before in postponed(journals):
        promised[event_id].append((told, not_before))
    for client, entries in journals.items():
        for entry in entries:
            for event in entry["document"]["Events"] if entry["what"] == "read" else ():
                shown = event["NotBefore"] and parsedate_to_datetime(event["NotBefore"])
                for told, not_before in promised[event["EventId"]]:
                    late = told + final.stale_seconds <= entry["began"]
                    if shown and late and shown < not_before:
                        yield (
                            f"{event['EventId']} was postponed to {not_before}, which was answered "
                            f"200, and {client} read {shown} after that"
                        )


def _cancels_are_kept(
    journals: Journals, runs: list[dict[str, Any]], final: Final, times: Times
) -> Iterator[str]:
    ran = _starts(runs)
    for one in asked(journals, "cancel"):
        if one.status != 200:
            continue
        reference = one.entry["reference"]
        told = f"{one.client} cancelled {reference}, was answered 200, and"
        for name in (o["id"] for o in loads(one.entry["said"])["operations"] if _canceled(o)):
            operation = final.operations.get(name)
            status = operation["status"] if operation else "not there"
            if status != "Canceled":
                yield f"{told} {name} is {status}"
            if name in ran:
                yield f"{told} the program ran for {name}"
        if "." in reference:
            continue
        for operation in final.operations.values():
            later = moment(operation["announced_at"]) > times.latest(one.done)
            if operation["maintenance"] == int(reference) and later:
                yield f"{told} {operation['id']} was announced after that"


def _canceled(operation: Mapping[str, Any]) -> bool:
    return bool(operation["status"] == "Canceled")


def _fleets_are_kept(journals: Journals, final: Final) -> Iterator[str]:
    marks: dict[str, int] = {}
    for one in asked(journals, "fleet"):
        if one.status == 200:
            machine = one.entry["machine"]
            marks[machine] = max(marks.get(machine, 0), one.entry["mark"])
    for machine, mark in marks.items():
        kept = int(final.marks.get(machine, "0"))
        if kept < mark:
            yield f"a fleet with mark {mark} of {machine} was answered 200, and it has {kept}"


def _units_take_turns(journals: Journals, final: Final, times: Times) -> Iterator[str]:
    """In a scope, an operation of a unit is announced when the one before it has ended well.

    Or an operator resumed the maintenance. One whose machines have all left its host failed nobody.
    One that is held gives way: it may be announced after those of later numbers, or be cancelled
    unannounced while they go.
    """
    resumed: dict[int, list[float]] = defaultdict(list)
    for one in asked(journals, "resume"):
        resumed[one.entry["number"]].append(one.sent)
    shown = {
        event["EventId"]
        for entries in journals.values()
        for entry in entries
        for event in (entry["document"]["Events"] if entry["what"] == "read" else ())
    }
    turns: dict[tuple[int, str], list[Mapping[str, Any]]] = defaultdict(list)
    for operation in final.operations.values():
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
                or any(times.earliest(sent) <= announced for sent in resumed[number])
            ):
                yield (
                    f"{after['id']} was announced although {before['id']} is {before['status']}, "
                    "and nobody had asked to resume"
                )


def _ended_by(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    ended = before["ended_at"]
    return bool(ended) and moment(ended) <= moment(after["announced_at"])


def _one_domain_is_down_at_a_time(
    journals: Journals, runs: list[dict[str, Any]], final: Final
) -> Iterator[str]:
    struck = unannounced(journals)
    ends = _ends(runs)
    down: dict[str, list[tuple[float, float, int, str]]] = defaultdict(list)
    for name, start in _starts(runs).items():
        operation = final.operations.get(name)
        if operation is None or name not in ends or operation["event_type"] in AT_ONCE:
            continue
        if operation["description"] not in struck:
            for event in operation["events"]:
                where = start, ends[name], event["update_domain"], name
                down[event["scope"]].append(where)
    for scope, spans in down.items():
        spans.sort()
        for index, (_, end, domain, name) in enumerate(spans):
            for start, _, other, late in spans[index + 1 :]:
                if start >= end:
                    break
                if other != domain:
                    yield f"{name} and {late} had domains {domain} and {other} of {scope} down"


def _a_domain_is_down_until_it_is_back(
    journals: Journals, runs: list[dict[str, Any]], final: Final, times: Times
) -> Iterator[str]:
    """Nobody goes down before another domain's machines are back, or its failure acknowledged."""
    starts, ends, struck = _starts(runs), _ends(runs), unannounced(journals)
    acknowledged: dict[str, float] = {}
    for one in asked(journals, "acknowledge"):
        for name in one.entry["references"]:
            acknowledged[name] = min(one.sent, acknowledged.get(name, one.sent))
    for name, operation in final.operations.items():
        if name not in ends or not operation["ended_at"]:
            continue
        over = moment(operation["ended_at"])
        for late, at in starts.items():
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
            if operation["carried_out_at"] and times.latest(at) < over:
                yield f"{late} went down before {name} was back"
            elif (
                operation["status"] == "Failed"
                and acknowledged.get(name, at) >= at
                and not _repaired(operation, final, ends, at)
            ):
                yield f"{late} went down, and nobody had acknowledged the failure of {name}"


def _in_two_domains(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    domains = {event["scope"]: event["update_domain"] for event in one["events"]}
    return any(
        domains.get(event["scope"], event["update_domain"]) != event["update_domain"]
        for event in other["events"]
    )


def _repaired(
    operation: Mapping[str, Any], final: Final, ends: Mapping[str, float], by: float
) -> bool:
    """Tell whether later operations on all machines of a failed one had completed by then."""
    repaired = {
        machine
        for name, end in ends.items()
        if ends[operation["id"]] < end <= by
        and (other := final.operations.get(name)) is not None
        and other["status"] == "Completed"
        for event in other["events"]
        for machine in event["machines"]
    }
    return {machine for event in operation["events"] for machine in event["machines"]} <= repaired


def _machines_came_back(journals: Journals, final: Final, times: Times) -> Iterator[str]:
    """What was over when its machines were back: one of them had asked by then.

    A machine that was deleted meanwhile need not ask.
    """
    asks: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for entries in journals.values():
        for entry in entries:
            for began, ended, machine in entry.get("asks", ()):
                asks[machine].append((began, ended))
    deleted = {
        machine
        for operation in final.operations.values()
        if operation["event_type"] in AT_ONCE and operation["status"] == "Completed"
        for event in operation["events"]
        for machine in event["machines"]
    }
    for name, operation in final.operations.items():
        if operation["status"] != "Completed" or not operation["carried_out_at"]:
            continue
        done, over = moment(operation["carried_out_at"]), moment(operation["ended_at"])
        machines = [machine for event in operation["events"] for machine in event["machines"]]
        if deleted.isdisjoint(machines) and not any(
            times.latest(ended) > done and times.earliest(began) <= over
            for machine in machines
            for began, ended in asks[machine]
        ):
            yield f"{name} was carried out at {done} and over at {over}, and no machine had asked"


def unannounced(journals: Journals) -> set[str]:
    """Return the descriptions of what was to happen without notice."""
    return {
        one.entry["asked"]["description"]
        for one in asked(journals, "request")
        if one.entry["asked"].get("no_notice")
    }


def _ends(runs: list[dict[str, Any]]) -> dict[str, float]:
    """Return when each operation's program ended last."""
    found: dict[str, float] = {}
    for run in runs:
        if run["what"] == "end":
            found[run["operation"]] = max(run["at"], found.get(run["operation"], 0.0))
    return found


def _starts(runs: list[dict[str, Any]]) -> dict[str, float]:
    """Return when each operation's program first ran."""
    found: dict[str, float] = {}
    for run in runs:
        if run["what"] == "start":
            found[run["operation"]] = min(run["at"], found.get(run["operation"], run["at"]))
    return found

"""Scenarios: texts that a reader of the protocol can review, and the verbs that they are made of.

A line has one verb, its words, and options (`by=ann`), as a shell would split it. `at 5m` before a
verb is a time from the beginning: what is due then has happened before the line, but not before a
line that says `before 5m`. A line without a time happens in the same instant as the one above.

The fleet comes first: the groups of the fleet file, a `member` to a line, and `apply`. The
connector takes each operation when it starts, and waits for a line that says how it ended. A line
that must be refused says so: `refused=conflict`. An expectation of an operation tells whether it
is held and what it waits for, and of the rest only what it names.
"""

import re
import shlex
from collections import defaultdict
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from forewarn import times
from forewarn.connectors.port import Outcome
from forewarn.control import maintenances
from forewarn.maintenance import fleet_file, model, planner
from forewarn.maintenance.model import HoldKind, Policy, Refused
from forewarn.maintenance.turn_orders import MaintenanceOrder
from forewarn.protocol import codec
from forewarn.protocol.codec import AgentReport, Listed
from forewarn.protocol.versions import NEWEST_VERSION, VERSION_BY_NAME
from forewarn.server.settings import RulesSettings
from forewarn.vocabulary import AgentStatus, EventType
from scenarios.house import BEGINNING, Impossible, MortalHouse, ServerKilled

OPTION: Final = re.compile(r"[a-z_]+=")
NOTHING: Final = timedelta()


class Broken(AssertionError):  # noqa: N818 - a result of a scenario
    """A line does not hold; the message names it and says what is so instead."""


class Story:
    """A scenario so far: the fleet that is written down, the house, and the time."""

    house: MortalHouse

    def __init__(self) -> None:
        self.policy = Policy()
        self.groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.group: dict[str, Any] = {}
        self.expectations = 0

    def carry_out(self, row: str) -> str:
        """Carry a line out; return what is so instead of what it says, `""` if it holds."""
        words = shlex.split(row, comments=True)
        if words and words[0] in {"at", "before"}:
            when, span, *words = words
            self.go_to(times.span(span), inclusive=when == "at")
        if not words:
            return ""
        options = dict(word.split("=", 1) for word in words if OPTION.match(word))
        verb, *words = [word for word in words if not OPTION.match(word)]
        if verb == "expect":
            verb, *words = [f"expect {words[0]}", *words[1:]]
            self.expectations += 1
        refused = options.pop("refused", "")
        try:
            instead = VERBS[verb](self, *words, **options) or ""
        except Refused as refusal:
            wanted = refusal.code.value == refused
            return "" if wanted else f"it was refused as {refusal.code}: {refusal.message}"
        except ServerKilled:
            return ""  # as the line before said: nobody gets an answer, and nothing has changed
        return instead or ("it was not refused" if refused else "")

    def go_to(self, span: timedelta, *, inclusive: bool) -> None:
        """Have time pass, and all happen that is due by then."""
        if span < self.house.elapsed or (span == self.house.elapsed != NOTHING and not inclusive):
            raise Impossible(f"it is {self.house.elapsed} already")
        self.house.run_until(span, inclusive=inclusive)

    def moment(self, span: str) -> datetime:
        """Return a time, by its distance from the beginning."""
        return BEGINNING + times.span(span)


def play(text: str, name: str) -> Story:
    """Play a scenario, up to the first line that is broken."""
    story = Story()
    for number, row in enumerate(text.splitlines(), 1):
        try:
            instead = story.carry_out(row)
        except (Impossible, LookupError, TypeError, ValueError) as error:
            instead = f"{type(error).__name__}: {error}"
        if instead:
            raise Broken(f"{name}:{number}: {row}\n    but {instead}")
    return story


# The fleet.


def settings(story: Story, **options: str) -> None:
    story.policy = msgspec.convert(options, RulesSettings, strict=False).policy


def group(kind: str) -> Callable[..., None]:
    def begin(story: Story, name: str, **options: str) -> None:
        story.group = {"name": name, **options}
        story.groups[kind].append(story.group)

    return begin


def member(story: Story, name: str, **options: str) -> None:
    numbered = story.group in story.groups["scale_set"]
    named = {"index": name} if numbered else {"name": name}
    story.group.setdefault("machines", []).append({**named, **options})


def apply(story: Story) -> None:
    groups = {kind: written for kind, written in story.groups.items() if written}
    fleet = msgspec.convert(groups, fleet_file.Fleet, strict=False)
    story.groups.clear()
    if hasattr(story, "house"):
        story.house.ask(lambda plane: plane.apply_fleet(fleet))
    else:
        story.house = MortalHouse(fleet, story.policy)


# Operators.


def schedule(story: Story, kind: str, *machines: str, by: str = "operator", **options: str) -> None:
    wanted: dict[str, Any] = dict(options)
    for name in wanted.keys() & {"not_before", "opens_at", "closes_at"}:
        wanted[name] = story.moment(wanted[name])
    if "without_notice" in wanted:
        wanted["without_notice"] = wanted["without_notice"] == "yes"
    request = planner.Request(
        event_type=EventType(kind), machines=machines, requested_by=by, **wanted
    )
    story.house.ask(lambda plane: plane.request(request))


def strike(story: Story, kind: str, *machines: str) -> None:
    failure = planner.Request(
        event_type=EventType(kind), machines=machines, requested_by="platform", no_notice=True
    )
    story.house.ask(lambda plane: plane.request(failure))


def cancel(story: Story, reference: str, reason: str = "") -> None:
    story.house.ask(lambda plane: plane.cancel([reference], reason=reason))


def operator_approve(story: Story, reference: str, by: str = "operator") -> None:
    story.house.ask(lambda plane: plane.approve_for_guests([reference], by=by))


def acknowledge(story: Story, reference: str, by: str = "operator") -> None:
    story.house.ask(lambda plane: plane.acknowledge([reference], by))


def order(kind: MaintenanceOrder) -> Callable[..., None]:
    def give(story: Story, maintenance: str, unit: str = "", by: str = "operator") -> None:
        number = int(maintenance)
        story.house.ask(lambda plane: plane.order(maintenances.order, number, kind, unit, by=by))

    return give


def postpone(story: Story, reference: str, to: str) -> None:
    story.house.ask(lambda plane: plane.postpone([reference], story.moment(to)))


def hold(
    story: Story,
    kind: str,
    name: str = "",
    reason: str = "",
    by: str = "operator",
    until: str = "",
) -> None:
    what, ends = HoldKind(kind), story.moment(until) if until else None
    story.house.ask(lambda plane: plane.hold(what, name, reason=reason, by=by, until=ends))


def release(story: Story, kind: str, name: str = "") -> None:
    story.house.ask(lambda plane: plane.release(HoldKind(kind), name))


def remove(story: Story, *machines: str) -> None:
    story.house.ask(lambda plane: plane.remove_machines(machines))


# Guests, the connector, the server and the clock.


def approve(story: Story, machine: str, *operations: str) -> None:
    story.house.approve(story.house.machine(machine), operations)


def ask(story: Story, machine: str) -> None:
    story.house.record_request(story.house.machine(machine))


def say(story: Story, machine: str, status: str, reason: str = "") -> None:
    report = AgentReport(AgentStatus(status), reason)
    story.house.record_request(story.house.machine(machine), report)


def end(*, succeeded: bool) -> Callable[..., None]:
    def report(story: Story, operation: str, message: str = "", attempt: str = "") -> None:
        outcome = Outcome(succeeded=succeeded, message=message)
        story.house.end(operation, outcome, int(attempt) if attempt else None)

    return report


def kill(story: Story, when: str = "now") -> None:
    {"now": story.house.kill, "in-next-commit": story.house.doom}[when]()


def jump(story: Story, by: str) -> None:
    story.house.jump(times.span(by[1:]) * {"+": 1, "-": -1}[by[0]])


# What must be so.


def document(story: Story, machine: str, *told: str, version: str = NEWEST_VERSION.name) -> str:
    """Compare each event: its type, its status, its machines and, where it is told, NotBefore."""
    scope = story.house.machine(machine).scope
    events = story.house.document(scope, VERSION_BY_NAME[version]).events
    seen = [(*event_words(event), event.not_before) for event in events]
    expected = [] if told == ("nothing",) else [event.split() for event in told]
    same = bool(told) and len(seen) == len(expected)
    for wanted, (*words, at) in zip(expected, seen, strict=False):
        same = same and wanted[:3] == words and all(story.moment(each) == at for each in wanted[3:])
    shown = [f"{' '.join(words)} {at}" for *words, at in seen]
    return "" if same else f"it has {shown or 'no event'}"


def event_words(event: Listed) -> tuple[str, str, str]:
    names = ",".join(name.removeprefix(codec.PREVIEW_PREFIX) for name in event.resources)
    return event.event_type.value, event.status.value, names


def operation(story: Story, name: str, status: str, **options: str) -> str:
    found = story.house.operation(name)
    if found is None:
        return f"there is no operation {name}"
    facts = {
        "held": "yes" if found.held_at else "",
        "waits_for": found.waits_for,
        "cause": found.start_cause,
        "awaiting": ",".join(found.awaited) or "nobody",
        "since": found.started_at,
        "not_before": found.not_before,
    }
    told: dict[str, object] = {"held": "", "waits_for": "", **options}
    told |= {name: story.moment(options[name]) for name in options.keys() & {"since", "not_before"}}
    same = found.status == status and told.items() <= facts.items()
    return "" if same else f"it is {found.status}: {facts} {found.outcome}"


def no_operation(story: Story, name: str) -> str:
    found = story.house.operation(name)
    return "" if found is None else f"it is {found.status}"


def no_machine(story: Story, name: str) -> str:
    known = story.house.look(lambda reading: reading.machines())
    return f"there is {name}" if model.key(name) in known else ""


def incarnation(story: Story, scope: str, number: str) -> str:
    found = story.house.look(lambda reading: reading.scopes())[model.key(scope)].incarnation
    return "" if found == int(number) else f"it is {found}"


def maintenance(story: Story, number: str, state: str) -> str:
    found = known_maintenance(story, number)
    return "" if found.state == state else f"it is {found.state}: {found.reason}"


def unit(story: Story, number: str, name: str, state: str, because: str = "") -> str:
    """Compare the state of a unit, and look for a word in its reason."""
    every = {unit.name: unit for unit in known_maintenance(story, number).units}
    found = every.get(name)
    if found is None:
        return f"its units are {', '.join(every) or 'none'}"
    same = found.state == state and because in found.reason
    return "" if same else f"it is {found.state}: {found.reason}"


def known_maintenance(story: Story, number: str) -> model.Maintenance:
    return story.house.look(lambda reading: reading.maintenances([int(number)]))[int(number)]


def alerts(story: Story, *expected: str) -> str:
    found = {f"{alert.kind} {alert.about}" for alert in story.house.alerts()}
    return "" if found == set(expected) else f"the alerts are {sorted(found) or 'none'}"


VERBS: Final[dict[str, Callable[..., str | None]]] = {
    "settings": settings,
    **{kind: group(kind) for kind in ("availability_set", "scale_set", "machine")},
    "member": member,
    "apply": apply,
    "schedule": schedule,
    "strike": strike,
    "cancel": cancel,
    "operator-approve": operator_approve,
    "acknowledge": acknowledge,
    **{kind.value: order(kind) for kind in MaintenanceOrder},
    "postpone": postpone,
    "hold": hold,
    "release": release,
    "remove": remove,
    "approve": approve,
    "ask": ask,
    "say": say,
    "finish": end(succeeded=True),
    "fail": end(succeeded=False),
    "kill": kill,
    "start": lambda story: story.house.start(),
    "jump": jump,
    "expect document": document,
    "expect operation": operation,
    "expect no-operation": no_operation,
    "expect no-machine": no_machine,
    "expect incarnation": incarnation,
    "expect maintenance": maintenance,
    "expect unit": unit,
    "expect alerts": alerts,
    "expect no-alerts": alerts,
}

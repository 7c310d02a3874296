"""Scenarios: texts that a reader of the protocol can review, and the verbs that they are made of.

A line has one verb, its words, and options (`by=ann`), as a shell would split it. `at 5m` before a
verb is a time from the beginning: what is due then has happened before the line, but not before a
line that says `before 5m`. A line without a time happens in the same instant as the one above.

The fleet comes first: the groups of the fleet file, members with the same options on a line, and
`apply`. The connector takes each operation when it starts, and waits for a line that says how it
ended. A line that must be refused says so: `refused=conflict`, and may name facts:
`refused="conflict operation=1.1"`. An expectation of an operation tells whether it is held and what
it waits for, and of the rest only what it names. A time that is told as `yes` may be any.

A line `story TITLE` begins another story, on what stands above the first such line.
"""

from collections import defaultdict
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

import stories
from forewarn import times
from forewarn.connectors.port import Outcome
from forewarn.control import maintenances
from forewarn.control.maintenances import Asked, UnitTargets
from forewarn.control.outbox import state_of
from forewarn.maintenance import fleet_file, model, planner
from forewarn.maintenance.alerts import remedy
from forewarn.maintenance.model import HoldKind, Policy, Refused
from forewarn.maintenance.standing import of_operation
from forewarn.maintenance.turn_orders import MaintenanceOrder
from forewarn.maintenance.units import TurnPolicy, Unit
from forewarn.protocol import codec
from forewarn.protocol.codec import AgentReport, Listed
from forewarn.protocol.versions import NEWEST_VERSION, VERSION_BY_NAME
from forewarn.server.settings import RulesSettings
from forewarn.vocabulary import AgentStatus
from scenarios.house import BEGINNING, Impossible, MortalHouse, ServerKilled
from stories import elapsed

NOTHING: Final = timedelta()
TARGETS: Final = ("hosts", "scopes", "machines")
GROUPS: Final = ("availability_set", "scale_set", "cloud_service", "machine")


class Broken(AssertionError):  # noqa: N818 - a result of a scenario
    """A line does not hold; the message names it and says what is so instead."""


class Story:
    """A scenario so far: the fleet that is written down, the house, and the time."""

    house: MortalHouse
    applied: fleet_file.Applied

    def __init__(self, *, dies_often: bool = False) -> None:
        self.dies_often = dies_often
        self.policy = Policy()
        self.groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.group: dict[str, Any] = {}
        self.expectations = 0

    def carry_out(self, row: str) -> str:
        """Carry a line out; return what is so instead of what it says, `""` if it holds."""
        verb, words, options = stories.split(row)
        if verb in {"at", "before"}:
            when, (span, *words) = verb, words
            self.go_to(elapsed(span), inclusive=when == "at")
            verb, *words = words or [""]
        if not verb:
            return ""
        if verb == "expect":
            verb, *words = [f"expect {words[0]}", *words[1:]]
            self.expectations += 1
        refused = options.pop("refused", "")
        self.expectations += bool(refused)
        try:
            instead = VERBS[verb](self, *words, **options) or ""
        except Refused as refusal:
            code, *facts = refused.split() or [""]
            told = {f"{name}={self.said(fact)}" for name, fact in refusal.facts.items()}
            if refusal.code.value == code and told.issuperset(facts):
                return ""
            return f"it was refused as {refusal.code}, {told}: {refusal.message}"
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
        return BEGINNING + elapsed(span)

    def same(self, fact: object, told: str) -> bool:
        """Compare a fact with how a line tells it."""
        if isinstance(fact, datetime) and told not in {"", "yes"}:
            return fact == self.moment(told)
        return self.said(fact) == told

    def said(self, fact: object) -> str:
        """Return a fact as a line tells it; a time that is not compared is `yes`."""
        match fact:
            case datetime() | True:
                return "yes"
            case None | False:
                return ""
            case tuple():
                return ",".join(map(str, fact))
        return str(fact)


def play(text: str, name: str, title: str = "", *, dies_often: bool = False) -> Story:
    """Play a story, up to the first line that is broken.

    The server may die often: after each commit, before anybody is told of it, and is back at once.
    """
    story = Story(dies_often=dies_often)
    for number, row in stories.stories(text)[title]:
        try:
            instead = story.carry_out(row)
        except (Impossible, LookupError, TypeError, ValueError) as error:
            instead = f"{type(error).__name__}: {error}"
        if instead:
            raise Broken(f"{name}:{number}: {row}\n    but {instead}")
    return story


# The fleet.


def settings(story: Story, **options: str) -> None:
    """Write the settings down; a server that runs is started again with them."""
    story.policy = msgspec.convert(options, RulesSettings, strict=False).policy
    if hasattr(story, "house"):
        story.house.kill()
        story.house.policy = story.policy
        story.house.start()


def group(kind: str) -> Callable[..., None]:
    def begin(story: Story, name: str, automatically_approve: str = "", **options: str) -> None:
        story.group = {"name": name, **options}
        if automatically_approve:
            story.group["automatically_approve"] = automatically_approve.split(",")
        story.groups[kind].append(story.group)

    return begin


def member(story: Story, *names: str, **options: str) -> None:
    """Write members with the same options down."""
    naming = "index" if story.group in story.groups["scale_set"] else "name"
    members = [{naming: name, **options} for name in names]
    story.group.setdefault("machines", []).extend(members)


def role(story: Story, name: str, instances: str) -> None:
    written = {"name": name, "instances": [{}] * int(instances)}
    story.group.setdefault("roles", []).append(written)


def apply(story: Story, **options: str) -> None:
    groups = {kind: written for kind, written in story.groups.items() if written}
    fleet = msgspec.convert(groups, fleet_file.Fleet, strict=False)
    story.groups.clear()
    ways = {name: told == "yes" for name, told in options.items()}
    if hasattr(story, "house"):
        story.applied = story.house.ask(lambda plane: plane.apply_fleet(fleet, **ways))
    else:
        story.house = MortalHouse(fleet, story.policy, dies_often=story.dies_often)


# Operators.


def schedule(story: Story, kind: str, *machines: str, by: str = "operator", **options: str) -> None:
    wanted: dict[str, Any] = {
        name: told == "yes" if told in {"yes", "no"} else told for name, told in options.items()
    }
    for name in wanted.keys() & {"not_before", "opens_at", "closes_at"}:
        wanted[name] = story.moment(wanted[name])
    wanted |= {"event_type": kind, "machines": machines, "requested_by": by}
    request = msgspec.convert(wanted, planner.Request, strict=False)
    story.house.ask(lambda plane: plane.request(request))


def units_of(
    story: Story,
    kind: str,
    source: str = "Platform",
    idempotency_key: str = "",
    to_host: str = "",
    **options: str,
) -> None:
    """Ask for maintenance by units under a policy; targets of a kind have commas between them."""
    keyed = {"source": source, "idempotency_key": idempotency_key, "to_host": to_host}
    targets = {name: told.split(",") for name, told in options.items() if name in TARGETS}
    policy = {name: told for name, told in options.items() if name not in TARGETS}
    asked = Asked(
        request=msgspec.convert({"event_type": kind, **keyed}, planner.Request),
        targets=msgspec.convert(targets, UnitTargets),
        policy=msgspec.convert(
            policy
            | {name: (policy[name],) for name in policy.keys() & {"windows"}}
            | {name: policy[name].split(",") for name in policy.keys() & {"waves"}},
            TurnPolicy,
            strict=False,
        ),
    )
    wanted, _ = story.house.look(
        lambda reading: maintenances.prepared(
            state_of(reading),
            asked,
            story.policy,
            now=story.house.watch.now(),
        )
    )
    story.house.ask(lambda plane: plane.order(maintenances.start, wanted, asked))


def strike(story: Story, kind: str, *machines: str, **options: str) -> None:
    schedule(story, kind, *machines, by="platform", no_notice="yes", **options)


def cancel(story: Story, *references: str, reason: str = "") -> None:
    if not references:
        raise TypeError("it names nothing")
    story.house.ask(lambda plane: plane.cancel(references, reason=reason))


def operator_approve(story: Story, *references: str, by: str = "operator") -> None:
    story.house.ask(lambda plane: plane.approve_for_guests(references, by=by))


def acknowledge(story: Story, reference: str, by: str = "operator", even_if_down: str = "") -> None:
    down = even_if_down == "yes"
    story.house.ask(lambda plane: plane.acknowledge([reference], by, even_if_down=down))


def resolve(story: Story, *words: str, by: str = "operator") -> None:
    *references, verdict = words
    story.house.ask(lambda plane: plane.resolve(references, model.Verdict(verdict), by))


def order(kind: MaintenanceOrder) -> Callable[..., None]:
    def give(story: Story, maintenance: str, unit: str = "", by: str = "operator") -> None:
        number = int(maintenance)
        story.house.ask(lambda plane: plane.order(maintenances.order, number, kind, unit, by=by))

    return give


def postpone(story: Story, *words: str) -> None:
    *references, to = words
    story.house.ask(lambda plane: plane.postpone(references, story.moment(to)))


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
    story.applied = story.house.ask(lambda plane: plane.remove_machines(machines))


# Guests, the connector, the server and the clock.


def approve(story: Story, machine: str, *operations: str) -> None:
    story.house.approve(story.house.machine(machine), operations)


def ask(story: Story, *machines: str) -> None:
    for machine in machines:
        story.house.record_request(story.house.machine(machine))


def say(story: Story, machine: str, status: str, reason: str = "") -> None:
    report = AgentReport(AgentStatus(status), reason)
    story.house.record_request(story.house.machine(machine), report)


def end(*, succeeded: bool) -> Callable[..., None]:
    def report(
        story: Story, operation: str, message: str = "", attempt: str = "", hosts: str = ""
    ) -> None:
        named = dict(each.split(":") for each in hosts.split(",") if each)
        outcome = Outcome(succeeded=succeeded, message=message, hosts=named)
        story.house.end(operation, outcome, int(attempt) if attempt else None)

    return report


def doubt(story: Story, operation: str, message: str = "", attempt: str = "") -> None:
    """The connector reports a task whose outcome nobody knows."""
    number = int(attempt) if attempt else story.house.attempt(operation)
    story.house.ask(lambda plane: plane.report_unknown(operation, number, message))


def move(story: Story, *machines: str, to: str = "") -> None:
    """A survey finds machines on another host; `""` where it does not know it."""
    hosts = {model.key(name): to for name in machines}
    story.house.ask(lambda plane: plane.record_hosts(hosts))


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
    facts = {field: getattr(found, field) for field in found.__struct_fields__} | {
        "held": found.held_at,
        "cause": found.start_cause,
        "awaiting": found.awaited or "nobody",
        "since": found.started_at,
        "wakeup": found.wakeup_at,
        "down": found.down,
        "machines": found.machines,
        "domains": tuple(f"{event.scope}/{event.update_domain}" for event in found.events),
        "silent": all(event.silent for event in found.events),
        "approvals": tuple(e.scope for e in found.events if e.approval is not None),
        "by": tuple(e.approval.by for e in found.events if e.approval is not None),
        "dropped": tuple(event.scope for event in found.dropped),
    }
    told = {"held": "", "waits_for": "", **options}
    same = found.status == status and all(story.same(facts[each], told[each]) for each in told)
    seen = {each: str(facts[each]) for each in told} if told.keys() <= facts.keys() else facts
    return "" if same else f"it is {found.status}: {seen} {found.outcome}"


def operations(story: Story, *names: str, maintenance: str = "1") -> str:
    """Compare all operations of a maintenance, in order."""
    known = story.house.look(lambda reading: reading.operations_of_maintenance(int(maintenance)))
    return "" if tuple(known) == names else f"they are {', '.join(known) or 'none'}"


def no_operation(story: Story, name: str) -> str:
    found = story.house.operation(name)
    return "" if found is None else f"it is {found.status}"


def machine(story: Story, name: str, /, **options: str) -> str:
    found = story.house.machine(name)
    same = all(story.same(getattr(found, each), told) for each, told in options.items())
    return "" if same else f"it is {found}"


def applied(story: Story, **options: str) -> str:
    """Compare the result of the latest change of the fleet."""
    found = story.applied
    same = all(story.same(getattr(found, each), told) for each, told in options.items())
    return "" if same else f"it is {found}"


def no_scope(story: Story, name: str) -> str:
    known = story.house.look(lambda reading: reading.scopes())
    return f"there is {name}" if model.key(name) in known else ""


def no_machine(story: Story, name: str) -> str:
    known = story.house.look(lambda reading: reading.machines())
    return f"there is {name}" if model.key(name) in known else ""


def incarnation(story: Story, scope: str, number: str) -> str:
    found = story.house.look(lambda reading: reading.scopes())[model.key(scope)].incarnation
    return "" if found == int(number) else f"it is {found}"


def maintenance(story: Story, number: str, state: str, because: str = "", **options: str) -> str:
    """Compare the state of a maintenance and what else is told; look for words in its reason."""
    return compared(story, known_maintenance(story, number), state, because, options)


def units(story: Story, number: str, *told: str) -> str:
    """Compare the names and states of all units, in order."""
    every = [f"{unit.name} {unit.state}" for unit in known_maintenance(story, number).units]
    return "" if every == list(told) else f"they are {every or 'none'}"


def unit(
    story: Story, number: str, name: str, state: str, because: str = "", **options: str
) -> str:
    """Compare the state of a unit and what else is told; look for words in its reason."""
    every = {unit.name: unit for unit in known_maintenance(story, number).units}
    found = every.get(name)
    if found is None:
        return f"its units are {', '.join(every) or 'none'}"
    return compared(story, found, state, because, options)


def compared(
    story: Story,
    found: model.Maintenance | Unit,
    state: str,
    because: str,
    options: dict[str, str],
) -> str:
    same = found.state == state and because in found.reason
    same = same and all(story.same(getattr(found, name), options[name]) for name in options)
    return "" if same else f"it is {found.state}: {found.reason}; {found}"


def known_maintenance(story: Story, number: str) -> model.Maintenance:
    return story.house.look(lambda reading: reading.maintenances([int(number)]))[int(number)]


def alerts(story: Story, *expected: str) -> str:
    found = {f"{alert.kind} {alert.about}" for alert in story.house.alerts()}
    return "" if found == set(expected) else f"the alerts are {sorted(found) or 'none'}"


def alert(story: Story, kind: str, about: str, says: str = "", **options: str) -> str:
    """Compare what is told of the one alert of a kind about something."""
    every = {(each.kind, each.about): each for each in story.house.alerts()}
    found = next((every[each] for each in every if each == (kind, about)), None)
    if found is None:
        return f"the alerts are {[*every]}"
    facts = {"since": found.since, "message": found.message, "remedy": remedy(found)}
    same = all(story.same(facts[each], told) for each, told in options.items())
    return "" if same and says in found.message else f"it is {facts}"


def standing(story: Story, name: str, *words: str) -> str:
    """Look for words in what keeps an operation where it is; `""` where nothing does."""
    found = story.house.operation(name)
    assert found is not None
    live = story.house.look(lambda reading: reading.live_operations())
    holds = story.house.look(lambda reading: reading.holds())
    said = of_operation(found, live, holds, story.house.watch.now())
    same = all(word in said for word in words) if any(words) else not said
    return "" if same else f"it says {said!r}"


VERBS: Final[dict[str, Callable[..., str | None]]] = {
    "settings": settings,
    **{kind: group(kind) for kind in GROUPS},
    "member": member,
    "role": role,
    "apply": apply,
    "schedule": schedule,
    "schedule-units": units_of,
    "strike": strike,
    "cancel": cancel,
    "operator-approve": operator_approve,
    "acknowledge": acknowledge,
    "resolve": resolve,
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
    "doubt": doubt,
    "move": move,
    "kill": kill,
    "start": lambda story: story.house.start(),
    "jump": jump,
    "expect document": document,
    "expect operation": operation,
    "expect operations": operations,
    "expect no-operation": no_operation,
    "expect machine": machine,
    "expect applied": applied,
    "expect no-scope": no_scope,
    "expect no-machine": no_machine,
    "expect incarnation": incarnation,
    "expect maintenance": maintenance,
    "expect units": units,
    "expect unit": unit,
    "expect alert": alert,
    "expect alerts": alerts,
    "expect no-alerts": alerts,
    "expect standing": standing,
}

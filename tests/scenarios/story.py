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

import contextlib
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future
from datetime import datetime, timedelta
from functools import partialmethod
from typing import Any, Final

import msgspec
import pytest

from control.orders import PlaneStory, T
from forewarn import times
from forewarn.connectors.port import Outcome
from forewarn.control import maintenances
from forewarn.control.maintenances import Asked, UnitTargets
from forewarn.control.outbox import state_of
from forewarn.control.plane import Plane
from forewarn.maintenance import fleet_file, model, news, planner
from forewarn.maintenance.alerts import Audience, remedy
from forewarn.maintenance.model import Policy
from forewarn.maintenance.news import NewsItem
from forewarn.maintenance.standing import of_operation
from forewarn.maintenance.turn_orders import MaintenanceOrder
from forewarn.maintenance.turn_plan import PlannedTurns
from forewarn.maintenance.units import TurnPolicy
from forewarn.protocol import codec
from forewarn.protocol.codec import AgentReport, Listed
from forewarn.protocol.versions import NEWEST_VERSION, VERSION_BY_NAME
from forewarn.server.settings import RulesSettings
from forewarn.vocabulary import AgentStatus
from scenarios.house import BEGINNING, Impossible, MortalHouse, ServerKilled
from stories import elapsed, listed, said

TARGETS: Final = ("hosts", "scopes", "machines")
DEFAULTS: Final = (0, "", None, (), {})
GROUPS: Final = ("availability_set", "scale_set", "cloud_service", "machine")


class Story(PlaneStory):
    """A scenario so far: the fleet that is written down, the house, and the time.

    The server may die often: after each commit, before anybody is told of it, and is back at once.
    """

    beginning = BEGINNING
    house: MortalHouse
    applied: fleet_file.Applied
    planned: PlannedTurns

    def __init__(self, *, dies_often: bool = False) -> None:
        self.dies_often = dies_often
        self.policy = Policy()
        self.groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.group: dict[str, Any] = {}
        self.read_news = 0
        """How much of the news was compared."""
        self.news: list[NewsItem] = []

    def carry_out(self, row: str) -> None:
        # As the line before said: the server dies, nobody gets an answer, and nothing has changed.
        with contextlib.suppress(ServerKilled):
            super().carry_out(row)

    def go_to(self, elapsed: timedelta, *, inclusive: bool = True) -> None:
        """Have time pass, and all happen that is due by then."""
        now = self.house.elapsed
        if elapsed < now or (elapsed == now != timedelta() and not inclusive):
            raise Impossible(f"it is {now} already")
        self.house.run_until(elapsed, inclusive=inclusive)

    def before(self, span: str, verb: str, *words: str, **options: str) -> None:
        """Carry a line out before anything happens that is due then."""
        self.go_to(elapsed(span), inclusive=False)
        getattr(self, verb.replace("-", "_"))(*words, **options)

    def expect(self, what: str, *words: str, **options: str) -> None:
        getattr(self, f"expect_{what.replace('-', '_')}")(*words, **options)

    # The fleet.

    def settings(self, **options: str) -> None:
        """Write the settings down; a server that runs is started again with them."""
        self.policy = msgspec.convert(options, RulesSettings, strict=False).policy
        if hasattr(self, "house"):
            self.house.kill()
            self.house.policy = self.policy
            self.house.start()

    def begin_group(
        self, kind: str, name: str, automatically_approve: str = "", **options: str
    ) -> None:
        self.group = {"name": name, **options}
        if automatically_approve:
            self.group["automatically_approve"] = listed(automatically_approve)
        self.groups[kind].append(self.group)

    def member(self, *names: str, **options: str) -> None:
        """Write members with the same options down."""
        naming = "index" if self.group in self.groups["scale_set"] else "name"
        members = [{naming: name, **options} for name in names]
        self.group.setdefault("machines", []).extend(members)

    def role(self, name: str, instances: str) -> None:
        written = {"name": name, "instances": [{}] * int(instances)}
        self.group.setdefault("roles", []).append(written)

    def apply(self, **options: str) -> None:
        fleet = self.written()
        ways = {name: told == "yes" for name, told in options.items()}
        if hasattr(self, "house"):
            self.applied = self.house.ask(lambda plane: plane.apply_fleet(fleet, **ways))
        else:
            self.house = MortalHouse(fleet, self.policy, dies_often=self.dies_often)

    def written(self) -> fleet_file.Fleet:
        """Read the groups that are written down, once."""
        groups = {kind: written for kind, written in self.groups.items() if written}
        self.groups.clear()
        return msgspec.convert(groups, fleet_file.Fleet, strict=False)

    def unreadable(self, says: str) -> None:
        """No fleet file may hold what is written down."""
        with pytest.raises(msgspec.ValidationError) as error:
            self.written()
        assert says in str(error.value)

    # Operators.

    def do(self, question: Callable[[Plane], "Future[T]"]) -> T:
        return self.house.ask(question)

    def schedule_units(self, kind: str, **options: str) -> None:
        """Ask for maintenance by units under a policy; targets of a kind have commas between."""
        asked, wanted, _ = self.prepared(kind, **options)
        self.house.ask(lambda plane: plane.order(maintenances.start, wanted, asked))

    def plan_units(self, kind: str, **options: str) -> None:
        """Plan maintenance by units, without asking for it."""
        _, _, plan = self.prepared(kind, **options)
        self.planned = plan()

    def prepared(
        self,
        kind: str,
        source: str = "Platform",
        idempotency_key: str = "",
        to_host: str = "",
        duration_seconds: str = "-1",
        **options: str,
    ) -> tuple[Asked, model.Maintenance, Callable[[], PlannedTurns]]:
        keyed = {"source": source, "idempotency_key": idempotency_key, "to_host": to_host}
        keyed |= {"event_type": kind, "duration_seconds": duration_seconds}
        targets = {name: listed(options.pop(name)) for name in options.keys() & {*TARGETS}}
        policy: dict[str, Any] = {**options}
        policy |= {name: (options[name],) for name in options.keys() & {"windows"}}
        policy |= {name: listed(options[name]) for name in options.keys() & {"waves"}}
        asked = Asked(
            request=msgspec.convert(keyed, planner.Request, strict=False),
            targets=msgspec.convert(targets, UnitTargets),
            policy=msgspec.convert(policy, TurnPolicy, strict=False),
        )
        now = self.house.watch.now()
        wanted, plan = self.house.look(
            lambda reading: maintenances.prepared(state_of(reading), asked, self.policy, now=now)
        )
        return asked, wanted, plan

    def strike(self, kind: str, *machines: str, **options: str) -> None:
        self.schedule(kind, *machines, by="platform", no_notice="yes", **options)

    def acknowledge(self, reference: str, by: str = "operator", even_if_down: str = "") -> None:
        down = even_if_down == "yes"
        self.house.ask(lambda plane: plane.acknowledge([reference], by, even_if_down=down))

    def resolve(self, *words: str, by: str = "operator") -> None:
        *references, verdict = words
        self.house.ask(lambda plane: plane.resolve(references, model.Verdict(verdict), by))

    def order(
        self, kind: MaintenanceOrder, maintenance: str, unit: str = "", by: str = "operator"
    ) -> None:
        number = int(maintenance)
        self.house.ask(lambda plane: plane.order(maintenances.order, number, kind, unit, by=by))

    def postpone(self, *words: str) -> None:
        *references, to = words
        self.house.ask(lambda plane: plane.postpone(references, self.moment(to)))

    def remove(self, *machines: str) -> None:
        self.applied = self.house.ask(lambda plane: plane.remove_machines(machines))

    # Guests, the connector, the server and the clock.

    def approve(self, machine: str, *operations: str) -> None:
        self.house.approve(self.house.machine(machine), operations)

    def ask(self, *machines: str) -> None:
        for machine in machines:
            self.house.record_request(self.house.machine(machine))

    def say(self, machine: str, status: str, reason: str = "") -> None:
        report = AgentReport(AgentStatus(status), reason)
        self.house.record_request(self.house.machine(machine), report)

    def finish(self, operation: str, message: str = "", **told: str) -> None:
        self.report(operation, Outcome(succeeded=True, message=message), **told)

    def fail(self, operation: str, message: str = "", **told: str) -> None:
        self.report(operation, Outcome(succeeded=False, message=message), **told)

    def report(self, name: str, outcome: Outcome, attempt: str = "", hosts: str = "") -> None:
        named = dict(each.split(":") for each in listed(hosts))
        outcome = msgspec.structs.replace(outcome, hosts=named)
        self.house.end(name, outcome, int(attempt) if attempt else None)

    def doubt(self, operation: str, message: str = "", attempt: str = "") -> None:
        """The connector reports a task whose outcome nobody knows."""
        number = int(attempt) if attempt else self.house.attempt(operation)
        self.house.ask(lambda plane: plane.report_unknown(operation, number, message))

    def move(self, *machines: str, to: str = "") -> None:
        """A survey finds machines on another host; `""` where it does not know it."""
        hosts = {model.key(name): to for name in machines}
        self.house.ask(lambda plane: plane.record_hosts(hosts))

    def kill(self, when: str = "now") -> None:
        {"now": self.house.kill, "in-next-commit": self.house.doom}[when]()

    def start(self) -> None:
        self.house.start()

    def jump(self, by: str) -> None:
        self.house.jump(times.span(by[1:]) * {"+": 1, "-": -1}[by[0]])

    # What must be so.

    def expect_document(self, machine: str, *told: str, version: str = NEWEST_VERSION.name) -> None:
        """Compare each event: its type, status and machines and, where it is told, NotBefore."""
        scope = self.house.machine(machine).scope
        events = self.house.document(scope, VERSION_BY_NAME[version]).events
        assert told
        expected = [] if told == ("nothing",) else [event.split() for event in told]
        assert [words[:3] for words in expected] == [event_words(event) for event in events]
        for (_, _, _, *at), event in zip(expected, events, strict=True):
            assert all(self.moment(each) == event.not_before for each in at), event

    def expect_operation(self, name: str, status: str, says: str = "", **options: str) -> None:
        found = self.house.operation(name)
        assert found is not None, f"there is no operation {name}"
        assert found.status == status, found
        assert says in found.outcome
        self.compare(
            found,
            {"held": "", "waits_for": "", **options},
            held=found.held_at,
            cause=found.start_cause,
            awaiting=found.awaited or "nobody",
            since=found.started_at,
            wakeup=found.wakeup_at,
            domains=tuple(f"{event.scope}/{event.update_domain}" for event in found.events),
            silent=all(event.silent for event in found.events),
            approvals=tuple(e.scope for e in found.events if e.approval is not None),
            by=tuple(e.approval.by for e in found.events if e.approval is not None),
            dropped=tuple(event.scope for event in found.dropped),
            ids=tuple(event.id for event in found.events),
        )

    def expect_operations(self, *names: str, maintenance: str = "1") -> None:
        """Compare all operations of a maintenance, in order."""
        number = int(maintenance)
        known = self.house.look(lambda reading: reading.operations_of_maintenance(number))
        assert tuple(known) == names

    def expect_no_operation(self, name: str) -> None:
        assert self.house.operation(name) is None

    def expect_machine(self, name: str, /, **options: str) -> None:
        found = self.house.machine(name)
        self.compare(found, options, **msgspec.structs.asdict(found.profile))

    def expect_applied(self, **options: str) -> None:
        """Compare the result of the latest change of the fleet."""
        self.compare(self.applied, options)

    def expect_no_scope(self, name: str) -> None:
        assert model.key(name) not in self.house.look(lambda reading: reading.scopes())

    def expect_scope(self, name: str, /, **options: str) -> None:
        found = self.house.look(lambda reading: reading.scopes())[model.key(name)]
        self.compare(found, options)

    def expect_no_machine(self, name: str) -> None:
        assert model.key(name) not in self.house.look(lambda reading: reading.machines())

    def expect_incarnation(self, scope: str, number: str) -> None:
        found = self.house.look(lambda reading: reading.scopes())[model.key(scope)]
        assert found.incarnation == int(number), found

    def expect_maintenance(
        self, number: str, state: str, because: str = "", **options: str
    ) -> None:
        """Compare the state of a maintenance and what else is told; find words in its reason."""
        self.compare_state(self.maintenance(number), state, because, options)

    def expect_units(self, number: str, *told: str) -> None:
        """Compare the names and states of all units, in order."""
        assert [f"{unit.name} {unit.state}" for unit in self.maintenance(number).units] == [*told]

    def expect_unit(
        self, number: str, name: str, state: str, because: str = "", **options: str
    ) -> None:
        """Compare the state of a unit and what else is told; look for words in its reason."""
        every = {unit.name: unit for unit in self.maintenance(number).units}
        self.compare_state(every[name], state, because, options)

    def compare_state(self, found: Any, state: str, because: str, options: dict[str, str]) -> None:
        assert found.state == state, found
        assert because in found.reason, found
        self.compare(found, options)

    def maintenance(self, number: str) -> model.Maintenance:
        return self.house.look(lambda reading: reading.maintenances([int(number)]))[int(number)]

    def audience(self, operation: str, *counts: str) -> None:
        """Tell the machines of an operation, those that ask, and those of them that see it."""
        self.house.audiences[operation] = Audience(*map(int, counts))

    def expect_plan(self, because: str = "", stands: str = "", **options: str) -> None:
        """Compare a plan, and look for words in what its rest waits for and what stands still."""
        assert because in self.planned.reason
        assert stands in self.planned.stands
        self.compare(self.planned, options)

    def expect_planned_wave(self, number: str, /, **options: str) -> None:
        self.compare(self.planned.waves[int(number) - 1], options)

    def expect_window(self, opens: str) -> None:
        """Compare the next window of a plan: its day and hour."""
        assert self.planned.window is not None
        assert f"{self.planned.window.opens:%a %H:%M}" == opens

    def expect_alerts(self, *expected: str) -> None:
        """Compare all alerts, the oldest first."""
        assert [f"{alert.kind} {alert.about}" for alert in self.house.alerts()] == [*expected]

    def expect_no_alerts(self) -> None:
        self.expect_alerts()

    def expect_alert(
        self, kind: str, about: str, says: str = "", without: str = "\0", **options: str
    ) -> None:
        """Compare what is told of the one alert of a kind about something."""
        every = {(each.kind.value, each.about): each for each in self.house.alerts()}
        found = every[kind, about]
        assert says in found.message
        assert without not in found.message
        self.compare(found, options, remedy=remedy(found))

    def expect_standing(self, name: str, *words: str, without: str = "\0") -> None:
        """Look for words in what keeps an operation where it is; `""` where nothing does."""
        found = self.house.operation(name)
        assert found is not None
        live = self.house.look(lambda reading: reading.live_operations())
        holds = self.house.look(lambda reading: reading.holds())
        text = of_operation(found, live, holds, self.house.watch.now())
        assert all(word in text for word in words) if any(words) else not text, text
        assert without not in text

    def expect_news(self, *expected: str) -> None:
        """Compare the types of the news since the last look, and the subject of each."""
        rows = self.house.look(lambda reading: reading.news_after(self.read_news, 1000))
        self.read_news = max((row.sequence for row in rows), default=self.read_news)
        self.news = [item for row in rows for item in news.decode(row.items)]
        assert [f"{item.type} {item.subject}" for item in self.news] == [*expected]

    def expect_told(self, kind: str, **expected: str) -> None:
        """Compare every fact of the latest news of a type that was looked at.

        The ids are those of the operation's events; a description, or the words beside its status,
        are compared if they are told.
        """
        data = [each.data for each in self.news if each.type == kind][-1]
        facts = msgspec.structs.asdict(data)
        operation = self.house.operation(facts["operation"])
        events = operation.events if operation else ()
        assert facts.pop("event_ids") == tuple(event.id for event in events)
        for name in {"description", "status_detail"} - expected.keys():
            del facts[name]
        told = {name: said_of(fact) for name, fact in facts.items() if fact not in DEFAULTS}
        assert told == expected, told


def said_of(fact: Any) -> str:
    """Return a fact of news as a line tells it: a time by its distance from the beginning."""
    match fact:
        case dict():
            return ",".join(f"{name}:{count}" for name, count in fact.items())
        case datetime():
            return f"{(fact - BEGINNING).total_seconds():g}s"
    return said(fact)


def event_words(event: Listed) -> list[str]:
    names = ",".join(name.removeprefix(codec.PREVIEW_PREFIX) for name in event.resources)
    return [event.event_type.value, event.status.value, names]


for kind in GROUPS:
    setattr(Story, kind, partialmethod(Story.begin_group, kind))
for each in MaintenanceOrder:
    setattr(Story, each.value.replace("-", "_"), partialmethod(Story.order, each))

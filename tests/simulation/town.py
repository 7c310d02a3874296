"""A fleet, its guests, its operators and its connectors, all of them moved by one seed.

Each step asks the real control plane for one thing. What comes of it is judged before it is
committed: by the invariants, which the plane itself checks, and by `judge`.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import msgspec

from forewarn.clock import ManualClock
from forewarn.connectors.port import Outcome, Task
from forewarn.control import heartbeat
from forewarn.control.executor import Executor, OnUnknown
from forewarn.control.plane import ADVANCE_BATCH, Plane
from forewarn.maintenance import alerts, commands
from forewarn.maintenance.model import (
    Enablement,
    Operation,
    Policy,
    Queueing,
    Refused,
    Scope,
    Sighting,
    Verdict,
    key,
)
from forewarn.vocabulary import AgentStatus, ErrorCode, EventStatus
from simulation.clocks import Clocks
from simulation.connector import Connector, at_once
from simulation.drains import Drains
from simulation.fleets import Fleets
from simulation.judge import Judge, Wrong
from simulation.maintenances import MaintenanceOperators
from simulation.news_judge import NewsJudge
from simulation.operators import Operators
from simulation.writer import Crashed, Defect, JudgedWriter
from store.model import Model

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
LEASE = timedelta(minutes=2)
FAULTS = frozenset({ErrorCode.INTERNAL, ErrorCode.UNAVAILABLE, ErrorCode.UNAUTHORIZED})
SECOND = timedelta(seconds=1)
STEPS = [timedelta(days=1), timedelta(hours=1), timedelta(minutes=10), 3 * SECOND, 1.5 * SECOND]
"""By how much somebody sets the clock; what is within the tolerance is trusted."""

IDLE = 70
"""Steps of three hours in which nothing ends, though a maintenance goes on: the windows of a week
are over by then, and it waits for what nobody knows."""

ROUNDS = 400
"""Steps of three hours at the end, 50 days: a maintenance may go on one unit a weekend."""

REMEMBERED = 200
"""How many reports and events of the past are repeated from."""


class Town:
    """Everything that moves.

    Args:
        chance: Where every choice comes from.
        size: The most machines.
    """

    def __init__(self, chance: Random, size: int) -> None:
        self.chance = chance
        self.clocks = Clocks(START)
        self.memory = Model()
        self.sightings: dict[str, Sighting] = {}
        self.policy = self._some_policy()
        self.judge = Judge(self.memory, self.clocks, self._queues, self.sightings)
        self.writer = JudgedWriter(self.memory, self.clocks.now, self.judge.see)
        self.news = NewsJudge(self.memory)
        self.writer.hear = self.news.hear
        numbers = itertools.count(1)
        self.plane = Plane(
            self.writer,
            lambda: f"{next(numbers):08X}-0000-4000-8000-000000000000",
            self.policy,
            may_start=self.clocks.may_start,
            listening=self.clocks.listening,
            sighting=self.sightings.get,
        )
        self.counts: Counter[str] = Counter()
        self.steps = 0
        self.fleets = Fleets(chance, size)
        self.hosts = self.fleets.hosts
        self.on_unknown: OnUnknown = chance.choice(["ask", "ask", "repeat", "fail"])
        self.connector = Connector(chance, self.hosts, self.on_unknown)
        self.executor = Executor(
            self.plane, self.connector, ManualClock(START), "e", on_unknown=self.on_unknown
        )
        self.acts: list[tuple[Task, Outcome | str]] = []
        """What was carried out and is not reported yet; the reason where nobody knows."""
        self.reported: list[tuple[Task, Outcome | str]] = []
        self.seen: list[tuple[str, str]] = []
        """Scopes and ids of events that guests have read, live or over."""
        self.saved: dict[str, Sighting] = {}
        """What the machines' requests had told at the last heartbeat."""
        self.doubted: dict[str, int] = {}
        """Operations of which the plane was told that nobody knows, and by which attempt."""
        self.repeated: dict[str, int] = {}
        """The attempts up to which an operator let operations be repeated."""
        self.ask("fleet", self.plane.apply_fleet, self.fleets.whole())
        self.write_down()
        self.operators = Operators(self)
        self.machines_at_first = len(self.memory.all_machines)
        self.drains = Drains(self)
        self.maintenances = MaintenanceOperators(self)
        self.judge.running_on = self.drains.running_on
        self.judge.boot_id = self.drains.boot_id
        self.moves = self.weighted()

    @property
    def now(self) -> datetime:
        """The service's time of day."""
        return self.clocks.now()

    # Asking.

    def ask(self, what: str, question: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Ask the plane one thing; None where it was refused, raised, or was lost in a crash."""
        self.steps += 1
        try:
            answer = question(*given, **named).result()
        except Refused as refusal:
            if refusal.code in FAULTS or not refusal.message:
                raise
            self.counts[f"{what}: {refusal.code}"] += 1
            return None
        except Crashed:
            self.counts[f"{what}: crashed"] += 1
            self.restart()
            return None
        except Defect:
            self.counts[f"{what}: raised"] += 1
            self.writer.compare()
            return None
        self.counts[what] += 1
        return answer

    def _queues(self, scope: Scope) -> bool:
        return self.policy.queues(scope)

    def _some_policy(self) -> Policy:
        chance, always = self.chance, Enablement.ALWAYS
        announcement = Queueing.ANNOUNCEMENT
        return Policy(
            enablement=chance.choice([always, always, Enablement.FIRST_REQUEST]),
            user_initiated_limit=chance.choice([0, 0, 10]),
            queue=chance.choice([announcement, announcement, Queueing.START]),
            settle=timedelta(seconds=chance.choice([0, 0, 20])),
        )

    def restart(self) -> None:
        """Start from what was committed: nobody holds a claim, and connectors run on."""
        chance = self.chance
        self.writer.restart()
        if chance.random() < 0.2:
            self.plane.policy = self.policy = self._some_policy()
            self.counts["other settings"] += 1
        away = step = timedelta(0)
        if chance.random() < 0.3:
            away = timedelta(seconds=chance.randint(6, 7200))
        if chance.random() < 0.1:
            step = chance.choice(STEPS) * chance.choice([1, -1])
            self.counts["clock step while away"] += 1
        self.clocks.start_again(away, step)
        if self.ask("set back", self.plane.order, heartbeat.set_back, self.clocks.watch.shown):
            self.counts["was set back"] += 1
        self.sightings.clear()
        for name, seen in self.saved.items():  # as `Transaction.set_back`
            asked_at = min(seen.asked_at, self.now)
            self.sightings[name] = msgspec.structs.replace(seen, asked_at=asked_at)
        lapse = self.clocks.begin(self.setting(heartbeat.SETTING))
        if lapse:
            kept_with = (heartbeat.SETTING, self.clocks.served())
            self.ask("outage", self.plane.extend_notices, lapse, setting=kept_with)
        else:
            self.write_down()
        self.ask("start", self.plane.release_claims)
        self.clocks.watch.open()

    def setting(self, name: str) -> str | None:
        with self.writer.store.read() as reading:
            return reading.setting(name)

    def weighted(self) -> list[Callable[[], None]]:
        table: list[tuple[int, Callable[[], None]]] = [
            (22, self.approve),
            (14, self.time_passes),
            (20, self.claim),
            (26, self.report),
            (12, self.operators.request),
            (2, self.operators.cancel),
            (2, self.operators.postpone),
            (1, self.operators.hold),
            (2, self.operators.release),
            (1, self.set_clock),
            (1, self.stand_still),
            (2, self.operators.resolve),
            (2, self.operators.change_fleet),
            (2, self.operators.move_by_hand),
            (1, self.operators.note),
            (1, self.operators.approve_for_guests),
            (2, self.ask_for_events),
            (12, self.poll),
            (1, self.die_soon),
            (1, self.raise_soon),
            (2, self.drains.request),
            (3, self.drains.order),
            (12, self.drains.drive),
            (2, self.maintenances.start),
            (5, self.maintenances.drive_some),
            (4, self.maintenances.check),
            (3, self.maintenances.order),
            (1, self.maintenances.lose_zone),
        ]
        return [move for weight, move in table for _ in range(weight)]

    def step(self) -> None:
        """Let one thing happen."""
        self.chance.choice(self.moves)()

    # Time.

    def time_passes(self, most: float = 600) -> None:
        seconds = self.chance.choice([0, 0.5, 1, 7, 30, 60, 300, most])
        self.clocks.pass_by(timedelta(seconds=seconds))
        self.beat()
        self.advance()

    def advance(self) -> None:
        ends = (self.memory.next_wakeup(), *(hold.until for hold in self.memory.holds()))
        if (wakeup := self.writer.next_wakeup) != min(filter(None, ends), default=None):
            raise Wrong(f"the ticker would sleep until {wakeup}, which is not the first of {ends}")
        self.expire_holds()
        while self.ask("advance", self.plane.advance) == ADVANCE_BATCH:
            pass

    def expire_holds(self) -> None:
        """End what is over by now, and nothing else."""
        before, now = self.memory.holds(), self.now
        if not self.ask("expire", self.plane.expire_holds):
            return
        self.counts["expired"] += 1
        if self.memory.holds() != tuple(hold for hold in before if not hold.expired(now)):
            raise Wrong(f"of {before} there is {self.memory.holds()} at {now}")

    def beat(self) -> None:
        """Do what a heartbeat does: give back what guests are owed, or write down until when."""
        owed = self.clocks.watch.owed
        if not owed:
            self.write_down()
            return
        kept = (heartbeat.SETTING, self.clocks.served())
        if self.ask("owed", self.plane.extend_notices, owed, setting=kept) is not None:
            self.clocks.watch.pay(owed)

    def write_down(self) -> None:
        self.plane.put_setting(heartbeat.SETTING, self.clocks.served()).result()
        self.saved = dict(self.sightings)

    def set_clock(self) -> None:
        """Somebody sets the clock; a service that sees it jump ends, and is started again."""
        by = self.chance.choice(STEPS) * self.chance.choice([1, -1])
        self.counts["clock forward" if by > timedelta(0) else "clock back"] += 1
        self.clocks.step(by)
        self.something()
        self.clocks.look()
        if not self.clocks.jumped:
            return
        self.counts["clock jumped"] += 1
        self.something()
        self.restart()

    def stand_still(self) -> None:
        """The process gets no turn; what it is asked meanwhile starts nothing."""
        self.counts["stood still"] += 1
        self.clocks.stand_still(timedelta(seconds=self.chance.randint(6, 1200)))
        self.something()
        self.clocks.look()
        self.something()
        self.beat()

    def something(self) -> None:
        """Let one of the things happen that start others."""
        self.chance.choice([self.approve, self.report, self.advance, self.operators.request])()

    # Connectors.

    def claim(self) -> None:
        """Executors take acts on; what comes of each is found at once, and reported later."""
        limit = self.chance.choice([1, 20])
        acts = self.ask("claim", self.plane.claim, f"e{self.chance.randint(1, 3)}", LEASE, limit)
        for act in acts or ():
            self.judge_claim(act)
        self.begin([*self.drains.booted(), *(acts or ())])

    def begin(self, acts: Iterable[Task]) -> None:
        for act in acts:
            if self.drains.hold_back(act):
                continue
            if self.chance.random() < 0.02:
                continue  # whoever took it was gone before it began
            self.acts.append((act, at_once(self.executor.outcome(act))))
            if self.connector.wrong:
                raise Wrong(self.connector.wrong)

    def judge_claim(self, act: Task) -> None:
        """Nobody takes on what is in doubt; who repeats it knows up to where that was asked for."""
        self.judge.see_claim(act)
        if act.operation in self.doubted:
            raise Wrong(f"{act.operation} is in doubt, and was claimed")
        if act.repeat_after != self.repeated.get(act.operation, 0):
            raise Wrong(f"{act.operation} is to be repeated, and its connector is not told")

    def report(self) -> None:
        """A connector reports: the truth, a lie, twice, late, or never."""
        chance = self.chance
        if not self.acts or chance.random() < 0.05:
            if self.reported and chance.random() < 0.3:  # again, what was reported long ago
                self.finish(*chance.choice(self.reported))
            return
        act, outcome = self.acts.pop(chance.randrange(len(self.acts)))
        fate = chance.random()
        if fate < 0.03:
            return  # it never reports: its lease ends, and somebody else takes it
        if fate < 0.08:
            self.acts.append((act, outcome))  # it is slow, and has its claim renewed
            renewed = self.ask("renew", self.plane.renew, {act.operation: act.attempt}, LEASE)
            self.counts["renew: stale"] += renewed == ()
            return
        if fate < 0.11:  # an attempt that was never made
            self.finish(msgspec.structs.replace(act, attempt=act.attempt + 1), outcome)
        self.finish(act, outcome)
        self.reported.append((act, outcome))
        del self.reported[:-REMEMBERED]

    def finish(self, act: Task, outcome: Outcome | str) -> None:
        if isinstance(outcome, str):
            if self.ask("doubt", self.plane.report_unknown, act.operation, act.attempt, outcome):
                self.doubted[act.operation] = act.attempt
            return
        machines = self.memory.machines([key(name) for name in act.machines])
        hosts = {name: machine.host for name, machine in machines.items()}
        if self.ask("finish", self.plane.finish, act.operation, act.attempt, outcome):
            self.counts["new host"] += self.judge.see_end(act, outcome, hosts)
            at_once(self.connector.forget(act))

    def die_soon(self) -> None:
        """The process dies at the next commit."""
        self.writer.dying = True

    def raise_soon(self) -> None:
        """A job has a defect, once: its round tries again later."""
        self.writer.raising = True

    # Guests.

    def approve(self) -> None:
        chance = self.chance
        operation = self.some_operation()
        if operation is None:
            return
        event = chance.choice(operation.events)
        self.seen.append((event.scope, event.id))
        del self.seen[:-REMEMBERED]
        scope, ids = event.scope, [event.id]
        fate = chance.random()
        if fate < 0.1:
            scope, ids = chance.choice(self.seen)[0], [event.id, chance.choice(self.seen)[1]]
        elif fate < 0.2:
            scope, again = chance.choice(self.seen)  # repeated, or late
            ids = [again, again.lower()]
        elif fate < 0.22:
            ids = ["FFFFFFFF-0000-4000-8000-000000000000"]
        answer = self.ask("approve", self.plane.approve, scope, ids, by="guest", address="")
        if answer is not None:
            self.promised(scope, ids)

    def promised(self, scope: str, ids: list[str]) -> None:
        """Remember what was answered; another scope's event must never have been."""
        for event_id in map(str.upper, ids):
            (operation,) = self.memory.operations_of_events([event_id]).values()
            known = (*operation.events, *operation.dropped)
            (event,) = [e for e in known if e.id == event_id]
            if event.scope != scope or event.silent:
                raise Wrong(f"{scope} approved {event_id} of {event.scope}")
            self.judge.approved.add(event_id)

    def ask_for_events(self) -> None:
        self.ask("asked", self.plane.record_requests, [self.some(self.memory.all_scopes)])

    def poll(self) -> None:
        """Machines of an operation ask, and perhaps their agents say how they fare."""
        operation = self.some_operation()
        if operation is not None:
            for name in operation.machines:
                if self.chance.random() < 0.7:
                    self.saw(name, self.chance.choice([None, None, *AgentStatus]))
            self.look(operation)

    def saw(self, name: str, agent: AgentStatus | None) -> None:
        known = self.sightings.get(key(name))
        word = agent or (known.agent if known else None)
        second = self.now.replace(microsecond=0)
        self.sightings[key(name)] = Sighting(asked_at=second, version="2020-07-01", agent=word)

    def look(self, operation: Operation) -> None:
        if operation.awaited and commands.has_returned(operation, self.sightings.get):
            self.ask("returns", self.plane.record_returns, [operation.id])

    # Choosing.

    def some(self, known: dict[Any, Any]) -> Any:
        """Choose a key; of many, by skipping a few hundred at most."""
        if not known:
            return "nothing"
        index = self.chance.randrange(len(known))
        return next(itertools.islice(known, index, None))

    def some_operation(self) -> Operation | None:
        live = self.memory.live
        return self.memory.all_operations[self.some(live)] if live else None

    # The end.

    def settle(self) -> None:
        """Released, given time and good outcomes: everything ends, or is on the attention list.

        Raises:
            Wrong: Something is neither.
        """
        memory = self.memory
        self.writer.restart()
        for hold in memory.holds():
            self.ask("release", self.plane.release, hold.kind, hold.name)
        self.carry_on()
        self.listed()
        for operation in list(self.doubted):
            self.operators.settle_doubt(operation, self.chance.choice(list(Verdict)))
            self.carry_on()
        self.drains.settle()
        self.carry_on()
        self.judge.kept()
        self.news.kept()
        if memory.live:
            raise Wrong(f"never ended: {', '.join(itertools.islice(memory.live, 10))}")
        if going := [one.number for one in self.maintenances.going()]:
            raise Wrong(f"maintenances that never ended: {going}")
        self.listed()

    def carry_on(self) -> None:
        """Give time and good outcomes until nothing more ends."""
        memory = self.memory
        idle = 0
        for _ in range(ROUNDS + 4 * len(memory.all_machines)):
            before = self._done()
            self.clocks.pass_by(timedelta(hours=3))
            self.beat()
            self.advance()
            while acts := self.ask("claim", self.plane.claim, "last", LEASE, 1000):
                for act in acts:
                    self.judge_claim(act)
                    self.drains.start(act)
                    done = self.connector.succeed(act)
                    self.ask("finish", self.plane.finish, act.operation, act.attempt, done)
            for arrived in [memory.all_operations[i] for i in memory.live]:
                if arrived.arrived:  # as its alert says
                    self.ask("cancel", self.plane.cancel, [arrived.id], reason="others came")
            self.drains.drive_all()
            self.maintenances.finish()
            for operation in [memory.all_operations[i] for i in memory.live]:
                for name in operation.awaited:
                    self.saw(name, AgentStatus.BACK)
                self.look(operation)
                if operation.status is EventStatus.FAILED:
                    self.ask(
                        "note", self.plane.acknowledge, [operation.id], "anna", even_if_down=True
                    )
            # A clock that was ahead leaves leases behind that end hours from now.
            leases = [o.lease_until for i in memory.live if (o := memory.all_operations[i])]
            leased = any(until is not None and until > self.now for until in leases)
            resting = self._done() == before and memory.next_wakeup() is None
            ended = not memory.live and not self.drains.under_way()
            idle = idle + 1 if resting else 0
            if self.maintenances.going():
                if idle > IDLE:
                    break
            elif ended or (self.doubted and resting and not leased):
                break

    def _done(self) -> tuple[int, ...]:
        """How much has ended, moved away, and been asked for so far."""
        return self.judge.ends, self.judge.drained.total(), len(self.memory.all_operations)

    def items(self) -> list[alerts.Alert]:
        memory = self.memory
        return alerts.items(
            memory.all_operations.values(),
            memory.open_maintenances().values(),
            memory.holds(),
            {},
            self.now,
            up_since=self.now,
            observed=alerts.of_drains(memory.all_drains.values(), self.now),
        )

    def listed(self) -> None:
        """What has not ended, or not well, is on the list; or waits for what is."""
        memory = self.memory
        about = {item.about for item in self.items()}
        under_way = self.maintenances.under_way
        silent = [
            str(n) for n in memory.open_maintenances() if str(n) not in about and not under_way(n)
        ]
        silent += [
            operation.id
            for operation in memory.all_operations.values()
            if operation.id not in about
            and (
                (operation.status is EventStatus.FAILED and not operation.acknowledged_by)
                or not (
                    operation.status.over
                    or self.cause(operation) & about
                    # Announced again and again in windows: its turn may be seen before it is due.
                    or (
                        operation.status is EventStatus.SCHEDULED
                        and self.now < operation.not_before
                    )
                )
            )
        ]
        if silent:
            raise Wrong(f"open, and not on the attention list: {', '.join(silent[:10])}")

    def cause(self, operation: Operation) -> set[str]:
        """Return what an operation waits for, what that waits for, and so on: never itself."""
        found: set[str] = set()
        while operation.waits_for:
            if operation.waits_for in found:
                raise Wrong(f"operations wait for each other: {', '.join(sorted(found))}")
            found.add(operation.waits_for)
            operation = self.memory.all_operations[operation.waits_for]
        return found

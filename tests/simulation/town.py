"""A fleet, its guests, its operators and its connectors, all of them moved by one seed.

Each step asks the real control plane for one thing. What comes of it is judged before it is
committed: by the invariants, which the plane itself checks, and by `judge`.
"""

import itertools
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import msgspec

from forewarn.connectors.port import Act, Outcome
from forewarn.control.plane import ADVANCE_BATCH, Plane
from forewarn.maintenance import attention, fleet
from forewarn.maintenance.errors import Refused
from forewarn.maintenance.model import HoldKind, Operation
from forewarn.maintenance.planner import Request
from forewarn.maintenance.policy import Enablement, Policy
from forewarn.vocabulary import ErrorCode, EventSource, EventStatus, EventType
from simulation.judge import Judge, Wrong
from simulation.memory import Crashed, Memory, MemoryWriter

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
LEASE = timedelta(minutes=2)
FAULTS = frozenset({ErrorCode.INTERNAL, ErrorCode.UNAVAILABLE, ErrorCode.UNAUTHORIZED})
TYPES = (EventType.FREEZE, EventType.REBOOT, EventType.REDEPLOY, EventType.REBOOT)
REMEMBERED = 200
"""How many reports and events of the past are repeated from."""


class Town:
    """Everything that moves.

    Args:
        chance: Where every choice comes from.
        size: The most machines.
        writer: Makes the writer from the memory, the clock and the judge.
        mint: Gives a new GUID at each call; they count up if it is left out.
    """

    def __init__(
        self,
        chance: Random,
        size: int,
        writer: type[MemoryWriter] | Callable[..., MemoryWriter] = MemoryWriter,
        mint: Callable[[], str] | None = None,
    ) -> None:
        self.chance = chance
        self.now = START
        self.memory = Memory()
        self.judge = Judge(self.memory)
        self.writer = writer(self.memory, lambda: self.now, self.judge.see)
        numbers = itertools.count(1)
        mint = mint or (lambda: f"{next(numbers):08X}-0000-4000-8000-000000000000")
        policy = Policy(
            enablement=chance.choice(
                [Enablement.ALWAYS, Enablement.ALWAYS, Enablement.FIRST_REQUEST]
            ),
            user_initiated_limit=chance.choice([0, 0, 10]),
        )
        self.plane = Plane(self.writer, mint, policy)
        self.counts: Counter[str] = Counter()
        self.steps = 0
        self.acts: list[Act] = []
        """What connectors were asked to do and have not reported, lost ones too."""
        self.reported: list[tuple[str, int]] = []
        self.seen: list[tuple[str, str]] = []
        """Scopes and ids of events that guests have read, live or over."""
        self.groups: dict[str, Any] = self.build(size)
        self.ask("fleet", self.plane.apply_fleet, self.wanted())
        self.hosts = sorted({m.host for m in self.memory.all_machines.values() if m.host})
        self.moves = self.weighted()

    # The fleet.

    def build(self, size: int) -> dict[str, Any]:
        chance = self.chance
        machines = chance.randint(1, size)
        hosts = [f"h{n}" for n in range(1 + machines // chance.choice([1, 3, 10]))]
        tree: dict[str, Any] = {"availability_set": [], "scale_set": [], "machine": []}
        left, number = machines, 0
        while left > 0:
            number += 1
            count = min(left, chance.choice([1, 2, 3, 5, 8, 20, 50]))
            left -= count
            auto = chance.sample(["Reboot", "Redeploy"], chance.choice([0, 0, 1, 2]))
            kind = chance.random()
            if kind < 0.2:
                host = chance.choice(hosts)
                tree["machine"].append({"name": f"m{number}", "host": host})
            elif kind < 0.6:
                members = [
                    {"name": f"a{number}-{i}", "host": chance.choice(hosts)} for i in range(count)
                ]
                tree["availability_set"].append(
                    {
                        "name": f"set{number}",
                        "update_domains": chance.choice([1, 2, 3, 5, 20]),
                        "automatically_approve": auto,
                        "machines": members,
                    }
                )
            else:
                members = [{"index": i, "host": chance.choice(hosts)} for i in range(count)]
                tree["scale_set"].append(
                    {
                        "name": f"scale{number}",
                        "update_domains": chance.choice([1, 2, 5]),
                        "priority": chance.choice(["low", "regular"]),
                        "terminate_notice_minutes": chance.choice([None, 5, 15]),
                        "automatically_approve": auto,
                        "machines": members,
                    }
                )
        return tree

    def wanted(self) -> fleet.Fleet:
        return msgspec.convert(self.groups, fleet.Fleet)

    # Asking.

    def ask(self, what: str, question: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Ask the plane one thing; None where it was refused or lost in a crash."""
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
        self.counts[what] += 1
        return answer

    def restart(self) -> None:
        """Start from what was committed: nobody holds a claim, and connectors run on."""
        self.writer.dying = False
        if self.chance.random() < 0.3:
            away = timedelta(seconds=self.chance.randint(6, 7200))
            self.now += away
            self.ask("outage", self.plane.lapse, away)
        self.ask("start", self.plane.release_claims)

    def weighted(self) -> list[Callable[[], None]]:
        table: list[tuple[int, Callable[[], None]]] = [
            (22, self.approve),
            (14, self.time_passes),
            (20, self.claim),
            (26, self.report),
            (12, self.request),
            (2, self.cancel),
            (2, self.postpone),
            (1, self.hold),
            (2, self.release),
            (2, self.resume),
            (1, self.note),
            (1, self.approve_for_guests),
            (2, self.ask_for_events),
            (1, self.die_soon),
        ]
        moves = [move for weight, move in table for _ in range(weight)]
        if len(self.memory.all_machines) <= 100:
            moves += [self.change_fleet]
        return moves

    def step(self) -> None:
        """Let one thing happen."""
        self.chance.choice(self.moves)()

    # Time and connectors.

    def time_passes(self, most: float = 600) -> None:
        self.now += timedelta(seconds=self.chance.choice([0, 0.5, 1, 7, 30, 60, 300, most]))
        while self.ask("advance", self.plane.advance) == ADVANCE_BATCH:
            pass

    def claim(self) -> None:
        acts = self.ask("claim", self.plane.claim, f"e{self.chance.randint(1, 3)}", LEASE, 20)
        self.acts.extend(acts or ())

    def report(self) -> None:
        """A connector reports: the truth, a lie, twice, late, or never."""
        chance = self.chance
        if not self.acts or chance.random() < 0.05:
            if self.reported and chance.random() < 0.3:  # again, what was reported long ago
                self.finish(*chance.choice(self.reported))
            return
        act = self.acts.pop(chance.randrange(len(self.acts)))
        fate = chance.random()
        if fate < 0.03:
            return  # it never reports: its lease ends, and somebody else takes it
        if fate < 0.08:
            self.acts.append(act)  # it is slow, and has its claim renewed
            self.ask("renew", self.plane.renew, act.operation, act.attempt, LEASE)
            return
        if fate < 0.11:
            self.finish(act.operation, act.attempt + 1)  # an attempt that was never made
        self.finish(act.operation, act.attempt)
        self.reported.append((act.operation, act.attempt))
        del self.reported[:-REMEMBERED]

    def finish(self, operation: str, attempt: int) -> None:
        succeeded = self.chance.random() < 0.93
        outcome = Outcome(succeeded=succeeded, message="" if succeeded else "no power")
        self.ask("finish", self.plane.finish, operation, attempt, outcome)

    def die_soon(self) -> None:
        """The process dies at the next commit."""
        self.writer.dying = True

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
            (event,) = [e for e in operation.events if e.id == event_id]
            if event.scope != scope or event.silent:
                raise Wrong(f"{scope} approved {event_id} of {event.scope}")
            self.judge.approved.add(event_id)

    def ask_for_events(self) -> None:
        self.ask("asked", self.plane.asked, [self.some(self.memory.all_scopes)])

    # Two operators at cross purposes.

    def request(self) -> None:
        chance, memory = self.chance, self.memory
        if not memory.all_machines:
            return
        event_type = (
            chance.choice(TYPES) if chance.random() < 0.9 else chance.choice(list(EventType))
        )
        named: dict[str, Any] = {}
        fate = chance.random()
        if fate < 0.6:
            count = chance.choice([1, 1, 1, 2, 5])
            named["machines"] = tuple(self.some(memory.all_machines) for _ in range(count))
        elif fate < 0.8:
            named["scope"] = self.some(memory.all_scopes)
        else:
            named["host"] = chance.choice(self.hosts) if self.hosts else "h0"
        later = None
        if chance.random() < 0.2:
            later = self.now + timedelta(seconds=chance.randint(-60, 7200))
        request = Request(
            event_type=event_type,
            source=chance.choice([EventSource.PLATFORM, EventSource.USER]),
            not_before=later,
            no_notice=chance.random() < 0.08,
            without_notice=chance.random() < 0.5,
            requested_by=chance.choice(["ann", "bob"]),
            **named,
        )
        self.ask("request", self.plane.request, request, dry_run=chance.random() < 0.05)

    def cancel(self) -> None:
        operation = self.some_operation()
        if operation is not None:
            whole = self.chance.random() < 0.4
            reference = str(operation.maintenance) if whole else operation.id
            self.ask("cancel", self.plane.cancel, reference, reason="not now")

    def postpone(self) -> None:
        operation = self.some_operation()
        if operation is not None:
            to = self.now + timedelta(seconds=self.chance.randint(-60, 7200))
            self.ask("postpone", self.plane.postpone, operation.id, to)

    def approve_for_guests(self) -> None:
        operation = self.some_operation()
        if operation is not None:
            self.ask("approve for", self.plane.approve_for_guests, [operation.id], by="ann")

    def hold(self) -> None:
        kind, name = self.chance.choice(list(HoldKind)), ""
        if kind is HoldKind.SCOPE:
            name = self.some(self.memory.all_scopes)
        elif kind is HoldKind.MACHINE:
            name = self.some(self.memory.all_machines)
        elif kind is HoldKind.HOST:
            name = self.chance.choice(self.hosts) if self.hosts else "h0"
        self.ask("hold", self.plane.hold, kind, name, reason="storm", by="bob")

    def release(self) -> None:
        if self.memory.all_holds:
            hold = self.chance.choice(self.memory.all_holds)
            self.ask("release", self.plane.release, hold.kind, hold.name)

    def resume(self) -> None:
        if self.memory.open:
            self.ask("resume", self.plane.resume, self.some(self.memory.open))

    def note(self) -> None:
        if self.reported:
            self.ask("note", self.plane.note, [self.chance.choice(self.reported)[0]], "ann")

    def change_fleet(self) -> None:
        """Somebody applies a fleet file, or takes machines out."""
        chance, memory = self.chance, self.memory
        if not memory.all_machines:
            return
        fate = chance.random()
        if fate < 0.3:
            self.ask("remove", self.plane.remove_machines, [self.some(memory.all_machines)])
            return
        sets = self.groups["availability_set"]
        if sets and fate < 0.7:  # a machine goes to another host, and perhaps to another scope
            old, new = chance.choice(sets), chance.choice(sets)
            if old["machines"]:
                machine = old["machines"].pop(chance.randrange(len(old["machines"])))
                host = chance.choice(self.hosts) if self.hosts else ""
                new["machines"].append({**machine, "host": host})
        prune, again = chance.random() < 0.3, chance.random() < 0.3
        self.ask("fleet", self.plane.apply_fleet, self.wanted(), prune=prune, again=again)

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
        self.writer.dying = False
        for hold in memory.all_holds:
            self.ask("release", self.plane.release, hold.kind, hold.name)
        for _ in range(30 + 4 * len(memory.all_machines)):
            if not memory.live:
                break
            self.now += timedelta(hours=3)
            while self.ask("advance", self.plane.advance) == ADVANCE_BATCH:
                pass
            while acts := self.ask("claim", self.plane.claim, "last", LEASE, 1000):
                for act in acts:
                    done = Outcome(succeeded=True)
                    self.ask("finish", self.plane.finish, act.operation, act.attempt, done)
        self.judge.kept()
        if memory.live:
            raise Wrong(f"never ended: {', '.join(itertools.islice(memory.live, 10))}")
        failed = [
            operation
            for operation in memory.all_operations.values()
            if operation.status is EventStatus.FAILED and not operation.seen_by
        ]
        items = attention.items(failed, memory.open.values(), (), {}, self.now)
        listed = {item.about for item in items}
        silent = [str(n) for n in memory.open if str(n) not in listed]
        silent += [operation.id for operation in failed if operation.id not in listed]
        if silent:
            raise Wrong(f"open, and not on the attention list: {', '.join(silent[:10])}")

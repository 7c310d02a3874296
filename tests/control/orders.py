"""The verbs that all stories of a control plane share: its orders, and what its store has."""

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import nullcontext
from typing import Any, TypeVar

import msgspec
import pytest

import patience
from builders import MINUTE
from control.conftest import done
from forewarn.clock import ManualClock
from forewarn.connectors.port import Outcome
from forewarn.control.plane import Plane
from forewarn.maintenance.alerts import Alert
from forewarn.maintenance.model import HoldKind, Maintenance, Operation
from forewarn.maintenance.planner import Request
from forewarn.maintenance.relays import BY
from forewarn.store.port import StoreUnavailable
from forewarn.store.queries import Reading
from stories import RUNNER, Told, elapsed, elapsed_at

T = TypeVar("T")


class PlaneStory(Told):
    """A story of a plane, its store, and the clock that its time comes from."""

    clock: ManualClock
    stored: Any
    """The store, which counts what it refuses where it may be away."""

    @property
    def plane(self) -> Plane:
        """The plane that orders go to."""
        raise NotImplementedError

    settles = False
    """All waits when a line is over."""

    def carry_out(self, row: str) -> None:
        super().carry_out(row)
        if self.settles:
            RUNNER.run(patience.settled())

    def look_up(self, question: Callable[[Reading], T]) -> T:
        with self.stored.read() as reading:
            return question(reading)

    def found(self, name: str) -> Operation:
        return self.look_up(lambda reading: reading.operations([name]))[name]

    def kept(self, number: str) -> Maintenance:
        return self.look_up(lambda reading: reading.maintenances([int(number)]))[int(number)]

    # Orders.

    def do(self, question: Callable[[Plane], "Future[T]"]) -> T:
        """Ask the plane, and return its answer."""
        return done(question(self.plane))

    def schedule(
        self, kind: str, *machines: str, by: str = "operator", away: str = "", **told: str
    ) -> None:
        """Ask for maintenance; the store may be away for it."""
        wanted: dict[str, Any] = {
            name: text == "yes" if text in {"yes", "no"} else text for name, text in told.items()
        }
        for name in wanted.keys() & {"not_before", "opens_at", "closes_at"}:
            wanted[name] = self.moment(wanted[name])
        wanted |= {"event_type": kind, "machines": machines, "requested_by": by}
        request = msgspec.convert(wanted, Request, strict=False)
        with pytest.raises(StoreUnavailable) if away else nullcontext():
            self.do(lambda plane: plane.request(request))

    def approve(self, operation: str) -> None:
        (event,) = self.found(operation).events
        done(self.plane.approve(event.scope, [event.id], by="web-0", address="10.0.0.10"))

    def operator_approve(self, *references: str, by: str = "operator") -> None:
        self.do(lambda plane: plane.approve_for_guests(references, by=by))

    def cancel(self, *references: str, reason: str = "", by: str = "") -> None:
        assert references
        self.do(lambda plane: plane.cancel(references, reason=reason, by=by))

    def hold(
        self, kind: str, name: str = "", reason: str = "", by: str = "operator", until: str = ""
    ) -> None:
        what, ends = HoldKind(kind), self.moment(until) if until else None
        self.do(lambda plane: plane.hold(what, name, reason=reason, by=by, until=ends))

    def release(self, kind: str, name: str = "") -> None:
        self.do(lambda plane: plane.release(HoldKind(kind), name))

    def remove(self, *machines: str) -> None:
        done(self.plane.remove_machines(machines))

    def claim(self, by: str, *expected: str, released: str = "") -> None:
        """Claim one task; it may be told which, or that there is none: `nothing`."""
        if released:
            self.release_claims()
        tasks = done(self.plane.claim(by, MINUTE, 1))
        found = [task.operation for task in tasks] or ["nothing"]
        assert found == [*expected] or (tasks and not expected)

    def release_claims(self) -> None:
        done(self.plane.release_claims())

    def finish(self, operation: str, how: str = "well", attempt: str = "1") -> None:
        done(self.plane.finish(operation, int(attempt), Outcome(succeeded=how == "well")))

    def advance(self) -> None:
        done(self.plane.advance())

    def pass_(self, span: str) -> None:
        self.clock.advance(elapsed(span))

    def jump(self, by: str) -> None:
        """The time of day is set, forward or back."""
        self.clock.jump(elapsed(by))

    def store(self, how: str) -> None:
        """The store is away, or blind to what machines ask, until it is back."""
        self.stored.away, self.stored.blind = how == "away", how == "blind"
        assert how != "back" or self.stored.refused

    # What must be so.

    def operation(
        self, name: str, status: str, because: str = "", doubt: str = "", **told: str
    ) -> None:
        found = self.found(name)
        assert because in found.outcome
        assert doubt in found.outcome_unknown
        self.compare(found, {"status": status, **told})

    def no_operation(self, name: str) -> None:
        assert not self.look_up(lambda reading: reading.operations([name]))

    def alerting(self) -> Iterable[Alert]:
        """The alerts of what the story is about."""
        raise NotImplementedError

    def alerts(self, *expected: str) -> None:
        assert [f"{one.kind} {one.about}" for one in self.alerting()] == [*expected]

    def holds(self, *expected: str) -> None:
        """Compare holds, who put each, and when: `host h0 relay 10s`."""
        by = {BY: "relay"}
        told = [
            f"{one.kind} {one.name} {by.get(one.by, one.by)} {elapsed_at(one.at).seconds}s"
            for one in self.look_up(lambda reading: reading.holds())
        ]
        assert told == [*expected]

    def where(self, *places: str) -> None:
        """Compare the hosts of machines: `web-0:h1`."""
        machines = self.look_up(lambda reading: reading.machines())
        expected = dict(place.split(":") for place in places)
        assert {name: machines[name].host for name in expected} == expected

    def not_on(self, host: str, *names: str) -> None:
        machines = self.look_up(lambda reading: reading.machines())
        assert host not in [machines[name].host for name in names]

    def host(self, name: str, state: str, because: str = "", **told: str) -> None:
        """Compare the drain of a host."""
        found = self.look_up(lambda reading: reading.drains())[name]
        assert because in found.reason
        self.compare(found, {"state": state, **told})

    def maintenance(self, number: str, state: str, because: str = "", **told: str) -> None:
        found = self.kept(number)
        assert because in found.reason
        self.compare(found, {"state": state, **told})

    def units(self, number: str, *expected: str) -> None:
        assert [f"{unit.name} {unit.state}" for unit in self.kept(number).units] == [*expected]

"""Random fleets, requests, approvals, cancels, claims and failures: the invariants always hold.

A failing run prints the steps that lead to it and a blob that replays it.
"""

from datetime import timedelta
from functools import partial
from typing import Any

import msgspec
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from builders import SCALE_SETS, Bench
from forewarn.maintenance import commands, fleet_file
from forewarn.maintenance.model import HoldKind, Operation, Refused, Sighting, StartCause
from forewarn.maintenance.turn_orders import MaintenanceOrder
from forewarn.maintenance.units import MaintenanceState, UnitState
from forewarn.vocabulary import AgentStatus, ErrorCode, EventSource, EventStatus, EventType

EXPECTED = frozenset(ErrorCode) - {ErrorCode.INTERNAL, ErrorCode.UNAVAILABLE}
"""What the rules may answer to a random request; anything else is a defect."""


@st.composite
def fleets(draw: st.DrawFn) -> fleet_file.Fleet:
    hosts = st.sampled_from(["", "h1", "h2", "h3"])
    auto = st.lists(st.sampled_from(["Reboot", "Redeploy"]), max_size=2)

    def group(kind: str, n: int) -> dict[str, Any]:
        shape: dict[str, Any] = {
            "name": f"{kind}{n}",
            "update_domains": draw(st.integers(1, 4)),
            "automatically_approve": draw(auto),
        }
        size = draw(st.integers(1, 6))
        if kind == "set":
            shape["machines"] = [{"name": f"s{n}-{i}", "host": draw(hosts)} for i in range(size)]
        elif kind == "scale":
            shape["machines"] = [{"index": i, "host": draw(hosts)} for i in range(size)]
            shape |= draw(st.sampled_from(SCALE_SETS))
        else:
            instances = [{"host": draw(hosts)} for _ in range(size)]
            shape["roles"] = [{"name": f"r{n}", "instances": instances}]
        return shape

    return msgspec.convert(
        {
            "availability_set": [group("set", n) for n in range(draw(st.integers(0, 2)))],
            "scale_set": [group("scale", n) for n in range(draw(st.integers(0, 2)))],
            "cloud_service": [group("shop", n) for n in range(draw(st.integers(0, 1)))],
            "machine": [{"name": "alone"}],
        },
        fleet_file.Fleet,
    )


class Rules(RuleBasedStateMachine):
    """Plays causes on a fleet in memory; `Bench.decide` checks the invariants after each."""

    @initialize(wanted=fleets())
    def begin(self, wanted: fleet_file.Fleet) -> None:
        self.bench = Bench(wanted)
        self.ended: dict[str, Operation] = {}

    def ask(self, event_type: EventType, *machines: str, **more: Any) -> None:
        try:
            self.bench.ask(event_type, *machines, **more)
        except Refused as refusal:
            assert refusal.code in EXPECTED
            assert refusal.message

    @rule(
        data=st.data(),
        event_type=st.sampled_from(EventType),
        source=st.sampled_from(EventSource),
        no_notice=st.sampled_from([False, False, False, True]),
        later=st.none() | st.integers(0, 3600),
    )
    def request_machines(
        self,
        data: st.DataObject,
        event_type: EventType,
        source: EventSource,
        no_notice: bool,
        later: int | None,
    ) -> None:
        names = sorted(m.name for m in self.bench.snapshot.machines.values())
        chosen = data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=4))
        not_before = None if later is None else self.bench.now + timedelta(seconds=later)
        self.ask(event_type, *chosen, source=source, no_notice=no_notice, not_before=not_before)

    @rule(data=st.data(), event_type=st.sampled_from(EventType))
    def request_scope(self, data: st.DataObject, event_type: EventType) -> None:
        self.ask(event_type, scope=data.draw(st.sampled_from(sorted(self.bench.snapshot.scopes))))

    @rule(host=st.sampled_from(["h1", "h2", "h3"]), event_type=st.sampled_from(EventType))
    def request_host(self, host: str, event_type: EventType) -> None:
        self.ask(event_type, host=host)

    def holds(self, data: st.DataObject) -> tuple[HoldKind, str]:
        kind = data.draw(st.sampled_from(HoldKind))
        names = {
            HoldKind.EVERYTHING: [""],
            HoldKind.SCOPE: sorted(self.bench.snapshot.scopes),
            HoldKind.HOST: ["h1", "h2"],
            HoldKind.MACHINE: sorted(self.bench.snapshot.machines),
        }
        return kind, data.draw(st.sampled_from(names[kind]))

    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        try:
            span = data.draw(st.none() | st.integers(1, 7200))
            until = None if span is None else self.bench.now + timedelta(seconds=span)
            self.bench.hold(*self.holds(data), until)
        except Refused as refusal:
            assert refusal.code is ErrorCode.CONFLICT

    @precondition(lambda self: self.bench.snapshot.holds)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        hold = data.draw(st.sampled_from(self.bench.snapshot.holds))
        self.bench.release(hold.kind, hold.name)

    @precondition(lambda self: self.bench.snapshot.operations)
    @rule(data=st.data(), seconds=st.integers(-10, 7200))
    def postpone(self, data: st.DataObject, seconds: int) -> None:
        chosen = data.draw(st.sampled_from(sorted(self.bench.snapshot.operations)))
        try:
            self.bench.postpone(chosen, to=self.bench.now + timedelta(seconds=seconds))
        except Refused as refusal:
            assert refusal.code in {ErrorCode.TOO_LATE, ErrorCode.NOTICE_TOO_SHORT}

    @precondition(lambda self: self.bench.snapshot.maintenances)
    @rule(data=st.data(), order=st.none() | st.sampled_from(MaintenanceOrder))
    def order_or_cancel(self, data: st.DataObject, order: MaintenanceOrder | None) -> None:
        number = data.draw(st.sampled_from(sorted(self.bench.snapshot.maintenances)))
        maintenance = self.bench.snapshot.maintenances[number]
        units = [unit.name for unit in maintenance.units]
        unit = data.draw(st.sampled_from(units)) if units else ""
        try:
            if order is None:
                self.bench.cancel(maintenance=number)
            else:
                self.bench.decide(commands.order_maintenance, number, order, unit, "ann")
        except Refused as refusal:
            conflicts = order is not None and not maintenance.state.over
            assert refusal.code is (ErrorCode.CONFLICT if conflicts else ErrorCode.TOO_LATE)

    @rule()
    def others_have_gone(self) -> None:
        """The service looks at what something else may have been in the way of."""
        self.bench.take_turns()

    @rule(seconds=st.sampled_from([0, 0.4, 1, 29.5, 30, 299, 600, 900, 901, 3600]))
    def time_passes(self, seconds: float) -> None:
        self.bench.let_pass(timedelta(seconds=seconds))

    @precondition(lambda self: self.bench.snapshot.operations)
    @rule(data=st.data(), own=st.booleans(), together=st.booleans())
    def approve(self, data: st.DataObject, own: bool, together: bool) -> None:
        events = [e for o in self.bench.snapshot.operations.values() for e in o.events]
        count = 3 if together else 1
        chosen = data.draw(st.lists(st.sampled_from(events), min_size=1, max_size=count))
        scope = chosen[0].scope if own else None
        before = self.bench.snapshot
        try:
            decision = self.bench.approve(*(event.id for event in chosen), scope=scope)
        except Refused as refusal:
            queued = any(not event.published and not event.silent for event in chosen)
            if refusal.code is ErrorCode.CONFLICT:
                assert queued
            else:
                assert refusal.code is ErrorCode.NOT_FOUND
                assert own
                assert queued or len({event.scope for event in chosen}) > 1
            assert self.bench.snapshot is before
        else:
            assert not own or {event.scope for event in chosen} == {scope}
            for operation in decision.operations:
                chosen_ids = {event.id for event in chosen}
                assert operation.status.over or all(
                    event.approval is not None or operation.start_cause is not None
                    for event in operation.events
                    if event.id in chosen_ids
                )

    @precondition(lambda self: self.bench.snapshot.operations)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        chosen = data.draw(
            st.lists(
                st.sampled_from(sorted(self.bench.snapshot.operations)),
                min_size=1, max_size=3, unique=True,
            )
        )  # fmt: skip
        statuses = {self.bench.operation(o).status for o in chosen}
        try:
            self.bench.cancel(*chosen)
        except Refused as refusal:
            assert refusal.code is ErrorCode.TOO_LATE
            assert not statuses <= {EventStatus.QUEUED, EventStatus.SCHEDULED}

    def started(self) -> list[str]:
        operations = self.bench.snapshot.operations.values()
        return sorted(o.id for o in operations if o.status is EventStatus.STARTED)

    @precondition(lambda self: self.started())
    @rule(data=st.data(), stale=st.booleans(), succeeded=st.booleans())
    def finish(self, data: st.DataObject, stale: bool, succeeded: bool) -> None:
        operation_id = data.draw(st.sampled_from(self.started()))
        if not stale:
            self.bench.finish(operation_id, succeeded=succeeded, message="done")
            return
        report = partial(
            commands.finish_task,
            operation_id=operation_id,
            attempt=self.bench.operation(operation_id).attempt + 1,
            succeeded=succeeded,
            message="",
        )
        try:
            self.bench.decide(report)
        except Refused as refusal:
            assert refusal.code is ErrorCode.STALE
        else:
            raise AssertionError(note("a stale outcome was taken"))

    @precondition(lambda self: self.bench.snapshot.operations)
    @rule(data=st.data(), agent=st.none() | st.sampled_from(AgentStatus))
    def poll(self, data: st.DataObject, agent: AgentStatus | None) -> None:
        chosen = data.draw(st.sampled_from(sorted(self.bench.snapshot.operations)))
        for name in self.bench.operation(chosen).machines:
            self.bench.sightings[name.lower()] = Sighting(
                asked_at=self.bench.now, version="2020-07-01", agent=agent
            )
        self.bench.decide(commands.record_returns, (chosen,))

    def recover(self) -> None:
        """Everybody asks and is back, and failures are acknowledged."""
        self.bench.now += timedelta(seconds=1)
        for operation in list(self.bench.snapshot.operations.values()):
            for name in operation.awaited:
                self.bench.sightings[name.lower()] = Sighting(
                    asked_at=self.bench.now, version="2020-07-01", agent=AgentStatus.BACK
                )
            self.bench.decide(commands.record_returns, (operation.id,))
            if self.bench.operation(operation.id).status is EventStatus.FAILED:
                rule = commands.acknowledge_failures
                self.bench.decide(rule, (operation.id,), by="ann", even_if_down=True)

    @precondition(lambda self: self.started())
    @rule(data=st.data())
    def claim(self, data: st.DataObject) -> None:
        operation_id = data.draw(st.sampled_from(self.started()))
        held = self.bench.operation(operation_id).lease_until
        try:
            self.bench.claim(operation_id)
        except Refused as refusal:
            assert refusal.code is ErrorCode.CONFLICT
            assert held is not None
            assert held > self.bench.now

    @invariant()
    def what_has_ended_never_changes(self) -> None:
        for operation in self.bench.snapshot.operations.values():
            if not operation.live:
                assert self.ended.setdefault(operation.id, operation) == operation

    @invariant()
    def what_is_ready_starts_or_waits_for_something_that_is_down(self) -> None:
        for operation in self.bench.snapshot.operations.values():
            if operation.gives_way:
                assert operation.held_at is not None
            elif operation.status is EventStatus.QUEUED:
                ahead = self.bench.operation(operation.waits_for)
                assert ahead.live
            if operation.status is not EventStatus.SCHEDULED:
                continue
            if operation.held_at is not None:
                assert not operation.waits_for
                continue
            if operation.waits_for:
                assert self.bench.operation(operation.waits_for).down
                continue
            assert not operation.approved
            due = operation.wakeup_at
            assert due == operation.not_before

    @invariant()
    def nothing_started_without_a_reason(self) -> None:
        for operation in self.bench.snapshot.operations.values():
            if operation.start_cause is StartCause.NOTICE_OVER:
                assert operation.started_at is not None
                assert operation.started_at >= operation.not_before
            if operation.start_cause is StartCause.NO_NOTICE:
                assert operation.started_at == operation.announced_at

    @invariant()
    def a_unit_under_way_has_an_operation_that_goes_on(self) -> None:
        operations = self.bench.snapshot.operations
        for number, maintenance in self.bench.snapshot.maintenances.items():
            running = {
                f"{number}.{unit.operation}": index
                for index, unit in enumerate(maintenance.units)
                if unit.state is UnitState.RUNNING
            }
            for name in running:
                assert operations[name].live
                assert operations[name].status is not EventStatus.FAILED
            if maintenance.units:
                its = [o for o in operations.values() if o.maintenance == number]
                going = {o.id: o.unit for o in its if not o.status.over}
                assert going.items() <= running.items()
            if maintenance.state is MaintenanceState.DONE:
                assert all(unit.state.over for unit in maintenance.units)

    @invariant()
    def what_is_halted_or_stopped_starts_nothing(self) -> None:
        ended = {MaintenanceState.HALTED, MaintenanceState.STOPPED}
        for operation in self.bench.snapshot.operations.values():
            maintenance = self.bench.snapshot.maintenances[operation.maintenance]
            if operation.unstarted and maintenance.state in ended:
                raise AssertionError(note(f"{operation.id} may start: {maintenance.reason}"))

    def teardown(self) -> None:
        """Whatever happened: released, given time and good outcomes, everything ends."""
        for hold in self.bench.snapshot.holds:
            self.bench.release(hold.kind, hold.name)
        for _ in range(len(self.bench.snapshot.machines) * 3 + 10):
            if not self.going():
                break
            for number, maintenance in sorted(self.bench.snapshot.maintenances.items()):
                # One whose machines do not come back meanwhile halts its maintenance, too.
                if maintenance.state in {MaintenanceState.PAUSED, MaintenanceState.HALTED}:
                    resume = MaintenanceOrder.RESUME
                    self.bench.decide(commands.order_maintenance, number, resume, "", "ann")
            self.bench.take_turns()
            self.bench.let_pass(timedelta(days=400))
            for operation_id in self.started():
                self.bench.finish(operation_id)
            self.recover()
        assert not self.going()

    def going(self) -> list[str]:
        live = [o.id for o in self.bench.snapshot.operations.values() if o.live]
        return live + [str(n) for n, m in self.bench.snapshot.maintenances.items() if m.open]


TestRules = Rules.TestCase
TestRules.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

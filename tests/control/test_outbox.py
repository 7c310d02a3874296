"""Replicas on one store: what one commits, the others' memory goes through in the same order."""

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

import msgspec
import pytest

import patience
from builders import FLEET, NOW, mint
from forewarn.clock import ManualClock, SystemClock
from forewarn.connectors.port import Outcome
from forewarn.control import accounts, maintenances, outbox
from forewarn.control.accounts import OperatorRequest
from forewarn.control.changefeed import Changefeed, Reached
from forewarn.control.outbox import Follower, FollowerThread, difference, state_of
from forewarn.control.plane import Plane
from forewarn.control.unit_of_work import UnitOfWork
from forewarn.control.writer import ThreadWriter, Writer
from forewarn.maintenance import news
from forewarn.maintenance.accounts import Token
from forewarn.maintenance.model import (
    Changes,
    HoldKind,
    Machine,
    Operation,
    Policy,
    Queueing,
    Refused,
    Scope,
)
from forewarn.maintenance.planner import Request
from forewarn.maintenance.relays import new_token
from forewarn.maintenance.turn_orders import MaintenanceOrder
from forewarn.maintenance.units import MaintenanceState
from forewarn.maintenance.world import LiveState, World
from forewarn.store.port import ChangeRecord, OutcomeUnknown, StoreError, StoreUnavailable
from forewarn.store.queries import Reading
from forewarn.store.sql import Transaction
from forewarn.store.sqlite import InMemoryStore
from forewarn.vocabulary import AccessRole, ErrorCode, EventStatus, EventType
from store.shared import SharedStore, lost_tail
from store.wrapped import Wrapped


class Memory:
    """What a process keeps: every change applied to what it was filled with."""

    def __init__(self) -> None:
        self.scopes: dict[str, Scope] = {}
        self.machines: dict[str, Machine] = {}
        self.operations: dict[str, Operation] = {}
        self.told: list[Changes] = []

    def learn(self, changes: Changes) -> None:
        self.told.append(changes)
        self.scopes |= {scope.key: scope for scope in changes.scopes}
        self.machines |= {machine.key: machine for machine in changes.machines}
        for name in changes.removed_scopes:
            self.scopes.pop(name, None)
        for name in changes.removed_machines:
            self.machines.pop(name, None)
        for operation in changes.operations:
            self.operations.pop(operation.id, None)
            if operation.live:
                self.operations[operation.id] = operation


def vars_of(world: World) -> dict[str, object]:
    """The tables and indexes of a World."""
    return {name: value for name, value in vars(world).items() if isinstance(value, dict)}


class ReplicaProcess:
    """One replica, without guests."""

    def __init__(self, store: SharedStore, name: str, *, threaded: bool = False) -> None:
        self.store = store
        self.feed = Changefeed()
        self.memory = Memory()
        self.feed.subscribe(self.memory.learn)
        clock = SystemClock() if threaded else ManualClock(NOW)
        tokens = itertools.count()
        self.follower = Follower(
            store,
            self.feed,
            clock,
            replica=name,
            mint=lambda: f"{name}-{next(tokens)}",
        )
        self.writer = (
            ThreadWriter(store, clock, self.feed, follower=self.follower)
            if threaded
            else Writer(store, clock, self.feed, self.follower)
        )
        self.plane = Plane(self.writer, mint(name), Policy(queue=Queueing.START))

    def ask(self, *machines: str) -> str:
        request = Request(event_type=EventType.REBOOT, machines=machines)
        return self.plane.request(request).result(patience.SECONDS).operations[0].id

    def is_whole(self) -> None:
        """Compare memory with the store: the loop's, and the writer's World."""
        world = self.plane.order(lambda unit, _: unit.world).result(patience.SECONDS)
        with self.store.read() as reading:
            assert vars_of(world) == vars_of(World(state_of(reading)))
            assert self.memory.scopes == reading.scopes()
            assert self.memory.machines == reading.machines()
            assert self.memory.operations == reading.live_operations()
            assert self.follower.applied == reading.position()


@pytest.fixture
def store() -> SharedStore:
    return SharedStore()


@pytest.fixture
def pair(store: SharedStore) -> tuple[ReplicaProcess, ReplicaProcess]:
    """Two replicas, the first of which has applied a fleet."""
    first, second = ReplicaProcess(store, "a"), ReplicaProcess(store, "b")
    first.plane.apply_fleet(FLEET).result()
    return first, second


Pair = tuple[ReplicaProcess, ReplicaProcess]


def test_a_replica_learns_what_another_committed(pair: Pair) -> None:
    first, second = pair
    first.ask("web-0")
    assert second.memory.told == []
    second.follower.look()
    second.is_whole()
    assert second.memory.told == first.memory.told


def test_a_replica_that_writes_first_learns_what_was_committed_before(pair: Pair) -> None:
    first, second = pair
    second.ask("web-0")
    second.is_whole()
    first.ask("web-1")
    first.is_whole()
    assert len(first.memory.told) == 3
    second.follower.look()
    assert second.memory.told == first.memory.told


def test_what_a_transaction_saved_is_one_row_with_the_replicas_name(pair: Pair) -> None:
    first, _ = pair
    with first.store.read() as reading:
        (row,) = reading.changes_after(0, 10)
    assert (row.sequence, row.replica, row.format) == (1, "a", outbox.JSON)
    assert msgspec.json.decode(row.body, type=list[Changes]) == first.memory.told


def test_a_transaction_that_saved_nothing_has_no_row(pair: Pair) -> None:
    first, _ = pair
    with first.store.read() as reading:
        before = reading.position()
    first.plane.put_setting("x", "y").result()
    with first.store.read() as reading:
        assert reading.position() == before


def test_what_is_too_much_for_a_row_is_read_from_the_store(pair: Pair) -> None:
    first, second = pair
    many = outbox.MAX_VALUES + 1
    second.follower.look()
    with first.store.read() as reading:
        machine = reading.machines()["web-0"]
    machines = [
        msgspec.structs.replace(machine, name=f"m{n}", address="", vm_id=str(n))
        for n in range(many)
    ]
    saved = [Changes(machines=tuple(machines), removed_machines=("web-1",))]
    with first.store.write() as transaction:
        transaction.save(saved[0])
        first.follower.append(transaction, saved, NOW)
    first.ask("m0")
    second.follower.look()
    second.is_whole()
    first.is_whole()
    assert len(second.memory.machines) > many


def test_a_row_of_a_later_release_is_read_from_the_store(pair: Pair) -> None:
    first, second = pair
    with first.store.write() as transaction:
        scope = transaction.scopes()["web"]
        transaction.save(Changes(scopes=(msgspec.structs.replace(scope, incarnation=9),)))
        change = ChangeRecord(token="later", replica="c", at=NOW, format=7, body=b"{")
        transaction.append(change)
    second.follower.look()
    second.is_whole()
    assert second.memory.scopes["web"].incarnation == 9


def test_a_replica_that_stood_still_until_rows_were_trimmed_reads_the_store(pair: Pair) -> None:
    first, second = pair
    second.follower.look()
    second.is_whole()
    for machine in ("web-0", "web-1", "web-2", "bastion"):
        first.ask(machine)
    with first.store.write() as transaction:
        assert transaction.trim(NOW.replace(year=NOW.year + 1), 3) == 3
    second.follower.look()
    second.is_whole()


def test_more_rows_than_are_read_at_once_are_all_read_before_the_answer(pair: Pair) -> None:
    first, second = pair
    for number in range(outbox.MAX_ROWS + 3):
        with first.store.write() as transaction:
            saved = [Changes(revived=(str(number),))]
            first.follower.append(transaction, saved, NOW)
    second.ask("web-0")
    assert second.follower.applied.sequence == outbox.MAX_ROWS + 5
    assert [c.revived[0] for c in second.memory.told[1:-1]] == [
        str(number) for number in range(outbox.MAX_ROWS + 3)
    ]


class Unsure(Wrapped):
    """A real store that fails at the end of a transaction, before its commit or after it."""

    before: StoreError | None = None
    after: StoreError | None = None

    @contextmanager
    def write(self) -> Iterator[Transaction]:
        with super().write() as transaction:
            yield transaction
            if self.before is not None:
                raise self.before
        if self.after is not None:
            raise self.after


@pytest.mark.parametrize("shared", [False, True])
def test_a_commit_that_fails_or_whose_answer_is_lost_leaves_the_world_as_the_store_is(
    shared: bool,
) -> None:
    store = Unsure(SharedStore() if shared else InMemoryStore())
    only = ReplicaProcess(store, "a")  # type: ignore[arg-type]
    only.plane.apply_fleet(FLEET).result()
    only.ask("web-0")
    store.before = StoreUnavailable("the disk is full")
    with pytest.raises(StoreUnavailable):
        only.plane.cancel(["1"], reason="").result()
    store.before, store.after = None, OutcomeUnknown("the connection is lost")
    with pytest.raises(OutcomeUnknown):
        only.plane.cancel(["1"], reason="").result()
    store.after = None
    world = only.plane.order(lambda unit, _: unit.world).result()
    with store.read() as reading:
        assert vars_of(world) == vars_of(World(state_of(reading)))
        assert reading.live_operations() == {}


def test_a_job_that_breaks_an_index_leaves_the_world_as_the_store_is(pair: Pair) -> None:
    first, _ = pair
    gone = first.ask("web-0")

    def broken(unit: UnitOfWork, _: object) -> None:
        unit.world.of_event.clear()
        del unit.world.operations[gone]

    with pytest.raises(KeyError):
        first.plane.order(broken).result()
    first.is_whole()
    first.plane.cancel([gone], reason="").result()
    first.is_whole()


# The store loses its last changes.


def test_where_the_store_lost_its_last_changes_memory_is_read_again(pair: Pair) -> None:
    first, second = pair
    first.ask("web-0")
    with lost_tail(first.store):
        gone = first.ask("web-1")
    first.follower.look()
    first.is_whole()
    ended = [o for o in first.memory.told[-1].operations if o.id == gone]
    assert [o.status for o in ended] == [EventStatus.CANCELED]
    assert first.follower.lost is not None
    assert first.follower.lost.changes == 1
    second.follower.look()
    second.is_whole()


def test_a_loss_is_news_and_no_number_of_news_is_given_again(pair: Pair) -> None:
    first, second = pair
    reached: list[Reached] = []
    first.feed.tell(reached.append)
    first.ask("web-0")
    with lost_tail(first.store):
        first.ask("web-1")
        first.ask("bastion")
    last = reached[-1].sequence
    for replica in (first, second):
        replica.follower.look()
    assert [one.lost for one in reached] == [False] * 3 + [True]
    with first.store.read() as reading:
        found = reading.news_after(0, 10)
        assert [row.sequence for row in found] == [1, 2, 3 + outbox.SKIPPED_CHANGES]
        assert found[-1].sequence == reached[-1].sequence > last
    (lost,) = news.decode(found[-1].items)
    assert (lost.type, lost.data.count) == (news.NewsType.CHANGES_LOST, 2)
    assert second.ask("web-1") not in {"1.1", "2.1", "3.1"}
    with first.store.read() as reading:
        assert reading.position().sequence == found[-1].sequence + 1


def test_incarnations_are_raised_once_whoever_notices(pair: Pair) -> None:
    first, second = pair
    first.ask("web-0")
    first.plane.remove_machines(["web-2"]).result()
    with lost_tail(first.store):
        first.ask("web-1")
        second.follower.look()
    for replica in (second, first):
        replica.follower.look()
    for replica in pair:
        replica.follower.look()
        replica.is_whole()
        assert replica.memory.scopes["web"].incarnation == 1 + outbox.RAISE_BY
        assert replica.follower.lost == second.follower.lost
    with first.store.read() as reading:
        assert reading.tombstones()["web-2"].incarnation == 1 + outbox.RAISE_BY
    with lost_tail(first.store):
        second.ask("web-1")
    second.follower.look()
    assert second.memory.scopes["web"].incarnation == 1 + 2 * outbox.RAISE_BY


def test_what_may_have_been_carried_out_in_what_was_lost_counts_as_begun_elsewhere(
    pair: Pair,
) -> None:
    first, second = pair
    lease = timedelta(minutes=1)
    started = Request(event_type=EventType.REBOOT, machines=("web-0",), no_notice=True)
    first.plane.request(started).result()
    scheduled, over = first.ask("bastion"), first.ask("batch_0")
    events = {one: first.memory.operations[one].events[0] for one in (scheduled, over)}

    def approve(replica: ReplicaProcess, *operations: str) -> None:
        for one in operations:
            event = events[one]
            replica.plane.approve(event.scope, [event.id], by="x", address="").result()

    with lost_tail(first.store):
        (lost,) = first.plane.claim("a", lease, 10).result()
        approve(first, scheduled, over)
        assert first.memory.operations[scheduled].status is EventStatus.STARTED
        first.plane.claim("a", lease, 10).result()
        first.plane.finish(over, 1, Outcome(succeeded=True)).result()
        assert over not in first.memory.operations
    first.follower.look()
    assert first.memory.operations[over].status is EventStatus.SCHEDULED
    (task,) = second.plane.claim("b", lease, 10).result()
    assert task.operation == lost.operation
    assert task.attempt > lost.attempt + 1
    assert task.claimed_elsewhere == (outbox.NOBODY,)
    approve(second, scheduled, over)
    tasks = second.plane.claim("a", lease, 10).result()
    assert {task.operation for task in tasks} == {scheduled, over}
    assert {task.claimed_elsewhere for task in tasks} == {(outbox.NOBODY,)}
    with pytest.raises(Refused):
        first.plane.finish(lost.operation, lost.attempt, Outcome(succeeded=True)).result()


def test_what_the_second_replica_to_notice_had_begun_counts_as_begun_elsewhere_too(
    pair: Pair,
) -> None:
    first, second = pair
    reached: list[Reached] = []
    second.feed.tell(reached.append)
    scheduled = first.ask("bastion")
    (event,) = first.memory.operations[scheduled].events
    with lost_tail(first.store):
        first.ask("web-0")
        second.plane.approve("bastion", [event.id], by="bastion", address="").result()
        (lost,) = second.plane.claim("b", timedelta(minutes=1), 10).result()
        assert lost.operation == scheduled
    first.follower.look()
    with pytest.raises(StoreUnavailable):  # its memory is of what is gone
        second.ask("web-1")
    second.follower.look()
    assert reached[-1].lost
    second.is_whole()
    first.follower.look()
    first.plane.approve("bastion", [event.id], by="bastion", address="").result()
    (task,) = first.plane.claim("a", timedelta(minutes=1), 10).result()
    assert (task.operation, task.claimed_elsewhere) == (scheduled, (outbox.NOBODY,))


def test_a_maintenance_whose_next_operation_was_lost_is_halted(pair: Pair) -> None:
    first, second = pair
    frozen = Request(event_type=EventType.FREEZE, scope="web")
    plan = first.plane.request(frozen).result()

    def carry_out(name: str) -> int:
        events = [event.id for event in first.memory.operations[name].events]
        first.plane.approve("web", events, by="web-0", address="").result()
        (task,) = first.plane.claim("a", timedelta(minutes=1), 10).result()
        return task.attempt

    attempt = carry_out("1.1")
    second.follower.look()
    with lost_tail(first.store):
        first.plane.finish("1.1", attempt, Outcome(succeeded=True)).result()
        carry_out("1.2")
        second.follower.look()
    for replica in pair:
        replica.follower.look()
    with first.store.read() as reading:
        (maintenance,) = reading.maintenances([plan.maintenance.number]).values()
        assert maintenance.state is MaintenanceState.HALTED
        assert maintenance.reason == outbox.LOST_OPERATION
        assert maintenance.announced == 1 + outbox.SKIPPED_NUMBERS
    (task,) = second.plane.claim("b", timedelta(minutes=1), 10).result()
    second.plane.finish("1.1", task.attempt, Outcome(succeeded=True)).result()
    assert second.memory.operations == {}
    resume = MaintenanceOrder.RESUME
    (resumed,) = second.plane.order(maintenances.order, 1, resume, "", by="ann").result()
    assert resumed.id not in {"1.1", "1.2"}


def test_a_lost_change_is_noticed_though_another_has_its_number(pair: Pair) -> None:
    first, second = pair
    with lost_tail(first.store):
        first.ask("web-1")
    second.ask("web-0")
    assert second.follower.applied.sequence == first.follower.applied.sequence
    first.follower.look()
    first.is_whole()
    assert first.follower.lost is not None


def test_memory_is_known_to_be_whole_though_the_writer_is_in_a_transaction() -> None:
    clock = ManualClock(NOW)
    follower = Follower(SharedStore(), Changefeed(), clock)
    clock.advance(timedelta(minutes=1))
    with follower._lock:
        assert follower.cut_off
        follower.look()
        assert not follower.cut_off


class CrowdedStore(SharedStore):
    """A store whose next transactions wait for another replica's."""

    def __init__(self) -> None:
        super().__init__()
        self.turn, self.waiting = threading.Event(), threading.Event()
        self.turn.set()

    @contextmanager
    def write(self) -> Iterator[Transaction]:
        self.waiting.set()
        assert self.turn.wait(patience.SECONDS)
        with super().write() as transaction:
            yield transaction


def test_what_others_have_committed_is_read_while_the_writer_waits_for_its_turn() -> None:
    store = CrowdedStore()
    first, second = ReplicaProcess(store, "a"), ReplicaProcess(store, "b")
    first.plane.apply_fleet(FLEET).result()
    store.turn.clear()
    store.waiting.clear()
    asking = threading.Thread(target=second.ask, args=("web-0",))
    asking.start()
    assert store.waiting.wait(patience.SECONDS)
    second.follower.look()
    was_read = not store.turn.is_set() and second.memory.machines.keys()
    store.turn.set()
    asking.join()
    assert "web-0" in (was_read or ())
    second.is_whole()


def test_nothing_is_decided_on_a_memory_that_the_store_has_lost(pair: Pair) -> None:
    first, _ = pair
    with lost_tail(first.store):
        first.ask("web-1")
    with pytest.raises(StoreUnavailable):
        first.ask("web-2")
    first.ask("web-2")  # it was read again meanwhile
    first.is_whole()


def test_a_row_that_cannot_be_read_ends_the_service_and_runs_no_job_twice(pair: Pair) -> None:
    first, second = pair
    with first.store.write() as transaction:
        form = outbox.JSON
        transaction.append(ChangeRecord(token="x", replica="c", at=NOW, format=form, body=b"{"))
    with pytest.raises(msgspec.DecodeError):
        second.ask("web-0")
    assert isinstance(second.feed.ended.exception(0), msgspec.DecodeError)
    with first.store.read() as reading:
        assert reading.live_operations() == {}


# With real threads.


def test_replicas_that_write_at_once_go_through_the_same_changes(store: SharedStore) -> None:
    replicas = [ReplicaProcess(store, name, threaded=True) for name in "abc"]
    replicas[0].plane.apply_fleet(FLEET).result(patience.SECONDS)
    threads = [
        FollowerThread(each.follower, store, store.join(each.follower.replica), "1")
        for each in replicas
    ]
    for thread in threads:
        thread.start()

    def write(replica: ReplicaProcess, machine: str) -> None:
        for _ in range(40):
            replica.plane.cancel([replica.ask(machine)], reason="").result(patience.SECONDS)

    machines = ("web-0", "web-1", "web-2")
    writing = [
        threading.Thread(target=write, args=pair) for pair in zip(replicas, machines, strict=True)
    ]
    for each in writing:
        each.start()
    for each in writing:
        each.join()
    for replica in replicas:
        replica.follower.look()
        replica.is_whole()
        assert replica.memory.told == replicas[0].memory.told
        assert not replica.feed.ended.done()
    for thread in threads:
        thread.close()
        assert thread.ended.result(patience.SECONDS) is None
    for replica in replicas:
        replica.writer.close()


def test_a_replica_hears_of_a_change_without_being_asked(store: InMemoryStore) -> None:
    first, second = (ReplicaProcess(store, name, threaded=True) for name in "ab")
    heard = threading.Event()
    second.feed.subscribe(lambda _: heard.set())
    thread = FollowerThread(second.follower, store, store.join("b"), "1")
    thread.start()
    first.plane.apply_fleet(FLEET).result(patience.SECONDS)
    assert heard.wait(patience.SECONDS)
    thread.close()
    store.join("b").close()  # the name is free again
    for each in (first, second):
        each.writer.close()


class Losing(SharedStore):
    """A shared store that loses its next answers."""

    def __init__(self, *errors: StoreError) -> None:
        super().__init__()
        self.errors = list(errors)

    @contextmanager
    def read(self) -> Iterator[Reading]:
        with super().read() as reading:
            yield reading
        if self.errors:
            raise self.errors.pop(0)


def test_the_thread_outlives_a_store_that_is_away_or_loses_its_answers() -> None:
    store = Losing(StoreUnavailable("away"), OutcomeUnknown("no answer"))
    replica = ReplicaProcess(store, "a", threaded=True)
    heard = threading.Event()
    replica.feed.subscribe(lambda _: heard.set())
    thread = FollowerThread(replica.follower, store, store.join("a"), "1")
    thread.start()
    writer = ReplicaProcess(store, "b", threaded=True)
    writer.plane.apply_fleet(FLEET).result(patience.SECONDS)
    assert heard.wait(patience.SECONDS)
    assert store.errors == []
    thread.close()
    assert thread.ended.result(patience.SECONDS) is None
    for each in (replica, writer):
        each.writer.close()


@pytest.mark.parametrize("again", [None, "another digest"])
def test_a_token_that_another_replica_revoked_or_replaced_changes_nothing(
    pair: Pair, again: str | None
) -> None:
    def token(digest: str) -> Token:
        return Token(
            name="ann",
            role=AccessRole.OPERATOR,
            digest=digest,
            created_by="root",
            created_at=NOW,
            expires_at=None,
        )

    first, second = pair
    made = first.plane.order(accounts.create_token, token("d")).result()
    ann = OperatorRequest(by="ann", role=made.role, address="", action="", request="", token=made)
    plane = first.plane.audited(ann, lambda _: "")
    plane.hold(HoldKind.EVERYTHING, "", reason="", by="ann").result()
    second.plane.order(accounts.revoke_tokens, ["ann"]).result()
    if again is not None:
        second.plane.order(accounts.create_token, token(again)).result()
    with pytest.raises(Refused) as caught:  # the first has not heard of it yet
        plane.release(HoldKind.EVERYTHING, "").result()
    assert caught.value.code is ErrorCode.UNAUTHORIZED
    first.is_whole()


def test_what_was_read_again_tells_which_tokens_are_valid() -> None:
    def token(digest: str, used_at: datetime | None = None) -> Token:
        return msgspec.structs.replace(new_token("h1", digest, by="ann", at=NOW), used_at=used_at)

    def known(*tokens: Token) -> LiveState:
        return LiveState(tokens={each.name: each for each in tokens})

    before = known(token("a"), token("b"), token("c"))
    after = known(token("b", NOW), token("c"), token("d"))
    changes = difference(before, after, {})
    assert changes.tokens == (token("b", NOW), token("d"))
    assert set(changes.revoked_tokens) >= {token("a").name}
    assert token("c").name not in changes.revoked_tokens


def test_who_reads_a_shared_store_does_not_wait_for_the_writer() -> None:
    store = SharedStore()
    with store.write(), store.read() as reading:  # a follower reads with the World in hand
        assert reading.position().sequence == 0

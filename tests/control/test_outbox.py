"""Replicas on one store: what one commits, the others' memory goes through in the same order."""

import itertools
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

import patience
from builders import FLEET, NOW, maintenance, mint
from forewarn.clock import ManualClock, SystemClock
from forewarn.connectors.port import Outcome
from forewarn.control import accounts, maintenances, outbox
from forewarn.control.accounts import OperatorRequest
from forewarn.control.changefeed import Changefeed, Reached
from forewarn.control.outbox import Follower, FollowerThread, difference, state_of
from forewarn.control.plane import Plane, Stepped
from forewarn.control.unit_of_work import UnitOfWork
from forewarn.control.writer import ThreadWriter, Writer
from forewarn.maintenance import news
from forewarn.maintenance.accounts import Token
from forewarn.maintenance.host_plan import HostSurvey
from forewarn.maintenance.model import (
    Changes,
    Drain,
    GuestFacts,
    HoldKind,
    HostFacts,
    HostState,
    Policy,
    Queueing,
)
from forewarn.maintenance.planner import Request
from forewarn.maintenance.relays import new_token
from forewarn.maintenance.turn_orders import MaintenanceOrder
from forewarn.maintenance.world import LiveState, World
from forewarn.store.port import ChangeRecord, OutcomeUnknown, StoreError, StoreUnavailable
from forewarn.store.queries import Reading
from forewarn.store.sql import Transaction
from forewarn.store.sqlite import InMemoryStore
from forewarn.vocabulary import AccessRole, EventType
from store.shared import SharedStore, lost_tail
from store.wrapped import Wrapped
from stories import Told, elapsed, stories_beside


def vars_of(world: World) -> dict[str, object]:
    """The tables and indexes of a World."""
    return {name: value for name, value in vars(world).items() if isinstance(value, dict)}


class ReplicaProcess:
    """One replica, without guests."""

    def __init__(self, store: SharedStore, name: str, *, threaded: bool = False) -> None:
        self.store = store
        self.feed = Changefeed()
        self.memory = World()
        """What the loop has: every change applied to nothing."""
        self.told: list[Changes] = []
        self.feed.subscribe(self.learn)
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

    def learn(self, changes: Changes) -> None:
        self.told.append(changes)
        self.memory.take(changes)
        self.memory.settle()

    def ask(self, *machines: str) -> str:
        request = Request(event_type=EventType.REBOOT, machines=machines)
        return self.plane.request(request).result(patience.SECONDS).operations[0].id

    def is_whole(self) -> None:
        """Compare memory with the store: the loop's, and the writer's World."""
        world = self.plane.order(lambda unit, _: unit.world).result(patience.SECONDS)
        with self.store.read() as reading:
            stored = World(state_of(reading))
            assert vars_of(world) == vars_of(stored)
            for table in outbox.KEPT:
                assert getattr(self.memory, table) == getattr(stored, table)
            assert self.follower.applied == reading.position()


class OutboxStory(Told):
    """Replicas a and b on one store; a has applied a fleet."""

    def __init__(self) -> None:
        self.store = SharedStore()
        self.replicas = {name: ReplicaProcess(self.store, name) for name in "ab"}
        self.told_of: dict[str, list[Reached]] = {name: [] for name in "ab"}
        for name, each in self.replicas.items():
            each.feed.tell(self.told_of[name].append)
        self.plane("a").apply_fleet(FLEET).result()
        self.told_of["a"].clear()
        self.tail = ExitStack()
        self.used: dict[str, OperatorRequest] = {}

    def plane(self, name: str) -> Plane:
        return self.replicas[name].plane

    def request(self, name: str, away: str = "", **wanted: Any) -> None:
        asked = self.plane(name).request(Request(**{"event_type": EventType.REBOOT} | wanted))
        with pytest.raises(StoreUnavailable) if away else nullcontext():
            asked.result()

    def ask(self, name: str, *machines: str, away: str = "") -> None:
        self.request(name, away, machines=machines)

    def strike(self, name: str, *machines: str) -> None:
        self.request(name, machines=machines, no_notice=True)

    def freeze(self, name: str, scope: str) -> None:
        self.request(name, event_type=EventType.FREEZE, scope=scope)

    def approve(self, name: str, operation: str) -> None:
        with self.store.read() as reading:
            (event,) = reading.operations([operation])[operation].events
        self.plane(name).approve(event.scope, [event.id], by="x", address="").result()

    def claim(self, name: str, *expected: str) -> None:
        """What is claimed, its attempt, and by whom else it may have been begun."""
        tasks = self.plane(name).claim(name, timedelta(minutes=1), 10).result()
        told = [f"{t.operation} {t.attempt} by {','.join(t.claimed_elsewhere)}" for t in tasks]
        assert [each.removesuffix(" by ") for each in told] == [*expected]

    def finish(self, name: str, operation: str, attempt: str) -> None:
        self.plane(name).finish(operation, int(attempt), Outcome(succeeded=True)).result()

    def resume(self, name: str, number: str) -> None:
        order = (int(number), MaintenanceOrder.RESUME, "")
        self.plane(name).order(maintenances.order, *order, by="ann").result()

    def remove(self, name: str, machine: str) -> None:
        self.plane(name).remove_machines([machine]).result()

    def set(self, name: str) -> None:
        self.plane(name).put_setting("x", "y").result()

    def token(self, name: str, account: str, digest: str) -> None:
        times: dict[str, Any] = {"created_by": "root", "created_at": NOW, "expires_at": None}
        made = Token(name=account, role=AccessRole.OPERATOR, digest=digest, **times)
        self.plane(name).order(accounts.create_token, made).result()
        request = OperatorRequest(
            by=account, role=made.role, address="", action="", request="", token=made
        )
        self.used.setdefault(account, request)

    def revoke(self, name: str, account: str) -> None:
        self.plane(name).order(accounts.revoke_tokens, [account]).result()

    def hold(self, name: str, by: str) -> None:
        """Put a hold with the first token of an account."""
        plane = self.plane(name).audited(self.used[by], lambda _: "")
        plane.hold(HoldKind.EVERYTHING, "", reason="", by=by).result()

    # Drains: h9 has no machines, and h0 two that can move to it.

    def survey(self, boot: str) -> HostSurvey:
        with self.store.read() as reading:
            machines = [one for one in reading.machines().values() if one.host == "h0"]
        guests = tuple(
            GuestFacts(vm_id=one.vm_id, name=one.name, running=True, memory_mib=1)
            for one in machines
        )
        facts = {"answers": True, "boot_id": boot, "can_reboot": True, "free_memory_mib": 9}
        hosts = {"h0": HostFacts(**facts, guests=guests), "h9": HostFacts(**facts)}
        keys = {one.vm_id: one.key for one in machines}
        return HostSurvey(began_at=NOW, hosts=hosts, keys=keys)

    def drain(self, name: str, host: str, requested: str = "0s") -> None:
        times = {"requested_at": NOW + elapsed(requested), "changed_at": NOW}
        wanted = Drain(host=host, state=HostState.UP, reboot=True, **times)
        self.plane(name).drain_host(wanted, self.survey("boot-1")).result()

    def rollout(self, name: str, *hosts: str) -> None:
        """Begin a maintenance that drains hosts."""
        of = maintenance(*hosts)
        units = tuple(msgspec.structs.replace(unit, drain=True) for unit in of.units)
        of = msgspec.structs.replace(of, units=units)
        self.plane(name).order(lambda unit, _: unit.take(Changes(maintenances=(of,)))).result()

    def turns(self, name: str) -> None:
        survey = self.survey("boot-1")
        self.plane(name).order(maintenances.take_turns, 1, survey).result()

    def step(self, name: str, host: str, boot: str = "boot-1", reboots: str = "") -> None:
        """Take the steps of a drain that follow now; one of them may order the host's reboot."""
        stepped, ordered = Stepped(changed=True), False
        while stepped.changed or stepped.survey:
            stepped = self.plane(name).step_drain(host, self.survey(boot)).result()
            ordered = ordered or stepped.reboot
        assert ordered == bool(reboots)

    def trim(self, count: str) -> None:
        with self.store.write() as transaction:
            assert transaction.trim(NOW.replace(year=NOW.year + 1), int(count)) == int(count)

    def keep(self) -> None:
        """From here on the store will have lost what is committed."""
        self.tail.enter_context(lost_tail(self.store))

    def lose(self) -> None:
        self.tail.close()

    def look(self, *names: str) -> None:
        for name in names:
            self.replicas[name].follower.look()

    # What must be so.

    def whole(self, name: str) -> None:
        self.replicas[name].is_whole()

    def told(self, name: str, count: str) -> None:
        assert len(self.replicas[name].told) == int(count)

    def same(self, *names: str) -> None:
        first, second = (self.replicas[name].told for name in names)
        assert first == second

    def position(self, sequence: str) -> None:
        with self.store.read() as reading:
            assert reading.position().sequence == int(sequence)

    def reached(self, name: str, *expected: str) -> None:
        told = [f"{one.sequence}{':lost' * one.lost}" for one in self.told_of[name]]
        assert told == [*expected]

    def news(self, *expected: str) -> None:
        with self.store.read() as reading:
            assert [str(row.sequence) for row in reading.news_after(0, 10)] == [*expected]

    def changes_lost(self, count: str) -> None:
        """The latest news is of so many."""
        with self.store.read() as reading:
            (lost,) = news.decode(reading.news_after(0, 10)[-1].items)
        assert (lost.type, lost.data.count) == (news.NewsType.CHANGES_LOST, int(count))

    def lost(self, name: str, changes: str) -> None:
        found = self.replicas[name].follower.lost
        assert found is not None
        assert found.changes == int(changes)

    def ended(self, name: str, *expected: str) -> None:
        """The latest change has these operations that are over."""
        latest = self.replicas[name].told[-1].operations
        assert [f"{one.id} {one.status}" for one in latest if not one.live] == [*expected]

    def operation(self, name: str, operation: str, status: str) -> None:
        found = self.replicas[name].memory.operations.get(operation)
        assert (found.status if found else "gone") == status

    def incarnation(self, name: str, scope: str, number: str) -> None:
        assert self.replicas[name].memory.scopes[scope].incarnation == int(number)

    def removed(self, machine: str, scope: str) -> None:
        with self.store.read() as reading:
            assert reading.tombstones()[machine].scope == scope

    def host(self, host: str, state: str, because: str = "", **told: str) -> None:
        with self.store.read() as reading:
            found = reading.drains()[host]
        assert because in found.reason
        self.compare(found, {"state": state, **told})

    def units(self, number: str, *expected: str) -> None:
        with self.store.read() as reading:
            found = reading.maintenances([int(number)])[int(number)].units
        assert [f"{unit.name} {unit.state}" for unit in found] == [*expected]

    def maintenance(self, number: str, state: str, because: str, **told: str) -> None:
        with self.store.read() as reading:
            found = reading.maintenances([int(number)])[int(number)]
        assert because in found.reason
        self.compare(found, {"state": state, **told})


@pytest.mark.parametrize("rows", stories_beside(__file__, "outbox.txt"))
def test_the_story_holds(rows: list[tuple[int, str]]) -> None:
    assert OutboxStory().play("outbox.txt", rows)


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


def test_what_a_transaction_saved_is_one_row_with_the_replicas_name(pair: Pair) -> None:
    first, _ = pair
    with first.store.read() as reading:
        (row,) = reading.changes_after(0, 10)
    assert (row.sequence, row.replica, row.format) == (1, "a", outbox.JSON)
    assert msgspec.json.decode(row.body, type=list[Changes]) == first.told


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


def test_more_rows_than_are_read_at_once_are_all_read_before_the_answer(pair: Pair) -> None:
    first, second = pair
    for number in range(outbox.MAX_ROWS + 3):
        with first.store.write() as transaction:
            saved = [Changes(revived=(str(number),))]
            first.follower.append(transaction, saved, NOW)
    second.ask("web-0")
    assert second.follower.applied.sequence == outbox.MAX_ROWS + 5
    assert [c.revived[0] for c in second.told[1:-1]] == [
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
        assert replica.told == replicas[0].told
        assert not replica.feed.ended.done()
    for thread in threads:
        thread.close()
        assert thread.ended.result(patience.SECONDS) is None
    for replica in replicas:
        replica.writer.close()


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


def test_a_replica_hears_of_changes_though_the_store_was_away_or_lost_its_answers() -> None:
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
    store.join("a").close()  # the name is free again
    assert thread.ended.result(patience.SECONDS) is None
    for each in (replica, writer):
        each.writer.close()


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

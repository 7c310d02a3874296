"""Replicas on one store: what one commits, the others' memory goes through in the same order."""

import threading
from contextlib import ExitStack
from datetime import datetime, timedelta
from typing import Any, Self

import msgspec
import pytest

import patience
from builders import FLEET, MINUTE, NOW, maintenance, survey_of
from control.conftest import Counting, done, nothing, put, raising
from control.process import Process, ProcessStory, vars_of
from forewarn.clock import ManualClock, SystemClock
from forewarn.control import accounts, maintenances, outbox
from forewarn.control.accounts import OperatorRequest
from forewarn.control.changefeed import Changefeed, Reached
from forewarn.control.outbox import Follower, FollowerThread, difference, state_of
from forewarn.control.plane import Stepped
from forewarn.control.unit_of_work import UnitOfWork
from forewarn.maintenance import fleet_file, host_drain, news
from forewarn.maintenance.accounts import Token
from forewarn.maintenance.host_drain import DrainOrder, DrainStep, DrainView
from forewarn.maintenance.host_plan import HostSurvey
from forewarn.maintenance.model import (
    Changes,
    Drain,
    HoldKind,
    HostState,
)
from forewarn.maintenance.planner import Request
from forewarn.maintenance.relays import new_token
from forewarn.maintenance.turn_orders import MaintenanceOrder
from forewarn.maintenance.world import LiveState, World
from forewarn.store.port import ChangeRecord, OutcomeUnknown, StoreUnavailable, StoreUnusable
from forewarn.store.sql import Store
from forewarn.store.sqlite import InMemoryStore
from forewarn.vocabulary import AccessRole, EventType
from store.shared import SharedStore, lost_tail
from stories import elapsed, stories_beside


def replica(store: Store, name: str, *, threaded: bool = False) -> Process:
    """A replica without guests, which may start what is due."""
    made = Process(store, SystemClock() if threaded else ManualClock(NOW), name, threaded=threaded)
    made.allows = lambda: True
    return made


def ask(process: Process, machine: str) -> str:
    request = Request(event_type=EventType.REBOOT, machines=(machine,))
    return done(process.plane.request(request)).operations[0].id


class OutboxStory(ProcessStory):
    """Replicas a and b on one store; a has applied a fleet."""

    several = frozenset({"look", "same"})

    def __init__(self) -> None:
        super().__init__()
        self.stored = SharedStore()
        self.processes = {name: replica(self.stored, name) for name in "ab"}
        self.told_of: dict[str, list[Reached]] = {name: [] for name in "ab"}
        for name, each in self.processes.items():
            each.feed.tell(self.told_of[name].append)
        done(self.processes["a"].plane.apply_fleet(FLEET))
        self.told_of["a"].clear()
        self.tail = ExitStack()
        self.used: dict[str, OperatorRequest] = {}

    def claim(self, *expected: str) -> None:
        """What is claimed, its attempt, and by whom else it may have been begun."""
        tasks = done(self.plane.claim(self.at.name, MINUTE, 10))
        told = [f"{t.operation} {t.attempt} by {','.join(t.claimed_elsewhere)}" for t in tasks]
        assert [each.removesuffix(" by ") for each in told] == [*expected]

    def add(self, name: str) -> None:
        more = fleet_file.StandaloneMachine(name=name)
        wanted = msgspec.structs.replace(FLEET, machine=(*FLEET.machine, more))
        done(self.plane.apply_fleet(wanted))

    def order(self, kind: str, number: str) -> None:
        order = (int(number), MaintenanceOrder(kind), "")
        done(self.plane.order(maintenances.order, *order, by="ann"))

    def set(self) -> None:
        done(self.plane.put_setting("x", "y"))

    def token(self, account: str, digest: str) -> None:
        times: dict[str, Any] = {"created_by": "root", "created_at": NOW, "expires_at": None}
        made = Token(name=account, role=AccessRole.OPERATOR, digest=digest, **times)
        made = done(self.plane.order(accounts.create_token, made))
        request = OperatorRequest(
            by=account, role=made.role, address="", action="", request="", token=made
        )
        self.used.setdefault(account, request)

    def revoke(self, account: str) -> None:
        done(self.plane.order(accounts.revoke_tokens, [account]))

    def hold_by(self, account: str) -> None:
        """Put a hold with the first token of an account."""
        plane = self.plane.audited(self.used[account], lambda _: "")
        done(plane.hold(HoldKind.EVERYTHING, "", reason="", by=account))

    # Drains: h9 has no machines, and h0 two that can move to it.

    def survey(self, boot: str) -> HostSurvey:
        known = self.look_up(lambda reading: reading.machines()).values()
        places = {"h0": [one for one in known if one.host == "h0"], "h9": []}
        return survey_of(places, boot_id=boot, free_memory_mib=9)

    def drain(self, host: str, requested: str = "0s") -> None:
        times = {"requested_at": self.moment(requested), "changed_at": NOW}
        wanted = Drain(host=host, state=HostState.UP, reboot=True, **times)
        done(self.plane.drain_host(wanted, self.survey("boot-1")))

    def rollout(self, *hosts: str) -> None:
        """Begin a maintenance that drains hosts."""
        of = maintenance(*hosts)
        units = tuple(msgspec.structs.replace(unit, drain=True) for unit in of.units)
        put(self.plane, Changes(maintenances=(msgspec.structs.replace(of, units=units),)))

    def turns(self) -> None:
        done(self.plane.order(maintenances.take_turns, 1, self.survey("boot-1")))

    def step(self, host: str, boot: str = "boot-1", reboots: str = "") -> None:
        """Take the steps of a drain that follow now; one of them may order the host's reboot."""
        stepped, ordered = Stepped(changed=True), False
        while stepped.changed or stepped.survey:
            stepped = done(self.plane.step_drain(host, self.survey(boot)))
            ordered = ordered or stepped.reboot
        assert ordered == bool(reboots)

    def undrain(self, host: str) -> None:
        def open_it(view: DrainView, now: datetime) -> DrainStep:
            return host_drain.order(view, DrainOrder.UNDRAIN, now)

        done(self.plane.order_drain(host, open_it))

    def retry(self, host: str) -> None:
        done(self.plane.order_drain(host, host_drain.retry))

    def trim(self, count: str) -> None:
        with self.stored.write() as transaction:
            assert transaction.trim(NOW.replace(year=NOW.year + 1), int(count)) == int(count)

    def pass_(self, span: str) -> None:
        for each in self.processes.values():
            each.real.advance(elapsed(span))

    def keep(self) -> None:
        """From here on the store will have lost what is committed."""
        self.tail.enter_context(lost_tail(self.stored))

    def lose(self) -> None:
        self.tail.close()

    def look(self, *names: str) -> None:
        for name in names:
            self.processes[name].follower.look()

    # What must be so.

    def whole(self) -> None:
        self.at.assert_whole()

    def told(self, count: str) -> None:
        assert len(self.at.told) == int(count)

    def same(self, *names: str) -> None:
        first, second = (self.processes[name].told for name in names)
        assert first == second

    def position(self, sequence: str) -> None:
        assert self.look_up(lambda reading: reading.position().sequence) == int(sequence)

    def reached(self, *expected: str) -> None:
        told = [f"{one.sequence}{':lost' * one.lost}" for one in self.told_of[self.at.name]]
        assert told == [*expected]

    def changes_lost(self, count: str, *rows: str) -> None:
        """The latest news, in these rows, is of so many."""
        found = self.look_up(lambda reading: reading.news_after(0, 10))
        assert [str(row.sequence) for row in found] == [*rows]
        (lost,) = news.decode(found[-1].items)
        assert (lost.type, lost.data.count) == (news.NewsType.CHANGES_LOST, int(count))

    def lost(self, changes: str) -> None:
        found = self.at.follower.lost
        assert found is not None
        assert found.changes == int(changes)

    def ended(self, *expected: str) -> None:
        """The latest change has these operations that are over."""
        latest = self.at.told[-1].operations
        assert [f"{one.id} {one.status}" for one in latest if not one.live] == [*expected]

    def remembers(self, operation: str, status: str) -> None:
        """Compare an operation in memory."""
        found = self.at.memory.operations.get(operation)
        assert (found.status if found else "gone") == status

    def incarnation(self, scope: str, number: str) -> None:
        assert self.at.memory.scopes[scope].incarnation == int(number)

    def removed(self, machine: str, scope: str) -> None:
        assert self.look_up(lambda reading: reading.tombstones())[machine].scope == scope


@pytest.mark.parametrize("rows", stories_beside(__file__, "outbox.txt"))
def test_the_story_holds(rows: list[tuple[int, str]]) -> None:
    assert OutboxStory().play("outbox.txt", rows)


@pytest.fixture
def store() -> SharedStore:
    return SharedStore()


@pytest.fixture
def pair(store: SharedStore) -> tuple[Process, Process]:
    """Two replicas, the first of which has applied a fleet."""
    first, second = replica(store, "a"), replica(store, "b")
    first.plane.apply_fleet(FLEET).result()
    return first, second


Pair = tuple[Process, Process]


def test_where_the_recovery_from_a_loss_is_lost_too_nothing_is_given_again(
    store: SharedStore, pair: Pair
) -> None:
    def given() -> tuple[int, int]:
        number = int(ask(pair[0], "web-1").partition(".")[0])
        return number, pair[0].memory.scopes["web"].incarnation

    with lost_tail(store):  # as where the server that failed first is put back
        with lost_tail(store):
            ask(pair[0], "web-0")
        pair[0].follower.look()
        before = given()
        pair[1].follower.look()
    for each in pair:
        each.real.advance(MINUTE)
        each.follower.look()
    after = given()
    assert all(later > earlier for earlier, later in zip(before, after, strict=True))


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
    ask(first, "m0")
    second.follower.look()
    second.assert_whole()
    first.assert_whole()
    assert len(second.memory.machines) > many


def test_a_row_of_a_later_release_is_read_from_the_store(pair: Pair) -> None:
    first, second = pair
    with first.store.write() as transaction:
        scope = transaction.scopes()["web"]
        transaction.save(Changes(scopes=(msgspec.structs.replace(scope, incarnation=9),)))
        change = ChangeRecord(token="later", replica="c", at=NOW, format=7, body=b"{")
        transaction.append(change)
    second.follower.look()
    second.assert_whole()
    assert second.memory.scopes["web"].incarnation == 9


def test_memory_that_differs_from_another_replicas_is_read_again(pair: Pair) -> None:
    first, second = pair
    second.follower.look()
    forgotten = Changes(removed_machines=("bastion",))
    second.follower._world.take(forgotten)
    second.follower._world.settle()
    second.follower.feed.publish([forgotten], Reached(1))
    ask(first, "web-0")
    second.follower.look()
    second.assert_whole()


def test_more_rows_than_are_read_at_once_are_all_read_before_the_answer(pair: Pair) -> None:
    first, second = pair
    for number in range(outbox.MAX_ROWS + 3):
        with first.store.write() as transaction:
            saved = [Changes(revived=(str(number),))]
            first.follower.append(transaction, saved, NOW)
    ask(second, "web-0")
    assert second.follower.applied.sequence == outbox.MAX_ROWS + 5
    assert [c.revived[0] for c in second.told[1:-1]] == [
        str(number) for number in range(outbox.MAX_ROWS + 3)
    ]


@pytest.mark.parametrize("shared", [False, True])
def test_a_commit_that_fails_or_whose_answer_is_lost_leaves_the_world_as_the_store_is(
    shared: bool,
) -> None:
    store = Counting(SharedStore() if shared else InMemoryStore())
    only = replica(store, "a")
    only.plane.apply_fleet(FLEET).result()
    ask(only, "web-0")
    store.before_commit = raising(StoreUnavailable("the disk is full"))
    with pytest.raises(StoreUnavailable):
        only.plane.cancel(["1"], reason="").result()
    store.before_commit = nothing
    store.after_commit = raising(OutcomeUnknown("the connection is lost"))
    with pytest.raises(OutcomeUnknown):
        only.plane.cancel(["1"], reason="").result()
    store.after_commit = nothing
    world = only.plane.order(lambda unit: unit.world).result()
    with store.read() as reading:
        assert vars_of(world) == vars_of(World(state_of(reading)))
        assert reading.live_operations() == {}


def test_a_job_that_breaks_an_index_leaves_the_world_as_the_store_is(pair: Pair) -> None:
    first, _ = pair
    gone = ask(first, "web-0")

    def broken(unit: UnitOfWork) -> None:
        unit.world.of_event.clear()
        del unit.world.operations[gone]

    with pytest.raises(KeyError):
        first.plane.order(broken).result()
    first.assert_whole()
    first.plane.cancel([gone], reason="").result()
    first.assert_whole()


def test_memory_is_known_to_be_whole_though_the_writer_is_in_a_transaction() -> None:
    clock = ManualClock(NOW)
    follower = Follower(SharedStore(), Changefeed(), clock)
    clock.advance(timedelta(minutes=1))
    with follower._lock:
        assert follower.cut_off
        follower.look()
        assert not follower.cut_off


def test_a_change_that_is_announced_is_read_once_and_its_own_only_after_a_time() -> None:
    store = Counting(SharedStore())
    first, second = replica(store, "a"), replica(store, "b")
    first.plane.apply_fleet(FLEET).result()

    def reads(process: Process, told: int) -> int:
        before = store.reads
        process.follower.look(told)
        return store.reads - before

    assert [reads(first, 1), reads(second, 1), reads(second, 1)] == [0, 1, 0]
    for each in (first, second):
        each.real.advance(MINUTE)
    ask(first, "web-0")
    assert not first.follower.cut_off
    assert [reads(first, 2), reads(second, 1)] == [0, 2]  # the first may be lost by now
    second.assert_whole()


def test_what_the_writer_is_about_to_publish_is_not_read_again() -> None:
    store, there = Counting(SharedStore()), threading.Event()
    only = replica(store, "a")
    lock = threading.Lock()

    class Lock(ExitStack):
        def __enter__(self) -> Self:
            there.set()
            lock.acquire()
            self.callback(lock.release)
            return self

    looking = threading.Thread(target=only.follower.look, args=(1,))

    def look() -> None:
        there.clear()
        looking.start()
        assert there.wait(patience.SECONDS)

    only.follower._lock, store.after_commit = Lock(), look  # type: ignore[assignment]
    before = store.reads
    only.plane.apply_fleet(FLEET).result()
    looking.join()
    assert store.reads == before


def test_what_others_have_committed_is_read_while_the_writer_waits_for_its_turn() -> None:
    store = Counting(SharedStore())
    turn, waiting = threading.Event(), threading.Event()

    def wait() -> None:
        """Another replica has its turn first."""
        waiting.set()
        assert turn.wait(patience.SECONDS)

    first, second = replica(store, "a"), replica(store, "b")
    first.plane.apply_fleet(FLEET).result()
    store.before_write = wait
    asking = threading.Thread(target=ask, args=(second, "web-0"))
    asking.start()
    assert waiting.wait(patience.SECONDS)
    second.follower.look()
    was_read = not turn.is_set() and second.memory.machines.keys()
    turn.set()
    asking.join()
    assert "web-0" in (was_read or ())
    second.assert_whole()


def test_a_row_that_cannot_be_read_ends_the_service_and_runs_no_job_twice(pair: Pair) -> None:
    first, second = pair
    with first.store.write() as transaction:
        form = outbox.JSON
        transaction.append(ChangeRecord(token="x", replica="c", at=NOW, format=form, body=b"{"))
    with pytest.raises(msgspec.DecodeError):
        ask(second, "web-0")
    assert isinstance(second.feed.ended.exception(0), msgspec.DecodeError)
    with first.store.read() as reading:
        assert reading.live_operations() == {}


# With real threads.


def test_replicas_that_write_at_once_go_through_the_same_changes(store: SharedStore) -> None:
    replicas = [replica(store, name, threaded=True) for name in "abc"]
    replicas[0].plane.apply_fleet(FLEET).result(patience.SECONDS)
    threads = [
        FollowerThread(each.follower, store, store.join(each.name), "1") for each in replicas
    ]
    for thread in threads:
        thread.start()

    def write(process: Process, machine: str) -> None:
        for _ in range(40):
            process.plane.cancel([ask(process, machine)], reason="").result(patience.SECONDS)

    machines = ("web-0", "web-1", "web-2")
    writing = [
        threading.Thread(target=write, args=pair) for pair in zip(replicas, machines, strict=True)
    ]
    for each in writing:
        each.start()
    for each in writing:
        each.join()
    for each in replicas:
        each.follower.look()
        each.assert_whole()
        assert each.told == replicas[0].told
        assert not each.feed.ended.done()
    for thread in threads:
        thread.close()
        assert thread.ended.result(patience.SECONDS) is None
    for each in replicas:
        each.writer.close()


def test_a_replica_hears_of_changes_though_the_store_was_away_or_did_not_let_it_in() -> None:
    store = Counting(SharedStore())
    errors = [StoreUnavailable("away"), OutcomeUnknown("no answer"), StoreUnusable("new password")]

    def lose_an_answer() -> None:
        if errors:
            raise errors.pop(0)

    store.after_read = lose_an_answer
    one = replica(store, "a", threaded=True)
    heard = threading.Event()
    one.feed.subscribe(lambda _: heard.set())
    thread = FollowerThread(one.follower, store, store.join("a"), "1")
    thread.start()
    writer = replica(store, "b", threaded=True)
    writer.plane.apply_fleet(FLEET).result(patience.SECONDS)
    assert heard.wait(patience.SECONDS)
    assert errors == []
    thread.close()
    store.join("a").close()  # the name is free again
    assert thread.ended.result(patience.SECONDS) is None
    for each in (one, writer):
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

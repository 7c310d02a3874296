"""Relays that are away: their hosts are held once, by whichever replica, and released."""

import asyncio
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from builders import FLEET, MINUTE, NOW, SECOND, mint
from control.conftest import done
from forewarn.clock import ManualClock
from forewarn.control import relay_watch
from forewarn.control.changefeed import Changefeed
from forewarn.control.outbox import Follower
from forewarn.control.plane import Plane
from forewarn.control.relay_watch import SAVE_SECONDS, SETTLE, RelayWatch
from forewarn.control.service_clock import ServiceClock
from forewarn.control.writer import InlineWriter
from forewarn.maintenance import relays
from forewarn.maintenance.alerts import AlertKind
from forewarn.maintenance.model import (
    Changes,
    Drain,
    Hold,
    HoldKind,
    HostState,
    Operation,
    Policy,
    Queueing,
    Refused,
)
from forewarn.maintenance.news import NewsType, decode
from forewarn.maintenance.planner import Request
from forewarn.maintenance.relays import HEARSAY, LATE, Relay, new_token
from forewarn.maintenance.transitions import Decision
from forewarn.store.port import StoreUnavailable
from forewarn.store.sql import Store, Transaction
from forewarn.store.sqlite import InMemoryStore
from forewarn.vocabulary import ErrorCode, EventStatus, EventType
from store.shared import SharedStore
from store.wrapped import Wrapped

BUSY = 5.0
replace = msgspec.structs.replace

STARTS = Policy(queue=Queueing.START)


class Deaf(Wrapped):
    """A store that takes no writes when it is told to take none."""

    def __init__(self) -> None:
        super().__init__(InMemoryStore())
        self.away = False

    def hear(self, relays: Iterable[Relay], at: datetime | None = None) -> None:
        self._fail()
        super().hear(relays, at)

    @contextmanager
    def write(self) -> Iterator[Transaction]:
        self._fail()
        with super().write() as transaction:
            yield transaction

    def _fail(self) -> None:
        if self.away:
            raise StoreUnavailable("the disk is full")


class RelayReplica:
    """A replica's part: a control plane and a watch over a store, at one time with the others."""

    def __init__(self, store: Store, clock: ManualClock, name: str = "a") -> None:
        self.store = store
        self.clock = clock
        feed = Changefeed()
        follower = Follower(store, feed, clock, replica=name)
        writer = InlineWriter(store, clock, feed, follower)
        self.plane = Plane(
            writer,
            mint("b"),
            STARTS,
            may_start=lambda: self.watch.may_start(),  # noqa: PLW0108 - made below
        )
        self.all_known = True
        self.void: list[str] = []
        self.watch = RelayWatch(
            self.plane,
            store,
            ServiceClock(clock),
            clock,
            replica=name,
            has_all=lambda host, etag: self.all_known,
            on_void=self.void.append,
        )
        feed.subscribe(self.watch.learn)
        self.follower = follower
        with store.read() as reading:
            self.watch.learn(Changes(tokens=tuple(reading.tokens().values())))
            self.watch.settle()
            follower.begin(reading.position())

    def hear(self, host: str = "h0", wait: float = BUSY) -> None:
        """A relay asks for its host, and is answered after its wait."""
        heard_at = self.watch.hear(host, version="1", age_seconds=60.0, machines=2, etag="e.1.d")
        self.watch.expect(host, heard_at, wait)

    def look(self) -> None:
        self.follower.look()
        run(self.watch.look())

    def token(self, digest: str = "d0", host: str = "h0") -> None:
        made = new_token(host, digest, by="ann", at=NOW)
        done(self.plane.order(relay_watch.create_token, made))

    def ask(self, machine: str = "web-0") -> None:
        request = Request(event_type=EventType.REBOOT, machines=(machine,))
        done(self.plane.request(request))

    def operation(self, name: str = "1.1") -> Operation:
        with self.store.read() as reading:
            return reading.operations([name])[name]

    def holds(self) -> tuple[Hold, ...]:
        with self.store.read() as reading:
            return reading.holds()

    def held_and_released(self) -> list[NewsType]:
        """Return the news of holds, in order."""
        with self.store.read() as reading:
            told = [one.type for row in reading.news_after(0, 1000) for one in decode(row.items)]
        return [kind for kind in told if kind in {NewsType.HOLD_PUT, NewsType.HOLD_RELEASED}]


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(coroutine)


@pytest.fixture
def replica() -> RelayReplica:
    """A replica that has settled, with a fleet, a token for h0's relay, and a reboot there."""
    one = RelayReplica(InMemoryStore(), ManualClock(NOW))
    done(one.plane.apply_fleet(FLEET))
    one.token()
    one.clock.advance(SETTLE)
    one.ask()
    one.hear()
    one.look()
    return one


def away(replica: RelayReplica, by: timedelta = LATE + (BUSY + 1) * SECOND) -> None:
    replica.clock.advance(by)
    replica.look()


def test_while_a_relay_is_away_its_host_is_held_and_notice_stands_still(
    replica: RelayReplica,
) -> None:
    before, heard_at = replica.operation(), replica.clock.now()
    replica.ask("web-1")
    other = replica.operation("2.1")
    away(replica)
    (hold,) = replica.holds()
    assert (hold.kind, hold.name, hold.by, hold.at) == (HoldKind.HOST, "h0", relays.BY, heard_at)
    assert replica.operation().held_at == heard_at
    away(replica, 20 * MINUTE)
    assert done(replica.plane.advance()) > 0
    assert replica.operation().status is EventStatus.SCHEDULED
    replica.hear()
    replica.look()
    assert replica.holds() == ()
    missed = replica.clock.now() - heard_at
    assert replica.operation().not_before == before.not_before + missed
    assert replica.operation("2.1").not_before == other.not_before
    assert replica.operation("2.1").status is EventStatus.STARTED


def test_an_operator_may_release_a_host_whose_relay_is_away(replica: RelayReplica) -> None:
    away(replica)
    done(replica.plane.release(HoldKind.HOST, "h0"))
    away(replica, MINUTE)
    assert replica.holds() == ()
    replica.hear()
    replica.look()
    away(replica)
    assert [hold.by for hold in replica.holds()] == [relays.BY]  # for the next absence


def test_a_hold_of_an_operator_is_left_alone_and_followed_by_ours(replica: RelayReplica) -> None:
    done(replica.plane.hold(HoldKind.HOST, "h0", reason="disk", by="ann"))
    away(replica)
    away(replica, MINUTE)
    assert [hold.by for hold in replica.holds()] == ["ann"]
    done(replica.plane.release(HoldKind.HOST, "h0"))
    away(replica, SECOND)
    assert [hold.by for hold in replica.holds()] == [relays.BY]


def test_a_revoked_relay_holds_nothing(replica: RelayReplica) -> None:
    away(replica)
    assert done(replica.plane.order(relay_watch.revoke_tokens, "h0")) == 1
    assert replica.holds() == ()
    assert replica.void == ["h0"]
    assert replica.watch.host_of("d0") is None
    away(replica, MINUTE)
    assert replica.holds() == ()
    with pytest.raises(Refused) as refused:
        done(replica.plane.order(relay_watch.revoke_tokens, "h0"))
    assert refused.value.code is ErrorCode.NOT_FOUND


def test_a_token_is_noted_at_its_first_use_and_the_older_one_is_void(
    replica: RelayReplica,
) -> None:
    assert replica.watch.host_of("d0") == "h0"
    assert replica.watch.tokens["relay/h0/d0"].used_at is not None
    replica.token("d1")
    assert replica.watch.host_of("d0") == "h0"
    assert replica.watch.host_of("d1") == "h0"
    assert replica.watch.host_of("d0") is None
    assert replica.void == ["h0"]


def test_a_new_token_of_a_relay_that_is_away_does_not_excuse_it(replica: RelayReplica) -> None:
    replica.watch.host_of("d0")
    replica.clock.advance(SECOND)
    replica.token("d1")
    assert [token.digest for token in replica.watch.tokens_of("h0")] == ["d0", "d1"]
    away(replica)
    assert [hold.name for hold in replica.holds()] == ["h0"]


def test_a_relay_is_not_awaited_before_its_new_token_is_used(replica: RelayReplica) -> None:
    done(replica.plane.order(relay_watch.revoke_tokens, "h0"))
    assert replica.watch.tokens_of("h0") == []
    replica.clock.advance(SECOND)
    replica.token("d1")
    away(replica)
    assert replica.holds() == ()


def test_a_stall_moves_the_notices_of_its_host_alone(replica: RelayReplica) -> None:
    replica.ask("web-1")
    replica.clock.advance(MINUTE)
    before, other = replica.operation(), replica.operation("2.1")
    replica.watch.stalled("h0", 30.0)
    assert replica.operation().not_before == before.not_before + 30 * SECOND
    assert replica.operation("2.1") == other
    assert replica.holds() == ()
    replica.watch.stalled("h0", 4.0)
    assert replica.operation().not_before == before.not_before + 30 * SECOND


def test_a_stall_while_the_store_is_away_moves_the_notices_once_that_is_back() -> None:
    store = Deaf()
    one = RelayReplica(store, ManualClock(NOW))
    done(one.plane.apply_fleet(FLEET))
    one.ask()
    one.clock.advance(MINUTE)
    before = one.operation()
    store.away = True
    one.watch.stalled("h0", 30.0)
    store.away = False
    one.look()
    one.look()
    assert one.operation().not_before == before.not_before + 30 * SECOND


def test_a_stall_during_an_absence_counts_once(replica: RelayReplica) -> None:
    before, heard_at = replica.operation(), replica.clock.now()
    away(replica, MINUTE)
    replica.hear()
    replica.watch.stalled("h0", 55.0)
    replica.look()
    assert replica.operation().not_before == before.not_before + (replica.clock.now() - heard_at)


def test_a_restart_remembers_who_is_held_and_gives_relays_time_to_come_back(
    replica: RelayReplica,
) -> None:
    again = RelayReplica(replica.store, replica.clock)
    again.look()
    away(again, SETTLE + LATE)
    assert again.holds() == ()
    away(again, SECOND)
    assert len(again.holds()) == 1
    last = RelayReplica(replica.store, replica.clock)
    last.look()
    last.hear()
    last.look()
    assert last.holds() == ()


def test_after_a_restart_nothing_starts_on_a_host_before_its_relay_was_heard_or_missed(
    replica: RelayReplica,
) -> None:
    """A request that waited for a minute has ended with the service that it waited at."""
    replica.clock.advance(15 * MINUTE - 5 * SECOND)
    replica.hear(wait=60.0)
    replica.look()
    due = replica.operation().not_before
    replica.clock.advance(due - SECOND - replica.clock.now())
    again = RelayReplica(replica.store, replica.clock)
    for _ in range(int((SETTLE + LATE).total_seconds()) + 1):
        assert done(again.plane.advance()) == 0
        again.look()
        assert again.holds() == ()
        again.clock.advance(SECOND)
    again.look()
    assert [hold.by for hold in again.holds()] == [relays.BY]
    assert again.operation().status is EventStatus.SCHEDULED
    assert again.watch.may_start()  # elsewhere


def test_after_a_restart_starts_go_on_once_relays_have_asked(replica: RelayReplica) -> None:
    again = RelayReplica(replica.store, replica.clock)
    again.look()
    assert not again.watch.may_start()
    again.hear()
    again.look()
    assert again.watch.may_start()


def test_a_host_that_is_held_or_has_lost_its_relay_long_ago_keeps_no_starts_waiting(
    replica: RelayReplica,
) -> None:
    away(replica)
    again = RelayReplica(replica.store, replica.clock)
    again.look()
    assert again.watch.may_start()
    assert len(again.holds()) == 1  # it has not asked: nothing says that it is back
    done(again.plane.release(HoldKind.HOST, "h0"))
    again = RelayReplica(replica.store, replica.clock)
    again.look()
    assert again.watch.may_start()


def test_a_relay_that_asks_for_the_first_time_is_known_after_a_restart() -> None:
    one = RelayReplica(InMemoryStore(), ManualClock(NOW))
    one.token()
    one.look()
    one.clock.advance(SECOND)
    one.hear()
    one.look()
    with one.store.read() as reading:
        assert list(reading.relays()) == ["h0"]


def test_the_relay_of_a_host_that_a_drain_reboots_is_written_down_at_once(
    replica: RelayReplica,
) -> None:
    drain = Drain(host="h0", state=HostState.BACK, requested_at=NOW, changed_at=NOW)
    for state, is_known in ((HostState.UP, False), (HostState.BACK, True)):
        replica.watch.learn(Changes(drains=(replace(drain, state=state),)))
        replica.clock.advance(SECOND)
        replica.hear()
        replica.look()
        with replica.store.read() as reading:
            known = reading.relays()["h0"].heard_at
        assert (known == replica.clock.now()) is is_known


def test_a_replica_that_restarts_awaits_what_it_heard_before() -> None:
    one, two = pair()
    two.hear(wait=60.0)
    two.look()
    one.clock.advance(SECOND)
    again = RelayReplica(two.store, two.clock, "b")
    again.look()
    assert not again.watch.may_start()
    again.clock.advance(SETTLE + LATE + SECOND)
    one.look()
    assert one.holds() == ()  # it may wait at the other one
    again.look()
    assert [hold.by for hold in again.holds()] == [relays.BY]


def test_a_replica_starts_at_once_what_others_hear() -> None:
    one, two = pair()
    two.hear(wait=60.0)
    two.look()
    one.clock.advance(SECOND)
    again = RelayReplica(one.store, one.clock, "a")
    again.look()
    assert again.watch.may_start()


def test_what_was_not_written_while_the_store_was_away_is_written_later() -> None:
    store = Deaf()
    replica = RelayReplica(store, ManualClock(NOW))
    replica.token()
    replica.hear()
    store.away = True
    with pytest.raises(StoreUnavailable):
        replica.look()
    store.away = False
    replica.clock.advance(MINUTE)
    replica.look()
    with store.read() as reading:
        assert list(reading.relays()) == ["h0"]


def pair() -> tuple[RelayReplica, RelayReplica]:
    store, clock = SharedStore(), ManualClock(NOW)
    one, two = (RelayReplica(store, clock, name) for name in "ab")
    done(one.plane.apply_fleet(FLEET))
    one.token()
    one.ask()
    clock.advance(SETTLE)
    for each in (one, two):
        each.look()
    clock.advance(SAVE_SECONDS * SECOND)
    return one, two


def test_a_relay_whose_replica_is_frozen_is_missed_once_something_changes_elsewhere() -> None:
    one, two = pair()
    two.hear(wait=60.0)
    two.look()  # and no more: it is frozen, and so is the relay's request
    one.clock.advance(2 * SECOND)
    one.look()
    one.all_known = False
    one.watch.changed(["h0", "h9"])
    one.clock.advance(LATE + HEARSAY)
    one.look()
    assert one.holds() == ()
    one.clock.advance(SECOND)
    one.look()
    assert [hold.by for hold in one.holds()] == [relays.BY]
    one.clock.advance(SECOND)
    one.hear()
    one.all_known = True
    one.look()
    assert one.holds() == ()


def test_two_replicas_hold_once_and_either_releases() -> None:
    one, two = pair()
    one.hear()
    one.look()
    two.clock.advance(2 * SECOND)
    two.look()
    one.clock.advance(LATE + MINUTE)
    for each in (one, two, one, two):
        each.look()
    assert len(one.holds()) == 1
    assert one.held_and_released() == [NewsType.HOLD_PUT]
    one.clock.advance(2 * SECOND)
    two.hear()
    two.look()
    one.look()
    assert one.holds() == ()
    assert one.held_and_released() == [NewsType.HOLD_PUT, NewsType.HOLD_RELEASED]


def test_revoked_relays_stay_forgotten_whatever_another_replica_writes_of_them_then() -> None:
    one, two = pair()
    for number in range(50):
        one.token(f"d{number}", host := f"x{number}")
        one.hear(host)
    one.look()
    late = [*one.watch.relays.values()]
    for number in range(50):
        done(one.plane.order(relay_watch.revoke_tokens, f"x{number}"))
    one.store.hear(late)  # as a beat that was under way does
    for each in (one, two):
        each.clock.advance(2 * SECOND)
        each.look()
        assert [host for host in each.watch.relays if host != "h0"] == []


def test_an_absence_that_was_refused_a_hold_is_not_marked(replica: RelayReplica) -> None:
    """The mark says that this absence has held the host: the next look tries again."""
    decide, replica.plane._decide = replica.plane._decide, refused
    replica.clock.advance(LATE + (BUSY + 1) * SECOND)
    replica.look()
    replica.plane._decide = decide
    replica.look()
    assert [hold.name for hold in replica.holds()] == ["h0"]


def refused(*_: object, **__: object) -> Decision:
    raise Refused(ErrorCode.CONFLICT, "not now")


def test_a_relay_that_is_away_is_told_of_unless_its_host_reboots() -> None:
    clock = ManualClock(NOW)
    replica = RelayReplica(InMemoryStore(), clock)
    watch = replica.watch
    for host in ("h0", "h1", "h2"):
        replica.token(f"token of {host}", host)
    clock.advance(SETTLE)
    for host in ("h0", "h1"):
        watch.hear(host, version="1", age_seconds=0.0, machines=1, etag="")
    assert watch.alerts() == []
    clock.advance(MINUTE)
    drain = Drain(host="h1", state=HostState.REBOOTING, requested_at=NOW, changed_at=NOW)
    watch.learn(Changes(drains=(drain,)))
    away = [(one.kind, one.about, one.since) for one in watch.alerts()]
    assert away == [(AlertKind.RELAY_AWAY, "h0", NOW + SETTLE)]
    watch.learn(Changes(drains=(msgspec.structs.replace(drain, state=HostState.UP),)))
    assert [one.about for one in watch.alerts()] == ["h0", "h1"]

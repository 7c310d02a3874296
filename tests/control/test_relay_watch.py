"""Relays that are away: relay_watch.txt, played by replicas on one store at one time."""

import asyncio
import itertools
from collections.abc import Iterable
from contextlib import nullcontext

import pytest

from builders import FLEET, NOW, SECOND
from control.conftest import Counting, done
from control.process import Process, ProcessStory
from forewarn.clock import ManualClock
from forewarn.control import relay_watch
from forewarn.control.relay_watch import RelayWatch
from forewarn.control.service_clock import ServiceClock
from forewarn.maintenance.alerts import Alert
from forewarn.maintenance.model import (
    Changes,
    Drain,
    HoldKind,
    HostState,
    Refused,
)
from forewarn.maintenance.news import NewsType, decode
from forewarn.maintenance.relays import new_token
from forewarn.maintenance.transitions import Decision
from forewarn.store.port import StoreUnavailable
from forewarn.store.sql import Store
from forewarn.vocabulary import ErrorCode
from store.shared import SharedStore
from stories import elapsed, stories_beside


class RelayReplica(Process):
    """A replica's part: a control plane and a watch over a store, at one time with the others."""

    def __init__(self, store: Store, clock: ManualClock, name: str) -> None:
        super().__init__(store, clock, name)
        self.all_known = True
        self.void: list[str] = []
        self.relays = RelayWatch(
            self.plane,
            store,
            ServiceClock(clock),
            clock,
            replica=name,
            has_all=lambda host, etag: self.all_known,
            on_void=self.void.append,
        )
        self.allows = self.relays.may_start
        self.writer.read(self.follower.begin).result()
        self.feed.subscribe(self.relays.learn)
        with store.read() as reading:
            self.relays.learn(Changes(tokens=tuple(reading.tokens().values())))
            self.relays.settle()

    def look(self) -> None:
        self.follower.look()
        asyncio.run(self.relays.look())


class RelayStory(ProcessStory):
    """Replicas so far; a line is about `a` unless it names another."""

    at: RelayReplica
    several = frozenset({"restart"})

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock(NOW)
        self.stored = Counting()
        self.restart("a")

    def restart(self, name: str) -> None:
        self.processes[name] = RelayReplica(self.stored, self.clock, name)

    def together(self) -> None:
        """Replicas a and b share a store instead, and settle; the relay has not asked yet."""
        self.clock = ManualClock(NOW)
        self.stored = Counting(SharedStore())
        for name in "ab":
            self.restart(name)
        for row in ("apply", "token d0 h0", "schedule Reboot web-0", "pass 10s"):
            self.carry_out(row)
        for row in ("look", "look b", "pass 2s"):
            self.carry_out(row)

    @property
    def watch(self) -> RelayWatch:
        return self.at.relays

    def apply(self) -> None:
        done(self.plane.apply_fleet(FLEET))

    def token(self, digest: str, host: str) -> None:
        made = new_token(host, digest, by="ann", at=NOW)
        done(self.plane.order(relay_watch.create_token, made))

    def hear(self, host: str, wait: str = "5s") -> None:
        """A relay asks for its host, and is answered after its wait."""
        heard_at = self.watch.hear(host, version="1", age_seconds=60.0, machines=2, etag="e.1.d")
        self.watch.expect(host, heard_at, elapsed(wait).total_seconds())

    def crowd(self, number: int) -> list[str]:
        """So many relays ask for their hosts, each with a token."""
        replica, hosts = self.processes["a"], [f"x{each}" for each in range(number)]
        for host in hosts:
            made = new_token(host, f"of {host}", by="ann", at=NOW)
            done(replica.plane.order(relay_watch.create_token, made))
            replica.relays.hear(host, version="1", age_seconds=60.0, machines=2, etag="")
        return hosts

    def look(self, fails: str = "") -> None:
        with pytest.raises(StoreUnavailable) if fails else nullcontext():
            self.at.look()

    def round(self) -> None:
        """Look as `run` does, which goes on while the store is away."""
        asyncio.run(self.watch._round())

    def stop(self) -> None:
        self.watch.stop()
        asyncio.run(self.watch.run())

    def revoke(self, host: str) -> None:
        assert done(self.plane.order(relay_watch.revoke_tokens, host)) == 1

    def use(self, digest: str, host: str) -> None:
        token = self.watch.token_of(digest)
        assert (token.host if token else "nothing") == host
        if token:
            self.watch.use(token)

    def stall(self, host: str, seconds: str) -> None:
        self.watch.stalled(host, float(seconds))

    def drain(self, host: str, state: str) -> None:
        at = {"requested_at": NOW, "changed_at": NOW}
        self.watch.learn(Changes(drains=(Drain(host=host, state=HostState(state), **at),)))

    def changes(self, *hosts: str) -> None:
        """Something changes that the relays of these hosts do not know."""
        self.at.all_known = False
        self.watch.changed(hosts)

    def all_known(self) -> None:
        self.at.all_known = True

    def refuse(self) -> None:
        """The rules refuse whatever is decided."""

        def refused(*_: object, **__: object) -> Decision:
            raise Refused(ErrorCode.CONFLICT, "not now")

        self.decide, self.plane._decision = self.plane._decision, refused

    def allow(self) -> None:
        self.plane._decision = self.decide

    def start(self, how: str, until: str = "") -> None:
        """What is due starts, or nothing does: now, or at each look until a time."""
        assert (done(self.plane.advance()) > 0) is (how == "some")
        while until and self.clock.now() < self.moment(until):
            self.look()
            self.clock.advance(SECOND)
            assert (done(self.plane.advance()) > 0) is (how == "some")

    # What must be so.

    def void(self, *hosts: str) -> None:
        assert self.at.void == [*hosts]

    def used(self, name: str) -> None:
        assert self.watch.tokens[name].used_at is not None

    def tokens(self, host: str, *digests: str) -> None:
        assert [token.digest for token in self.watch.tokens_of(host)] == [*digests]

    def knows(self, *hosts: str) -> None:
        assert [*self.look_up(lambda reading: reading.relays())] == [*hosts]

    def heard(self, host: str, at: str) -> None:
        known = self.look_up(lambda reading: reading.relays())
        assert known[host].heard_at == self.moment(at)

    def news(self, *expected: str) -> None:
        """The news of holds, in order."""
        rows = self.look_up(lambda reading: reading.news_after(0, 1000))
        told = [one.type for row in rows for one in decode(row.items)]
        ours = {NewsType.HOLD_PUT, NewsType.HOLD_RELEASED}
        assert [kind for kind in told if kind in ours] == [*expected]

    def alerting(self) -> Iterable[Alert]:
        return self.watch.alerts()


@pytest.mark.parametrize("rows", stories_beside(__file__, "relay_watch.txt"))
def test_the_story_holds(rows: list[tuple[int, str]]) -> None:
    assert RelayStory().play("relay_watch.txt", rows)


def test_of_many_relays_that_lack_a_change_a_few_are_judged_in_each_round_of_the_loop() -> None:
    told, asked = RelayStory(), list[str]()
    watch = told.processes["a"].relays
    hosts = told.crowd(100)
    watch.changed(hosts)
    watch._has_all = lambda host, _: not asked.append(host)  # type: ignore[func-returns-value]

    async def most() -> int:
        looking, counts = asyncio.ensure_future(watch.look()), [0]
        while not looking.done():
            await asyncio.sleep(0)
            counts.append(len(asked))
        return max(after - before for before, after in itertools.pairwise(counts))

    assert asyncio.run(most()) <= relay_watch.JUDGED_AT_ONCE
    assert asked == hosts


def test_nothing_starts_while_a_crowd_of_relays_is_away_that_is_not_held_at_once() -> None:
    told = RelayStory()
    replica = told.processes["a"]
    told.clock.advance(30 * SECOND)
    told.crowd(relay_watch.MAX_AT_ONCE + 1)
    replica.look()
    assert replica.may_start()
    told.clock.advance(30 * SECOND)
    replica.look()
    assert not replica.may_start()
    replica.look()
    assert replica.may_start()


def test_hosts_that_operators_hold_delay_no_other_hold_and_no_start() -> None:
    told = RelayStory()
    replica = told.processes["a"]
    told.clock.advance(30 * SECOND)
    *held, last = told.crowd(relay_watch.MAX_AT_ONCE + 2)
    for host in held:
        done(replica.plane.hold(HoldKind.HOST, host, reason="", by="ann", hosts=held))
    told.clock.advance(30 * SECOND)
    replica.look()
    assert replica.relays.relays[last].held_for is not None
    assert replica.may_start()
    done(replica.plane.release(HoldKind.HOST, held[0]))
    replica.look()
    assert replica.relays.relays[held[0]].held_for is not None


def test_a_host_is_held_though_the_store_lost_what_its_relay_said_last() -> None:
    told = RelayStory()
    replica = told.processes["a"]
    told.clock.advance(30 * SECOND)
    (host,) = told.crowd(1)
    replica.look()
    done(replica.plane.order(lambda unit: unit.store.forget_relay(host)))
    told.clock.advance(30 * SECOND)
    replica.look()
    assert replica.relays.relays[host].held_for is not None


def test_a_host_that_an_operator_has_held_meanwhile_is_not_marked_as_held() -> None:
    told = RelayStory()
    replica = told.processes["a"]
    (host,) = told.crowd(1)
    replica.look()
    done(replica.plane.hold(HoldKind.HOST, host, reason="", by="ann", hosts=[host]))
    known = replica.relays.relays[host]
    found = done(replica.plane.order(relay_watch.hold, known, NOW))  # a look had begun before
    assert found.held_for is None


def test_a_hold_that_the_store_lost_is_made_again() -> None:
    told = RelayStory()
    replica = told.processes["a"]
    told.clock.advance(30 * SECOND)
    (host,) = told.crowd(1)
    for _ in range(2):
        replica.look()
        told.clock.advance(30 * SECOND)
    done(replica.plane.order(relay_watch.release, host))  # as if it had never been held
    replica.relays.settle()
    told.clock.advance(30 * SECOND)
    replica.look()
    assert [each.name for each in told.look_up(lambda reading: reading.holds())] == [host]


def test_revoked_relays_stay_forgotten_whatever_another_replica_writes_of_them_then() -> None:
    told = RelayStory()
    told.carry_out("together")
    hosts = [f"x{number}" for number in range(50)]
    for host in hosts:
        told.token(f"of {host}", host)
        told.hear(host)
    told.look()
    late = [*told.watch.relays.values()]
    for host in hosts:
        told.revoke(host)
    told.stored.hear(late)  # as a beat that was under way does
    done(told.plane.order(relay_watch.hold, late[-1], NOW))  # as a look does
    told.carry_out("holds")
    for name in "ab":
        told.carry_out("pass 2s")
        told.carry_out(f"look {name}")
        assert [host for host in told.watch.relays if host != "h0"] == []

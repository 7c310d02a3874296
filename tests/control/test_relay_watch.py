"""Relays that are away: relay_watch.txt, played by replicas on one store at one time."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from builders import FLEET, NOW, mint
from control.conftest import Counting, done
from forewarn.clock import ManualClock
from forewarn.control import relay_watch
from forewarn.control.changefeed import Changefeed
from forewarn.control.outbox import Follower
from forewarn.control.plane import Plane
from forewarn.control.relay_watch import RelayWatch
from forewarn.control.service_clock import ServiceClock
from forewarn.control.writer import Writer
from forewarn.maintenance.model import (
    Changes,
    Drain,
    HoldKind,
    HostState,
    Policy,
    Queueing,
    Refused,
)
from forewarn.maintenance.news import NewsType, decode
from forewarn.maintenance.planner import Request
from forewarn.maintenance.relays import BY, new_token
from forewarn.maintenance.transitions import Decision
from forewarn.store.port import StoreUnavailable
from forewarn.store.sql import Store
from forewarn.vocabulary import ErrorCode, EventType
from store.shared import SharedStore
from stories import Told, elapsed, elapsed_at, stories_beside


class RelayReplica:
    """A replica's part: a control plane and a watch over a store, at one time with the others."""

    def __init__(self, store: Store, clock: ManualClock, name: str) -> None:
        feed = Changefeed()
        self.follower = Follower(store, feed, clock, replica=name)
        self.plane = Plane(
            Writer(store, clock, feed, self.follower),
            mint("b"),
            Policy(queue=Queueing.START),
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
        self.follower.begin()
        feed.subscribe(self.watch.learn)
        with store.read() as reading:
            self.watch.learn(Changes(tokens=tuple(reading.tokens().values())))
            self.watch.settle()

    def look(self) -> None:
        self.follower.look()
        asyncio.run(self.watch.look())


class RelayStory(Told):
    """Replicas so far; a line is about `a` unless it says `by=b`."""

    def __init__(self) -> None:
        self.clock = ManualClock(NOW)
        self.shared = Counting()
        self.replicas: dict[str, RelayReplica] = {}
        self.restart("a")

    def restart(self, name: str) -> None:
        self.replicas[name] = RelayReplica(self.shared, self.clock, name)

    def together(self) -> None:
        """Replicas a and b share a store instead, and settle; the relay has not asked yet."""
        self.clock = ManualClock(NOW)
        self.shared = Counting(SharedStore())
        self.restart("a")
        self.restart("b")
        self.apply()
        self.token("d0", "h0")
        self.schedule("web-0")
        self.pass_("10s")
        self.look()
        self.look(by="b")
        self.pass_("2s")

    @property
    def plane(self) -> Plane:
        return self.replicas["a"].plane

    @property
    def watch(self) -> RelayWatch:
        return self.replicas["a"].watch

    def apply(self) -> None:
        done(self.plane.apply_fleet(FLEET))

    def token(self, digest: str, host: str) -> None:
        made = new_token(host, digest, by="ann", at=NOW)
        done(self.plane.order(relay_watch.create_token, made))

    def pass_(self, span: str) -> None:
        self.clock.advance(elapsed(span))

    def schedule(self, machine: str) -> None:
        done(self.plane.request(Request(event_type=EventType.REBOOT, machines=(machine,))))

    def hear(self, host: str, wait: str = "5s", by: str = "a") -> None:
        """A relay asks for its host, and is answered after its wait."""
        watch = self.replicas[by].watch
        heard_at = watch.hear(host, version="1", age_seconds=60.0, machines=2, etag="e.1.d")
        watch.expect(host, heard_at, elapsed(wait).total_seconds())

    def look(self, by: str = "a", fails: str = "") -> None:
        if not fails:
            self.replicas[by].look()
            return
        with pytest.raises(StoreUnavailable):
            self.replicas[by].look()

    def store(self, how: str) -> None:
        self.shared.away = how == "away"

    def hold(self, host: str) -> None:
        done(self.plane.hold(HoldKind.HOST, host, reason="disk", by="ann"))

    def release(self, host: str) -> None:
        done(self.plane.release(HoldKind.HOST, host))

    def revoke(self, host: str) -> None:
        assert done(self.plane.order(relay_watch.revoke_tokens, host)) == 1

    def use(self, digest: str, host: str) -> None:
        assert self.watch.host_of(digest) == (None if host == "nothing" else host)

    def stall(self, host: str, seconds: str) -> None:
        self.watch.stalled(host, float(seconds))

    def drain(self, host: str, state: str) -> None:
        at = {"requested_at": NOW, "changed_at": NOW}
        self.watch.learn(Changes(drains=(Drain(host=host, state=HostState(state), **at),)))

    def changes(self, *hosts: str) -> None:
        """Something changes that the relays of these hosts do not know."""
        self.replicas["a"].all_known = False
        self.watch.changed(hosts)

    def all_known(self) -> None:
        self.replicas["a"].all_known = True

    def refuse(self) -> None:
        """The rules refuse whatever is decided."""

        def refused(*_: object, **__: object) -> Decision:
            raise Refused(ErrorCode.CONFLICT, "not now")

        self.decide, self.plane._decide = self.plane._decide, refused

    def allow(self) -> None:
        self.plane._decide = self.decide

    def start(self, how: str, until: str = "") -> None:
        """What is due starts, or nothing does: now, or at each look until a time."""
        assert (done(self.plane.advance()) > 0) is (how == "some")
        while until and self.clock.now() < NOW + elapsed(until):
            self.look()
            self.clock.advance(timedelta(seconds=1))
            assert (done(self.plane.advance()) > 0) is (how == "some")

    # What must be so.

    def holds(self, *expected: str) -> None:
        with self.shared.read() as reading:
            holds = reading.holds()
        by = {BY: "relay"}
        told = [
            f"{h.kind} {h.name} {by.get(h.by, h.by)} {elapsed_at(h.at).seconds}s" for h in holds
        ]
        assert told == [*expected]

    def operation(self, name: str, status: str, **times: str) -> None:
        with self.shared.read() as reading:
            found = reading.operations([name])[name]
        self.compare(found, {"status": status, **times})

    def void(self, *hosts: str) -> None:
        assert self.replicas["a"].void == [*hosts]

    def used(self, name: str) -> None:
        assert self.watch.tokens[name].used_at is not None

    def tokens(self, host: str, *digests: str) -> None:
        assert [token.digest for token in self.watch.tokens_of(host)] == [*digests]

    def may_start(self, how: str, by: str = "a") -> None:
        assert self.replicas[by].watch.may_start() is (how == "yes")

    def knows(self, *hosts: str) -> None:
        assert [*self._known()] == [*hosts]

    def heard(self, host: str, at: str) -> None:
        assert elapsed_at(self._known()[host].heard_at) == elapsed(at)

    def news(self, *expected: str) -> None:
        """The news of holds, in order."""
        with self.shared.read() as reading:
            told = [one.type for row in reading.news_after(0, 1000) for one in decode(row.items)]
        ours = {NewsType.HOLD_PUT, NewsType.HOLD_RELEASED}
        assert [kind for kind in told if kind in ours] == [*expected]

    def alerts(self, *expected: str) -> None:
        found = self.watch.alerts()
        told = [f"{one.kind} {one.about} {elapsed_at(one.since).seconds}s" for one in found]
        assert told == [*expected]

    def _known(self) -> dict[str, Any]:
        with self.shared.read() as reading:
            return dict(reading.relays())


@pytest.mark.parametrize("rows", stories_beside(__file__, "relay_watch.txt"))
def test_the_story_holds(rows: list[tuple[int, str]]) -> None:
    assert RelayStory().play("relay_watch.txt", rows)


def test_revoked_relays_stay_forgotten_whatever_another_replica_writes_of_them_then() -> None:
    told = RelayStory()
    told.together()
    hosts = [f"x{number}" for number in range(50)]
    for host in hosts:
        told.token(f"of {host}", host)
        told.hear(host)
    told.look()
    late = [*told.watch.relays.values()]
    for host in hosts:
        told.revoke(host)
    told.shared.hear(late)  # as a beat that was under way does
    for each in told.replicas.values():
        told.pass_("2s")
        each.look()
        assert [host for host in each.watch.relays if host != "h0"] == []

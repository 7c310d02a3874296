"""What each host's relay is told, whatever changes, in whatever order and however late it asks."""

import asyncio
import contextlib
import random
from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec
import pytest

import patience
from builders import FLEET, MINUTE, NOW, mint
from control.conftest import done
from forewarn.clock import ManualClock
from forewarn.connectors.port import Outcome
from forewarn.control.changefeed import Changefeed, Reached
from forewarn.control.outbox import Follower, everything, known_of
from forewarn.control.plane import Plane
from forewarn.control.writer import InlineWriter
from forewarn.maintenance.model import Changes, HoldKind, Machine, Operation, Refused
from forewarn.maintenance.planner import Request
from forewarn.server import relay_feed
from forewarn.server.guest.documents import Documents
from forewarn.server.relay import hub as relay_hub
from forewarn.server.relay.hub import RelayHub
from forewarn.server.relay_feed import GuestRules, News, ScopeDocument
from forewarn.store import memory
from forewarn.store.port import Store
from forewarn.vocabulary import EventType

T = TypeVar("T")
RULES = GuestRules()


class HubReplica:
    """A replica's memory as the service wires it, without sockets."""

    def __init__(
        self,
        store: Store,
        clock: ManualClock,
        name: str = "a",
        *,
        most: int = 1000,
        rules: GuestRules = RULES,
    ) -> None:
        self.clock = clock
        self.store = store
        self.lost = ""
        self.machines: dict[str, Machine] = {}
        self.documents = Documents()
        self.feed = Changefeed()
        self.follower = Follower(store, self.feed, clock, replica=name)
        self.plane = Plane(InlineWriter(store, clock, self.feed, self.follower), mint(name))
        self.hub = RelayHub(
            self.machines,
            self.documents.whole,
            rules,
            epoch=lambda: f"e{self.lost}",
            alone=not store.shared,
            most=most,
        )
        with store.read() as reading:
            known = everything(known_of(reading))
            self.follower.begin(reading.position())
        for learn in (self._learn, self.hub.learn):
            learn(known)
            self.feed.subscribe(learn)
        self.hub.begin(self.follower.applied.sequence)
        self.feed.tell(lambda reached: self.hub.reach(reached.sequence))

    def _learn(self, changes: Any) -> None:
        for key in changes.removed_machines:
            self.machines.pop(key, None)
        self.machines.update((machine.key, machine) for machine in changes.machines)
        self.documents.learn(changes)

    def apply(self, fleet: Any, *, prune: bool = False) -> None:
        done(self.plane.apply_fleet(fleet, prune=prune))

    def ask(self, *machines: str, event_type: EventType = EventType.REBOOT, **more: Any) -> Any:
        request = Request(event_type=event_type, machines=machines, **more)
        return done(self.plane.request(request))

    def operation(self, name: str) -> Operation:
        with self.store.read() as reading:
            return reading.operations([name])[name]

    def start(self, name: str = "1.1") -> int:
        """Start and claim an operation; return its attempt."""
        self.clock.advance(30 * MINUTE)
        done(self.plane.advance())
        (task,) = done(self.plane.claim("a", MINUTE, 10))
        assert task.operation == name
        return int(task.attempt)


class ToldRelay:
    """What a relay has by the news that it applied."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.position = ""
        self.machines: dict[str, Machine] = {}
        self.scopes: dict[str, ScopeDocument] = {}

    def ask(self, hub: RelayHub) -> News | None:
        body = hub.news(self.host, self.position)
        return None if body is None else self.apply(body)

    def apply(self, body: bytes) -> News:
        news = relay_feed.decode_news(body)
        assert news.host == self.host
        if news.snapshot:
            self.machines, self.scopes = {}, {}
        self.machines.update((machine.key, machine) for machine in news.machines)
        self.scopes.update((one.scope.key, one) for one in news.scopes)
        for key in news.removed_machines:
            self.machines.pop(key, None)
        for key in news.removed_scopes:
            self.scopes.pop(key, None)
        self.position = news.position
        return news

    def check(self, replica: HubReplica) -> None:
        """It has the machines of its host with their documents, and nothing else."""
        with replica.store.read() as reading:
            moving = {
                name.lower()
                for operation in reading.live_operations().values()
                if operation.status.visible and operation.to_host == self.host
                for name in operation.machines
            }
            own = {
                key: machine
                for key, machine in reading.machines().items()
                if machine.host == self.host or key in moving
            }
        assert self.machines == own
        scopes = {machine.scope for machine in own.values()}
        assert self.scopes == {key: replica.documents.whole(key) for key in scopes}


@pytest.fixture
def replica() -> HubReplica:
    made = HubReplica(memory.MemoryStore(), ManualClock(NOW))
    made.apply(FLEET)
    return made


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(coroutine)


def test_the_first_answer_is_a_snapshot_and_then_there_is_no_news(replica: HubReplica) -> None:
    relay = ToldRelay("h0")
    news = relay.ask(replica.hub)
    assert news is not None
    assert news.snapshot
    assert news.rules == GuestRules()
    relay.check(replica)
    assert relay.ask(replica.hub) is None


def test_a_position_that_no_store_could_keep_is_none(replica: HubReplica) -> None:
    assert replica.hub.place_of("e.7") == ("e", 7)
    for position in ("\0.7", "e" * 257 + ".7", ".7", "e.-7", "e." + "7" * 19):
        assert replica.hub.place_of(position) == ("", 0)


def test_a_change_concerns_the_hosts_that_have_the_scope_and_no_other(replica: HubReplica) -> None:
    told, other = ToldRelay("h0"), ToldRelay("elsewhere")
    for relay in (told, other):
        relay.ask(replica.hub)
    replica.ask("web-1")  # of another host, in a scope that h0 has machines of
    assert other.ask(replica.hub) is None
    news = told.ask(replica.hub)
    assert news is not None
    assert not news.snapshot
    assert (news.machines, len(news.scopes), news.rules) == ((), 1, None)
    told.check(replica)


def test_a_machine_that_changes_its_scope_brings_the_new_one_and_takes_the_old(
    replica: HubReplica,
) -> None:
    relay = ToldRelay("h9")
    done(replica.plane.record_hosts({"web-0": "h9"}))
    relay.ask(replica.hub)
    assert list(relay.scopes) == ["web"]
    moved = msgspec.structs.replace(replica.machines["web-0"], scope="batch")
    replica.feed.publish(Changes(machines=(moved,)))
    replica.feed.reach(Reached(9))
    news = relay.ask(replica.hub)
    assert news is not None
    assert (list(relay.scopes), news.removed_scopes) == (["batch"], ("web",))
    assert relay.machines == {"web-0": moved}


def test_a_claim_that_is_renewed_wakes_nobody(replica: HubReplica) -> None:
    relay = ToldRelay("h0")
    replica.ask("web-0")
    attempt = replica.start()
    relay.ask(replica.hub)
    done(replica.plane.renew("1.1", attempt, MINUTE))
    assert relay.ask(replica.hub) is None


def test_a_scope_is_encoded_once_for_all_its_hosts(replica: HubReplica) -> None:
    counted: list[str] = []
    whole = replica.hub._whole

    def count(key: str) -> ScopeDocument:
        counted.append(key)
        return whole(key)

    replica.hub._whole = count
    for host in ("h0", "h1", "h2") * 2:
        ToldRelay(host).ask(replica.hub)
    assert counted == ["web"]


def test_the_target_of_a_move_knows_the_machine_before_it_moves(replica: HubReplica) -> None:
    source, target = ToldRelay("h0"), ToldRelay("h9")
    for relay in (source, target):
        relay.ask(replica.hub)
    replica.ask("web-0", event_type=EventType.REDEPLOY, to_host="h9")
    for relay in (source, target):
        relay.ask(replica.hub)
        relay.check(replica)
        assert "web-0" in relay.machines
    attempt = replica.start()
    moved = Outcome(succeeded=True, message="", hosts={"web-0": "h9"})
    done(replica.plane.finish("1.1", attempt, moved))
    for relay in (source, target):
        relay.ask(replica.hub)
        relay.check(replica)
    assert "web-0" not in source.machines
    assert "web-0" in target.machines


def test_a_move_that_is_cancelled_takes_the_machine_from_its_target(replica: HubReplica) -> None:
    target = ToldRelay("h9")
    replica.ask("web-0", event_type=EventType.REDEPLOY, to_host="h9")
    target.ask(replica.hub)
    assert "web-0" in target.machines
    done(replica.plane.cancel(["1"], reason=""))
    target.ask(replica.hub)
    assert (target.machines, target.scopes) == ({}, {})
    target.check(replica)


def test_a_machine_that_moves_where_nobody_knows_is_given_to_the_relay_that_hears_it(
    replica: HubReplica,
) -> None:
    hub, target = replica.hub, ToldRelay("h9")
    replica.ask("web-0", event_type=EventType.REDEPLOY)
    assert hub.claim("h9", "", "10.0.0.10") is None  # it has not started to move
    attempt = replica.start()
    position = hub.position
    assert hub.claim("h9", "", "10.0.0.99") is None
    assert hub.claim("h9", "other", "10.0.0.10") is None
    assert hub.claim("h9", "", "10.0.0.10") is not None
    body = hub.news("h9", position)  # at once, though no change has come to the outbox
    assert body is not None
    target.apply(body)
    assert hub.news("h9", position) is None
    assert list(target.machines) == ["web-0"]
    assert hub.machine("h9", "web-0") is not None
    gone = Outcome(succeeded=True, message="", hosts={"web-0": "h8"})
    done(replica.plane.finish("1.1", attempt, gone))
    assert hub.machine("h9", "web-0") is None
    target.ask(hub)
    target.check(replica)


@pytest.mark.parametrize(
    "position", ["", "junk", "e.", "e.x", "other.1", ".5", "e.-1", "e." + "9" * 30]
)
def test_a_position_that_is_none_of_ours_leads_to_a_snapshot(
    replica: HubReplica, position: str
) -> None:
    relay = ToldRelay("h0")
    relay.position = position
    news = relay.ask(replica.hub)
    assert news is not None
    assert news.snapshot


def test_who_has_missed_more_than_is_kept_gets_a_snapshot() -> None:
    replica = HubReplica(memory.MemoryStore(), ManualClock(NOW), most=6)
    replica.apply(FLEET)
    late, quick, idle = ToldRelay("h0"), ToldRelay("h0"), ToldRelay("elsewhere")
    for relay in (late, quick, idle):
        relay.ask(replica.hub)
    for number in range(1, 4):
        replica.ask("web-0")
        done(replica.plane.cancel([str(number)], reason=""))
        news = quick.ask(replica.hub)
        assert news is not None
        assert not news.snapshot
        quick.check(replica)
    news = late.ask(replica.hub)
    assert news is not None
    assert news.snapshot
    late.check(replica)
    assert idle.ask(replica.hub) is None  # nothing of its host changed


def test_after_a_restart_who_knows_everything_waits_and_others_get_a_snapshot(
    replica: HubReplica,
) -> None:
    late, quick = ToldRelay("h0"), ToldRelay("h0")
    late.ask(replica.hub)
    replica.ask("web-0")
    quick.ask(replica.hub)
    again = HubReplica(replica.store, replica.clock)
    assert quick.ask(again.hub) is None
    news = late.ask(again.hub)
    assert news is not None
    assert news.snapshot
    late.check(again)


def test_after_a_restart_with_other_settings_everybody_is_told_of_them(
    replica: HubReplica,
) -> None:
    relay, rules = ToldRelay("h0"), GuestRules(rate_burst=7)
    relay.ask(replica.hub)
    again = HubReplica(replica.store, replica.clock, rules=rules)
    news = relay.ask(again.hub)
    assert news is not None
    assert news.rules == rules


def test_after_changes_were_lost_everybody_gets_a_snapshot(replica: HubReplica) -> None:
    relay = ToldRelay("h0")
    relay.ask(replica.hub)
    replica.lost = "x"
    done(replica.plane.probe())
    replica.hub.reach(3)
    news = relay.ask(replica.hub)
    assert news is not None
    assert news.snapshot
    assert relay.ask(replica.hub) is None


def test_who_is_ahead_of_a_replica_waits_and_where_there_is_one_alone_starts_again() -> None:
    store, clock = memory.MemoryStore(shared=True), ManualClock(NOW)
    one, two = (HubReplica(store, clock, name) for name in "ab")
    one.apply(FLEET)
    relay = ToldRelay("h0")
    relay.ask(one.hub)
    assert relay.ask(two.hub) is None
    two.follower.look()
    assert relay.ask(two.hub) is None
    alone = HubReplica(memory.MemoryStore(), clock)
    news = relay.ask(alone.hub)
    assert news is not None
    assert news.snapshot


def test_who_was_ahead_of_a_restored_database_gets_all_of_it_once_that_is_ahead(
    replica: HubReplica,
) -> None:
    relay = ToldRelay("h0")
    relay.ask(replica.hub)
    epoch, sequence = replica.hub.place_of(relay.position)
    relay.position = f"{epoch}.{sequence + 1}"
    body = replica.hub.news(relay.host, relay.position)
    assert body is not None
    assert relay_feed.decode_news(body).snapshot  # which a relay refuses: it is older
    replica.ask("web-0")
    assert relay.ask(replica.hub) is None
    assert not replica.hub.has_all(relay.host, epoch, sequence + 1)
    replica.start()
    news = relay.ask(replica.hub)
    assert news is not None
    assert news.snapshot
    relay.check(replica)
    assert relay.ask(replica.hub) is None


def test_hosts_that_come_and_go_are_forgotten(replica: HubReplica) -> None:
    before = dict(replica.hub._hosts)
    for number in range(50):
        done(replica.plane.record_hosts({"web-0": f"x{number}"}))
    done(replica.plane.record_hosts({"web-0": "h0"}))
    assert replica.hub._hosts.keys() == before.keys()


def test_who_asks_for_a_host_that_was_forgotten_loses_the_machines_that_left_it(
    replica: HubReplica,
) -> None:
    away, late = ToldRelay("x"), ToldRelay("x")
    done(replica.plane.record_hosts({"web-0": "x"}))
    for relay in (away, late):
        relay.ask(replica.hub)
        assert list(relay.machines) == ["web-0"]
    done(replica.plane.record_hosts({"web-0": "h0"}))
    assert not replica.hub.has_all("x", *replica.hub.place_of(away.position))
    away.ask(replica.hub)
    away.check(replica)
    assert away.ask(replica.hub) is None
    done(replica.plane.record_hosts({"web-1": "x"}))
    for relay in (away, late):  # the other has missed that it was empty
        relay.ask(replica.hub)
        assert list(relay.machines) == ["web-1"]


def test_a_relay_that_waits_is_told_that_its_host_is_empty(replica: HubReplica) -> None:
    hub, relay = replica.hub, ToldRelay("x")
    done(replica.plane.record_hosts({"web-0": "x"}))
    relay.ask(hub)

    async def wait() -> None:
        waiting = waits(hub, "x", open_connection())
        await asyncio.sleep(0)
        done(replica.plane.record_hosts({"web-0": "h0"}))
        assert await waiting

    run(wait())
    news = relay.ask(hub)
    assert news is not None
    assert (news.snapshot, news.removed_machines) == (False, ("web-0",))
    hub.wake("x")  # its token is revoked
    assert "x" not in hub._hosts


def open_connection() -> "asyncio.Future[None]":
    return asyncio.get_running_loop().create_future()


def waits(hub: RelayHub, host: str, connection: "asyncio.Future[None]") -> "asyncio.Task[bool]":
    return asyncio.ensure_future(hub.wait(host, patience.SECONDS, connection))


def test_it_is_told_which_hosts_a_change_concerns(replica: HubReplica) -> None:
    told: list[list[str]] = []
    replica.hub.on_change = lambda hosts: told.append(sorted(hosts))
    replica.ask("web-0")  # its scope has machines on three hosts
    replica.start()
    assert {host for hosts in told for host in hosts} == {"h0", "h1", "h2"}
    told.clear()
    replica.hub.reach(99)
    assert [host for hosts in told for host in hosts] == []


def test_a_wait_ends_once_the_connection_is_lost(replica: HubReplica) -> None:
    hub = replica.hub

    async def wait() -> bool:
        lost, other = open_connection(), open_connection()
        waiting = waits(hub, "h0", lost)
        staying = waits(hub, "h0", other)
        await asyncio.sleep(0)
        lost.set_result(None)
        ended = await waiting
        assert hub.waiting == 1
        hub.wake("h0")
        assert await staying
        other.set_result(None)  # it wakes nobody any more
        return ended

    assert not run(wait())


def test_a_wait_ends_by_a_change_by_time_and_by_too_many(replica: HubReplica) -> None:
    hub = replica.hub

    async def wait() -> list[bool]:
        changed = waits(hub, "h0", open_connection())
        other = waits(hub, "elsewhere", open_connection())
        await asyncio.sleep(0)
        assert hub.waiting == 2
        replica.ask("web-0")
        found = [await changed, other.done()]
        hub.wake_all()
        found.append(await other)
        found.append(await hub.wait("h0", 0.0, open_connection()))
        many = [waits(hub, "h0", open_connection()) for _ in range(9)]
        await asyncio.sleep(0)
        assert hub.waiting == relay_hub.MAX_WAITING
        hub.wake("h0")
        found += await asyncio.gather(*many)
        assert hub.waiting == 0
        return found

    ended = run(wait())
    assert ended[:4] == [True, False, True, False]
    assert sorted(ended[4:]) == [False] * 5 + [True] * 4


def test_the_relays_of_awaited_machines_are_told_and_nobody_else(replica: HubReplica) -> None:
    hub = replica.hub
    replica.ask("web-0")
    replica.start()
    relay, other = ToldRelay("h0"), ToldRelay("h1")
    for each in (relay, other):
        each.ask(hub)
    awaiting = msgspec.structs.replace(replica.operation("1.1"), awaited=("web-0", "gone"))

    async def tell() -> list[bool]:
        asking = [waits(hub, host, open_connection()) for host in ("h0", "h1")]
        await asyncio.sleep(0)
        hub.ask_again(awaiting)
        told = [await asking[0], asking[1].done()]
        hub.wake_all()
        await asking[1]
        return told

    assert run(tell()) == [True, False]
    news = relay.ask(hub)
    assert news is not None
    assert (news.awaited, news.machines, news.scopes) == (("web-0",), (), ())
    assert relay.ask(hub) is None
    assert other.ask(hub) is None
    hub.ask_again(awaiting)  # nobody waits: it is not kept for ever
    assert relay.ask(hub) is None


def test_a_host_is_busy_while_an_operation_of_its_machines_is_scheduled(
    replica: HubReplica,
) -> None:
    assert not replica.hub.is_busy("h0")
    replica.ask("web-0")
    assert replica.hub.is_busy("h0")
    assert not replica.hub.is_busy("h1")
    done(replica.plane.hold(HoldKind.HOST, "h0", reason="", by=""))
    assert replica.hub.is_busy("h0")
    done(replica.plane.cancel(["1"], reason=""))
    assert not replica.hub.is_busy("h0")


@pytest.mark.parametrize("seed", range(20))
def test_relays_that_ask_now_and_then_have_what_the_store_has(seed: int) -> None:
    chance = random.Random(seed)
    store, clock = memory.MemoryStore(shared=True), ManualClock(NOW)
    replicas = [HubReplica(store, clock, name, most=40) for name in "ab"]
    replicas[0].apply(FLEET)
    relays = [ToldRelay(f"h{n}") for n in range(4)]
    changes = (_move, _request, _cancel, _apply, _carry_out)
    for _ in range(120):
        chance.choice(changes)(chance.choice(replicas), chance)
        if chance.random() < 0.3:
            chance.choice(replicas).follower.look()
        relay, asked = chance.choice(relays), chance.choice(replicas)
        relay.ask(asked.hub)
        if not _is_ahead(relay, asked) and _is_level(asked):
            relay.check(asked)
    for replica in replicas:
        replica.follower.look()
        for relay in relays:
            relay.ask(replica.hub)
            relay.check(replica)


def _move(replica: HubReplica, chance: random.Random) -> None:
    done(replica.plane.record_hosts({f"web-{chance.randrange(6)}": _host(chance)}))


def _request(replica: HubReplica, chance: random.Random) -> None:
    kind = chance.choice([EventType.REBOOT, EventType.REDEPLOY])
    machines = (f"web-{chance.randrange(6)}",)
    to = _host(chance) if kind is EventType.REDEPLOY else ""
    with_refusals(replica.plane.request(Request(event_type=kind, machines=machines, to_host=to)))


def _cancel(replica: HubReplica, chance: random.Random) -> None:
    with replica.store.read() as reading:
        live = sorted(reading.live_operations())
    if live:
        with_refusals(replica.plane.cancel([chance.choice(live)], reason=""))


def _apply(replica: HubReplica, chance: random.Random) -> None:
    wanted = chance.choice([FLEET, FLEET, msgspec.structs.replace(FLEET, scale_set=())])
    with_refusals(replica.plane.apply_fleet(wanted, prune=True, again=True))


def _carry_out(replica: HubReplica, chance: random.Random) -> None:
    replica.clock.advance(chance.randrange(20) * MINUTE)
    done(replica.plane.advance())
    for task in done(replica.plane.claim("a", MINUTE, 10)):
        if chance.random() < 0.7:
            hosts = {name: _host(chance) for name in task.machines}
            ended = Outcome(succeeded=True, message="", hosts=hosts)
            with_refusals(replica.plane.finish(task.operation, task.attempt, ended))


def _host(chance: random.Random) -> str:
    return f"h{chance.randrange(4)}"


def _is_ahead(relay: ToldRelay, replica: HubReplica) -> bool:
    """Whether a relay knows more than this replica."""
    knows, hub = replica.hub.place_of(relay.position), replica.hub.place_of(replica.hub.position)
    return knows[0] == hub[0] and knows[1] > hub[1]


def _is_level(replica: HubReplica) -> bool:
    with replica.store.read() as reading:
        return reading.position() == replica.follower.applied


def with_refusals(future: Any) -> None:
    """Wait for a change that the rules may refuse."""
    with contextlib.suppress(Refused):
        done(future)

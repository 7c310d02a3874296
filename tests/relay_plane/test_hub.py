"""What each host's relay is told, whatever changes, in whatever order and however late it asks."""

import asyncio
import contextlib
import random
from typing import Any

import msgspec
import pytest

import patience
from builders import FLEET, MINUTE, NOW, mint
from control.conftest import done
from forewarn.clock import ManualClock
from forewarn.connectors.port import Outcome
from forewarn.control.changefeed import Changefeed, Reached
from forewarn.control.outbox import Follower, everything
from forewarn.control.plane import Plane
from forewarn.control.writer import Writer
from forewarn.maintenance.model import Changes, HoldKind, Machine, Operation, Refused
from forewarn.maintenance.planner import Request
from forewarn.server import relay_feed
from forewarn.server.guest.documents import DocumentCache
from forewarn.server.relay import hub as relay_hub
from forewarn.server.relay.hub import NO_TAG, RelayHub, tag_of
from forewarn.server.relay_feed import GuestRules, HostDocument, ScopeDocument
from forewarn.store.sql import Store
from forewarn.store.sqlite import InMemoryStore
from forewarn.vocabulary import EventStatus, EventType
from store.shared import SharedStore
from stories import Told, listed, stories_beside

RULES = GuestRules()


class HubReplica:
    """A replica's memory as the service wires it, without sockets."""

    def __init__(
        self,
        store: Store,
        clock: ManualClock,
        name: str = "a",
        *,
        rules: GuestRules = RULES,
    ) -> None:
        self.clock = clock
        self.store = store
        self.lost = ""
        self.rules = rules
        self.machines: dict[str, Machine] = {}
        self.documents = DocumentCache()
        self.feed = Changefeed()
        self.follower = Follower(store, self.feed, clock, replica=name)
        self.plane = Plane(Writer(store, clock, self.feed, self.follower), mint(name))
        self.hub = RelayHub(
            self.machines,
            self.documents.whole,
            rules,
            epoch=lambda: f"e{self.lost}",
            alone=not store.shared,
        )
        self.plane.writer.read(self.follower.begin).result()
        known = everything(self.follower.known())
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
    """What a relay has by the documents that it was told."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.etag = ""
        self.machines: dict[str, Machine] = {}
        self.scopes: dict[str, ScopeDocument] = {}
        self.awaited: tuple[str, ...] = ()

    def ask(self, hub: RelayHub) -> HostDocument | None:
        changed = hub.changed(self.host, self.etag)
        if changed is None:
            return None
        self.etag, body = changed
        told = relay_feed.decode_host(body)
        assert told.host == self.host
        self.machines = {machine.key: machine for machine in told.machines}
        self.scopes = {one.scope.key: one for one in told.scopes}
        self.awaited = told.awaited
        return told

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
    made = HubReplica(InMemoryStore(), ManualClock(NOW))
    made.apply(FLEET)
    return made


class HubStory(Told):
    """A story so far: a hub, and the relays that ask it."""

    def __init__(self, replica: HubReplica) -> None:
        self.replica = replica
        self.relays: dict[str, ToldRelay] = {}
        self.attempt = 0

    @property
    def hub(self) -> RelayHub:
        return self.replica.hub

    def relay(self, name: str) -> ToldRelay:
        return self.relays.setdefault(name, ToldRelay(name.partition("/")[0]))

    def told(self, name: str) -> None:
        told = self.relay(name).ask(self.hub)
        assert told is not None
        assert told.rules == self.replica.rules

    def ask(self, name: str) -> None:
        self.told(name)
        self.relay(name).check(self.replica)

    def silent(self, name: str) -> None:
        assert self.relay(name).ask(self.hub) is None

    def has(self, name: str, machines: str) -> None:
        assert sorted(self.relay(name).machines) == ([] if machines == "-" else listed(machines))

    def knows(self, name: str, answer: str = "yes") -> None:
        assert self.hub.has_all(self.relay(name).host, self.relay(name).etag) is (answer == "yes")

    def forge(self, name: str) -> None:
        """It has a document of a number that is still to come."""
        self.relay(name).etag = f"e.999.{'0' * 32}"

    def serves(self, host: str, machine: str, answer: str = "yes") -> None:
        assert (self.hub.machine(host, machine) is not None) is (answer == "yes")

    def claims(self, host: str, address: str, answer: str = "yes", listener: str = "") -> None:
        assert self.hub.claim(host, listener, address) is (answer == "yes")

    def busy(self, host: str, answer: str = "yes") -> None:
        assert self.hub.is_busy(host) is (answer == "yes")

    def request(self, machine: str, type: str = "", to: str = "") -> None:  # noqa: A002
        kind = EventType(type or ("Redeploy" if to else "Reboot"))
        self.replica.ask(machine, event_type=kind, to_host=to)

    def request_host(self, host: str) -> None:
        done(self.replica.plane.request(Request(event_type=EventType.REBOOT, host=host)))

    def cancel(self, reference: str) -> None:
        done(self.replica.plane.cancel([reference], reason=""))

    def hold(self, host: str) -> None:
        done(self.replica.plane.hold(HoldKind.HOST, host, reason="", by=""))

    def move(self, machine: str, host: str) -> None:
        done(self.replica.plane.record_hosts({machine: host}))

    def start(self) -> None:
        self.attempt = self.replica.start()

    def renew(self) -> None:
        done(self.replica.plane.renew({"1.1": self.attempt}, MINUTE))

    def finish(self, machine: str, host: str) -> None:
        moved = Outcome(succeeded=True, message="", hosts={machine: host})
        done(self.replica.plane.finish("1.1", self.attempt, moved))

    def restart(self, **rules: str) -> None:
        changed = GuestRules(**{name: int(value) for name, value in rules.items()})
        self.replica = HubReplica(self.replica.store, self.replica.clock, rules=changed)


@pytest.mark.parametrize("rows", stories_beside(__file__, "hub.txt"))
def test_relays_hear_what_concerns_them(replica: HubReplica, rows: list[tuple[int, str]]) -> None:
    assert HubStory(replica).play("hub.txt", rows)


@pytest.mark.parametrize(
    "etag",
    [
        *("", "junk", "e.7"),
        f".7.{'0' * 32}",
        f"e.-7.{'0' * 32}",
        f"e.7.{'0' * 31}",
        f"e.{'7' * 19}.{'0' * 32}",
        f"{'e' * 200}.7.{'0' * 32}",
        f"\0.7.{'0' * 32}",
    ],
)
def test_an_etag_that_no_replica_made_is_of_no_document(replica: HubReplica, etag: str) -> None:
    assert tag_of(etag) == NO_TAG
    assert not replica.hub.has_all("h0", etag)
    assert replica.hub.changed("h0", etag) is not None


def test_a_machine_that_changes_its_scope_brings_the_new_one_alone(replica: HubReplica) -> None:
    relay = ToldRelay("h9")
    done(replica.plane.record_hosts({"web-0": "h9"}))
    relay.ask(replica.hub)
    assert list(relay.scopes) == ["web"]
    moved = msgspec.structs.replace(replica.machines["web-0"], scope="batch")
    replica.feed.publish([Changes(machines=(moved,))], Reached(9))
    relay.ask(replica.hub)
    assert list(relay.scopes) == ["batch"]
    assert relay.machines == {"web-0": moved}


def test_a_scope_is_encoded_once_for_all_its_hosts(replica: HubReplica) -> None:
    counted: list[str] = []
    whole = replica.hub.whole

    def count(key: str) -> ScopeDocument:
        counted.append(key)
        return whole(key)

    replica.hub.whole = count
    for host in ("h0", "h1", "h2") * 2:
        ToldRelay(host).ask(replica.hub)
    assert counted == ["web"]


def test_a_replica_that_is_behind_takes_no_relay_back() -> None:
    store, clock = SharedStore(), ManualClock(NOW)
    one, two = (HubReplica(store, clock, name) for name in "ab")
    one.apply(FLEET)
    two.follower.look()
    relay, other = ToldRelay("h0"), ToldRelay("h0")
    one.ask("web-0")
    for each in (relay, other):
        each.ask(one.hub)
    assert relay.ask(two.hub) is None
    assert not two.hub.has_all("h0", relay.etag)
    two.follower.look()
    assert relay.ask(two.hub) is None
    assert two.hub.has_all("h0", relay.etag)
    told: list[str] = []
    two.hub.on_change, two.hub.on_lost = told.extend, lambda: told.append("lost")
    two.lost = "x"  # the store lost changes: numbers count from there again
    two.hub.reach(0)
    assert {"lost", "h0"} <= {*told}  # its relay may wait at a replica that is frozen
    other.etag = f"e.999.{'0' * 32}"
    assert other.ask(two.hub) is not None
    assert relay.ask(two.hub) is None


def test_hosts_that_come_and_go_are_forgotten(replica: HubReplica) -> None:
    before = dict(replica.hub._hosts)
    for number in range(50):
        done(replica.plane.record_hosts({"web-0": f"x{number}"}))
    done(replica.plane.record_hosts({"web-0": "h0"}))
    assert replica.hub._hosts.keys() == before.keys()


async def test_a_relay_that_waits_is_told_that_its_host_is_empty(replica: HubReplica) -> None:
    hub, relay = replica.hub, ToldRelay("x")
    done(replica.plane.record_hosts({"web-0": "x"}))
    relay.ask(hub)
    waiting = waits(hub, "x", open_connection())
    await asyncio.sleep(0)
    done(replica.plane.record_hosts({"web-0": "h0"}))
    assert await waiting
    told = relay.ask(hub)
    assert told is not None
    assert told.machines == ()
    assert "x" not in hub._hosts


def open_connection() -> "asyncio.Future[None]":
    return asyncio.get_running_loop().create_future()


def waits(hub: RelayHub, host: str, connection: "asyncio.Future[None]") -> "asyncio.Task[bool]":
    return asyncio.ensure_future(hub.wait(host, patience.SECONDS, connection))


async def test_of_many_relays_a_few_are_answered_in_each_round_of_the_loop(
    replica: HubReplica,
) -> None:
    hub = replica.hub
    waiting = [waits(hub, f"x{number}", open_connection()) for number in range(100)]
    await asyncio.sleep(0)
    replica.lost = "x"
    hub.reach(9)  # concerns them all
    answered = 0
    while answered < len(waiting):
        await asyncio.sleep(0)
        before, answered = answered, sum(each.done() for each in waiting)
        assert answered - before <= relay_hub.WOKEN_AT_ONCE
    assert all(each.result() for each in waiting)
    assert "x0" not in hub._hosts


def test_it_is_told_which_hosts_a_change_concerns(replica: HubReplica) -> None:
    told: list[list[str]] = []
    replica.hub.on_change = lambda hosts: told.append(sorted(hosts))
    replica.ask("web-0")  # its scope has machines on three hosts
    replica.start()
    assert {host for hosts in told for host in hosts} == {"h0", "h1", "h2"}
    told.clear()
    replica.hub.reach(99)
    assert [host for hosts in told for host in hosts] == []


async def test_a_wait_ends_once_the_connection_is_lost(replica: HubReplica) -> None:
    hub = replica.hub
    lost, other = open_connection(), open_connection()
    waiting = waits(hub, "h0", lost)
    staying = waits(hub, "h0", other)
    await asyncio.sleep(0)
    lost.set_result(None)
    assert not await waiting
    assert hub.waiting == 1
    hub.wake("h0")
    assert await staying
    other.set_result(None)  # it wakes nobody any more


async def test_a_wait_ends_by_a_change_by_time_and_by_too_many(replica: HubReplica) -> None:
    hub = replica.hub
    changed = waits(hub, "h0", open_connection())
    other = waits(hub, "elsewhere", open_connection())
    await asyncio.sleep(0)
    assert hub.waiting == 2
    replica.ask("web-0")
    assert await changed
    assert not other.done()
    hub.wake_all()
    assert await other
    assert not await hub.wait("h0", 0.0, open_connection())
    many = [waits(hub, "h0", open_connection()) for _ in range(9)]
    await asyncio.sleep(0)
    assert hub.waiting == relay_hub.MAX_WAITING
    hub.wake("h0")
    assert sorted(await asyncio.gather(*many)) == [False] * 5 + [True] * 4
    assert hub.waiting == 0


def test_a_relay_is_told_which_machines_must_ask_again_until_they_have(replica: HubReplica) -> None:
    replica.ask("web-0")
    replica.start()
    relay, other = ToldRelay("h0"), ToldRelay("h1")
    for each in (relay, other):
        each.ask(replica.hub)
    started = replica.operation("1.1")
    waits_for = {"awaited": ("web-0",), "back_by": NOW, "carried_out_at": NOW}
    returning = msgspec.structs.replace(started, status=EventStatus.RETURNING, **waits_for)
    for operation, awaited in ((returning, ("web-0",)), (started, ())):
        replica.feed.publish([Changes(operations=(operation,))], Reached(99))
        told = relay.ask(replica.hub)
        assert told is not None
        assert told.awaited == awaited
        assert other.ask(replica.hub) is None  # its document shows the same


@pytest.mark.parametrize("seed", range(8))
def test_relays_that_ask_now_and_then_have_what_the_store_has(seed: int) -> None:
    chance = random.Random(seed)
    store, clock = SharedStore(), ManualClock(NOW)
    replicas = [HubReplica(store, clock, name) for name in "ab"]
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
    """Whether a relay may know more than this replica."""
    tag = tag_of(relay.etag)
    return tag.epoch == replica.hub._epoch and tag.number > replica.hub._sequence


def _is_level(replica: HubReplica) -> bool:
    with replica.store.read() as reading:
        return reading.position() == replica.follower.applied


def with_refusals(future: Any) -> None:
    """Wait for a change that the rules may refuse."""
    with contextlib.suppress(Refused):
        done(future)

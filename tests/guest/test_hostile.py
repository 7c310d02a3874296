"""What one guest, or a crowd of strangers, can take from the others: its share, and no more."""

import asyncio
import itertools
import json
import socket
import struct
import sys
from datetime import timedelta

import pytest

from forewarn.maintenance.model import Changes, Sighting
from forewarn.protocol import refusals
from forewarn.server.guest import limits
from forewarn.server.guest.listener import ACCEPTS, RECEIVE_BYTES
from forewarn.server.guest.machines import Registry
from guest import room
from guest.room import APPROVAL, EVENTS, answers, get, post, statuses
from guest.served import GUESTS, HERE, played, serving
from patience import meanwhile, reached

LARGE = APPROVAL.ljust(refusals.MAX_BODY_BYTES)


@pytest.mark.parametrize("data", [get(), get("/nowhere"), b"no HTTP", b""])
@played
async def test_strangers_who_keep_the_loop_busy_move_no_notice(data: bytes) -> None:
    """Real sockets and a real loop that comes to no beat; the clock goes on by hand."""
    async with serving(GUESTS) as served:
        watch = served.plane.watch
        watch.open()
        for _ in range(20):
            served.plane.clock.advance(timedelta(seconds=0.9))
            await served.ask(data)
            assert watch.may_start()
        watch.beat()
        assert watch.owed == timedelta(0)


@played
async def test_requests_that_waited_while_the_loop_stood_still_hide_no_outage() -> None:
    async with serving() as served:
        watch = served.plane.watch
        watch.open()
        (before,) = await served.ask(get(EVENTS, "Connection: close"))
        served.plane.clock.advance(timedelta(seconds=6))
        (after,) = await served.ask(get(EVENTS, "Connection: close"))
        assert (before.status, after.status) == (200, 200)
        watch.beat()
        assert watch.owed == timedelta(seconds=6)
        assert not watch.may_start()


@played
async def test_accepts_take_a_bounded_time_of_a_round_of_the_loop() -> None:
    async with serving() as served:
        clients = [
            socket.create_connection((HERE.address, served.at[0].port)) for _ in range(ACCEPTS + 40)
        ]
        for client in clients:
            client.send(b"G")
        counts = [0]
        while counts[-1] < len(clients):
            await asyncio.sleep(0)  # one round
            counts.append(len(served.plane.connections))
        for client in clients:
            client.close()
        steps = [after - before for before, after in itertools.pairwise(counts)]
        assert 1 < max(steps) <= ACCEPTS


def approving(count: int) -> bytes:
    ids = [{"EventId": f"{number:036}"} for number in range(count)]
    return post(json.dumps({"StartRequests": ids}, separators=(",", ":")).encode())


def calls_of(request: bytes) -> int:
    """Return how many functions an answer takes, a measure that is the same on any machine."""
    counted = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal counted
        counted += event in {"call", "c_call"}

    with room.opened() as (plane, _):
        peer = plane.connect()
        sys.setprofile(count)
        try:
            peer.send(request)
        finally:
            sys.setprofile(None)
    return counted


NAMES = [f"{number:x}" for number in range(7000)]
MEMBERS = ",".join(f'"{name}":0' for name in NAMES)


@pytest.mark.parametrize(
    "request_",
    [
        get(EVENTS + "&" + "&".join(NAMES[:3500])),
        get(EVENTS + "&a" * 7900),
        get("/metadata/instance/" + "a/" * 7900),
        post(b"{%s}" % MEMBERS.encode()),
        post(b'{"StartRequests":[{%s}]}' % MEMBERS.encode()),
    ],
    ids=["parameters", "one parameter", "path", "body", "entry"],
)
def test_no_request_takes_much_longer_than_the_largest_approval(request_: bytes) -> None:
    assert calls_of(request_) < 2.5 * calls_of(approving(refusals.MAX_START_REQUESTS))


def test_a_length_is_read_however_many_zeros_it_begins_with() -> None:
    with room.opened() as (plane, turn):
        peer = plane.connect()
        peer.send(post().replace(b"Length: ", b"Length: " + b"0" * 5000))
        turn()
        assert statuses(peer) == [200]


def test_approvals_in_flight_are_bounded_by_entries_and_who_approved_least_goes_first() -> None:
    each = 60
    count = -(-limits.MAX_APPROVALS_IN_FLIGHT // each)
    with room.opened() as (plane, turn):
        plane.approvals.waits = True
        others = [
            room.machine(f"m{number}", f"10.0.1.{number}", scope="web")
            for number in range(count + 1)
        ]
        plane.learn(Changes(machines=tuple(others)))
        for machine in others[1:]:
            plane.connect(machine.address).send(approving(each))
        greedy, modest = plane.connect(), plane.connect("10.0.1.0")
        greedy.connection.account.approved_until = (
            plane.clock.monotonic() + each * limits.ENTRY_SECONDS
        )
        for peer in (greedy, modest):
            peer.connection._read(post(), 1, 0.0)
        turn()
        assert len(plane.approvals._waiting) == count
        plane.approvals._waiting.pop(0)()
        turn()
        assert len(plane.approvals._waiting) == count + 1
        plane.approvals.decide_all()
        turn()
        assert (statuses(modest), statuses(greedy)) == ([200], [200])
        assert [by for _, _, by, _ in plane.approvals.book] == ["m0", "web-0"]


def test_a_guest_makes_up_for_the_events_that_it_approved_and_no_longer_than_that() -> None:
    now = 100.0
    queue = limits.FairQueue(lambda call: None, lambda: now)
    account = limits.Account()
    queue.submitted(account, 1000, 60_000)
    queue.decided(1000, 60_000)
    queue.finished(account)
    assert account.approved_until == pytest.approx(now + 1000 * limits.ENTRY_SECONDS)
    assert not account.is_unused(now)
    assert account.is_unused(account.approved_until)
    account.connected_until = account.approved_until + 1
    assert not account.is_unused(account.approved_until)


def test_when_a_machine_last_asked_is_read_from_other_threads_while_the_fleet_changes() -> None:
    registry = Registry()
    machines = [room.machine(f"m{number}", scope="web") for number in range(200)]
    registry.learn(Changes(machines=tuple(machines)))
    found: set[Sighting | None] = set()

    def read() -> None:
        found.update(registry.seen(machine.key) for machine in machines)

    with meanwhile(read, read, read, every=0) as faults:
        for second in range(60):
            when = room.START + room.timedelta(seconds=second)
            for machine in machines:
                registry.saw(machine, when, "2020-07-01")
            registry.learn(Changes(removed_machines=tuple(m.key for m in machines[second::7])))
            registry.learn(Changes(machines=tuple(machines[second::7])))
    assert faults == []
    assert all(each is None or each.version == "2020-07-01" for each in found)


@pytest.mark.parametrize("data", [b"no HTTP\r\n\r\n" * 50, post() * 50])
def test_nothing_more_is_read_of_a_peer_that_has_reset_its_connection(data: bytes) -> None:
    with room.opened() as (plane, turn):
        peer = plane.connect()
        peer.closing = True  # its transport knows, and `connection_lost` is still to come
        peer.connection.data_received(data)
        turn()
        assert plane.counters.refusals[limits.Reason.FAULTY_REQUEST] <= 1
        assert len(plane.approvals.book) <= 1
        assert peer.got == b""
        peer.connection.connection_lost(None)
        assert len(plane.connections) == 0


def test_a_guest_holds_a_few_bodies_and_reads_the_others_when_these_are_submitted() -> None:
    with room.opened() as (plane, turn):
        plane.approvals.waits = True
        greedy = [plane.connect() for _ in range(20)]
        for peer in greedy:
            peer.send(post(LARGE)[:4096])
            if not peer.paused:
                peer.send(post(LARGE)[4096:])
        turn()
        held = sum(len(each.connection._reader.body or b"") for each in greedy)
        assert held <= limits.MAX_BODY_BYTES_HELD + refusals.MAX_BODY_BYTES  # and the one in flight
        assert plane.counters.refusals[limits.Reason.BODIES] == 15
        neighbour = plane.connect("10.0.0.11")
        neighbour.send(post(LARGE))
        for _ in range(5):  # behind the one in flight
            turn()
            plane.approvals.decide_all()
        turn()
        assert statuses(neighbour) == [200]
        for _ in range(30):
            for peer in greedy:
                in_body = peer.connection._reader.in_body
                if in_body and not peer.paused:
                    peer.send(post(LARGE)[4096:])
            turn()
            plane.approvals.decide_all()
            turn()
        assert [statuses(each)[-1:] for each in greedy] == [[200]] * 20
        assert len(plane.approvals.book) == 21
        account = greedy[0].connection.account
        assert (account.body_bytes, plane.connections.fair_queue._bodies) == (0, {})


@played
async def test_little_is_held_of_what_a_connection_sends_before_its_turn() -> None:
    async with serving(GUESTS) as served:
        plane = served.plane
        plane.approvals.waits = True
        clients = [await served.connect() for _ in range(20)]
        for _, writer in clients:
            writer.write(post() + get(EVENTS) * 1000)
        connections = list(plane.connections._all)
        await reached(lambda: all(each._unread and each._paused for each in connections))
        assert sum(len(each._unread) for each in connections) <= 20 * 2 * RECEIVE_BYTES
        for _, writer in clients:
            writer.transport.abort()


@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="only Linux tells a socket's state")
@played
async def test_approvals_of_clients_who_left_are_dropped_and_of_a_half_closed_one_not() -> None:
    approval = post(target=f"/vm/web-0{EVENTS}")
    async with serving() as served:
        plane = served.plane
        plane.approvals.waits = True
        clients = []
        for _ in range(5):
            _, client = kept = await served.connect()
            client.write(approval)
            clients.append(kept)
        connections = plane.connections._all
        await reached(lambda: len(connections) == 5 and all(each._pending for each in connections))
        (first, _), (half, half_writer), (_, reset), (_, closed), (last, _) = clients
        half_writer.write_eof()
        reset.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
        reset.transport.abort()
        closed.close()

        def is_decided() -> bool:
            plane.approvals.decide_all()
            return len(plane.approvals.book) >= 3 and len(connections) <= 2

        await reached(is_decided)
        assert [each.status for each in answers(await half.read())] == [100, 200]
        for reader in (first, last):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        assert len(plane.approvals.book) == 3
        assert plane.connections.fair_queue._in_flight == 0
        for _, client in clients:
            client.close()

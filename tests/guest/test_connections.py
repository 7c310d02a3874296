"""A connection that is answered as it is accepted, and waits that cost no task."""

import asyncio
import resource
import socket
import struct
from collections.abc import Callable, Iterator

import pytest

from client.scripted import without_files
from forewarn.maintenance.model import Enablement, Policy
from forewarn.server.guest.endpoint import SLICE
from forewarn.server.guest.limits import Limits
from forewarn.server.guest.listener import PAUSE_SECONDS
from forewarn.server.guest.machines import Source
from guest import room
from guest.room import EVENTS, answers, get, post
from guest.served import HERE, Served, played, serving
from patience import reached

MACHINE = Source(address="10.0.0.10")
CLOSING = get(EVENTS, "Connection: close")


def waits(tag: str = "2", seconds: int = 60, *headers: str, target: str = room.EVENTS) -> bytes:
    return get(target, f"If-None-Match: {tag}", f"Prefer: wait={seconds}", *headers)


Opened = tuple[room.Room, Callable[[], None]]


def read(peer: socket.socket) -> bytes:
    """Return all that has come."""
    got = b""
    try:
        while part := peer.recv(65536):
            got += part
    except BlockingIOError:
        pass
    return got


def reset(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def test_what_the_peer_does_not_take_at_once_is_sent_by_the_loop_s_transport() -> None:
    def small(accepted: socket.socket) -> None:
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)

    with room.opened() as (plane, turn):
        peer, accepted = socket.socketpair()
        small(accepted)
        peer.settimeout(0)
        last = 60
        peer.sendall(get() * 8 * last)
        peer.shutdown(socket.SHUT_WR)
        plane.connections.accept(accepted, MACHINE)
        got = b""
        while not got or len(plane.connections):
            turn()
            got += read(peer)
        assert [answer.status for answer in answers(got)] == [200] * 8 * last
        peer.close()


@played
async def test_what_is_not_to_be_read_yet_is_not_read_by_the_loop_s_transport_either() -> None:
    async with serving() as served:
        served.plane.approvals.waits = True
        _, writer = await served.connect()
        writer.write(post(target=f"/vm/web-0{EVENTS}"))
        await served.plane.approvals.asked.wait()
        (connection,) = served.plane.connections._all
        writer.write(b"x" * 1_000_000)
        await reached(lambda: not served.plane.connections._starting)
        for _ in range(5):  # by then the loop has read whatever it reads
            await served.ask(get())
        assert len(connection._unread) < 64 * 1024
        writer.transport.abort()


@played
async def test_a_peer_that_resets_what_it_was_refused_is_no_error_of_ours() -> None:
    said: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
    async with serving() as served:
        connections = served.plane.connections
        with socket.create_server(("127.0.0.1", 0)) as listening:
            peer = socket.create_connection(listening.getsockname())
            peer.sendall(b"garbage\r\n\r\n")
            connections.accept(listening.accept()[0], MACHINE)
        reset(peer)
        await reached(lambda: not len(connections))
    assert said == []


def test_accepts_go_on_once_there_are_file_descriptors_again() -> None:
    said = []

    async def scene() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: said.append(context["message"]))
        async with serving() as served:
            reader, writer = await served.connect()
            with without_files():
                writer.write(CLOSING)
                await reached(lambda: bool(said))
            loop.ahead += PAUSE_SECONDS  # type: ignore[attr-defined]
            await reader.read()
            writer.close()
            assert served.plane.counters.accepted == 1
            assert len(said) == 1

    with asyncio.Runner(loop_factory=room.SkippingLoop) as runner:
        runner.run(scene())


# Requests that wait.


@pytest.fixture
def opened() -> Iterator[Opened]:
    with room.opened() as made:
        yield made


def test_a_request_that_waits_keeps_nothing_but_the_form_of_its_answer(opened: Opened) -> None:
    plane, turn = opened
    peer = plane.connect()
    peer.send(waits("2").replace(b"HTTP/1.1", b"HTTP/1.0\r\nConnection: keep-alive"))
    reader = peer.connection._reader
    assert len(plane.connections.long_polls) == 1
    assert (reader.head.headers, reader.head.target) == ([], b"")
    assert reader.head._parser is None
    plane.publish(3)
    turn()
    (answer,) = answers(peer.got)
    assert answer.headers["connection"] == "keep-alive"


def test_a_change_while_a_delayed_answer_changes_hands_is_not_missed() -> None:
    policy = Policy(enablement=Enablement.FIRST_REQUEST)
    with room.opened(enabling=room.Enabling(policy)) as (plane, turn):
        plane.approvals.waits = True
        peer = plane.connect()
        peer.send(waits("2"))
        assert plane.endpoint.enabler is not None
        turning_on = plane.endpoint.enabler._turning_on["web"]
        # Behind the endpoint's own callback, and before the connection has its answer.
        turning_on.add_done_callback(lambda _: plane.publish(3))
        plane.approvals.decide_all()
        turn()
        assert [each.headers["etag"] for each in answers(peer.got)] == ["3"]


def test_many_are_woken_in_slices_and_others_are_answered_in_between() -> None:
    loopback = room.Listener(address="127.0.0.1", default_vm="web-0")
    with room.opened(Limits(connections_per_address=SLICE * 3)) as (plane, turn):
        peers = [plane.connect("127.1.1.1", loopback) for _ in range(SLICE * 3)]
        for peer in peers:
            peer.send(waits())
        plane.publish(3)
        assert sum(bool(peer.got) for peer in peers) == SLICE
        peer = plane.connect()
        peer.send(get())
        assert room.statuses(peer) == [200]
        turn()
        assert {tuple(room.statuses(peer)) for peer in peers} == {(200,)}


def test_a_change_while_requests_that_wait_are_answered_answers_each_once() -> None:
    with room.opened() as (plane, turn):
        peers = [plane.connect(address) for address in ("10.0.0.10", "10.0.0.11")]
        for peer in peers:
            peer.send(waits("2") + get())
        following = iter([4])
        # Of the request behind the first that waited: it is answered in the same pass.
        plane.connections.on_turn = lambda _: [*map(plane.publish, following)]
        plane.publish(3)
        turn()
        assert [room.statuses(peer) for peer in peers] == [[200, 200]] * 2


MANY = 500
MOST = 9_000
"""As many as `Limits.waiters` lets wait."""
AT_ONCE = 50
"""How many ask before the loop looks at them."""


async def waiting(served: Served, count: int) -> None:
    await reached(lambda: len(served.plane.connections.long_polls) == count)


@pytest.mark.parametrize("by_reset", [False, True], ids=["closed", "reset"])
@played
async def test_a_client_that_goes_frees_its_place_at_once(by_reset: bool) -> None:
    async with serving() as served:
        _, writer = await served.connect()
        writer.write(waits("0"))
        await waiting(served, 1)
        if by_reset:
            no_linger = struct.pack("ii", 1, 0)
            gone = writer.get_extra_info("socket")
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, no_linger)
        writer.close()
        await waiting(served, 0)
        await reached(lambda: len(served.plane.connections) == 0)
        assert len(served.plane.connections.long_polls) == 0


@played
async def test_a_client_that_is_gone_and_not_noticed_yet_keeps_no_service_from_stopping() -> None:
    async with serving() as served:
        at = served.at[0]
        client = socket.create_connection((at.address, at.port))
        client.setblocking(False)
        for _ in range(2):  # by the second one the loop has taken the connection over
            client.send(room.get())
            assert await read_from(client)
        reset(client)
        assert await served.plane.connections.retire(20) == 0


async def connect_all(served: Served, number: int) -> list[socket.socket]:
    """Connect and ask without the loop, which would spend most of its time on the clients."""
    at = served.at[0]
    clients = []
    for count in range(1, number + 1):
        client = socket.create_connection((at.address, at.port))
        client.sendall(waits("0", 120))
        clients.append(client)
        if count % AT_ONCE == 0:
            await waiting(served, count)
    return clients


async def read_all(clients: list[socket.socket]) -> set[int]:
    statuses = set()
    for client in clients:
        client.setblocking(False)
        (answer,) = answers(await read_from(client))
        client.setblocking(True)
        statuses.add(answer.status)
    return statuses


async def read_from(client: socket.socket) -> bytes:
    return await asyncio.get_running_loop().sock_recv(client, 4096)


@pytest.mark.parametrize("number", [MANY, pytest.param(MOST, marks=pytest.mark.soak)])
@played
async def test_waiting_costs_no_task_and_all_are_woken_and_answered_at_a_stop(number: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * number + 500
    if hard != resource.RLIM_INFINITY and hard < needed:
        pytest.skip(f"a process may have {hard} open files here, and this needs {needed}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    async with serving(HERE, limits=Limits(connections_per_address=number)) as served:
        without = len(asyncio.all_tasks())
        clients = await connect_all(served, number)
        try:
            await waiting(served, number)
            await reached(lambda: len(asyncio.all_tasks()) == without)
            served.plane.publish(1, "bastion")
            assert await read_all(clients) == {200}
            for count, client in enumerate(clients, 1):
                client.sendall(waits("1", 120))
                if count % AT_ONCE == 0:
                    await waiting(served, count)
            stopping = asyncio.ensure_future(served.stop(20))
            assert await read_all(clients) == {304}
        finally:
            for client in clients:
                client.close()
        assert await stopping == 0

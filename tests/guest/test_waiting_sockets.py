"""Waiting GETs over real sockets; the machine at 127.0.0.1 is bastion."""

import asyncio
import resource
import socket
import struct

import pytest

from forewarn.server.guest.limits import Limits
from forewarn.server.guest.listener import Listener
from guest import room
from guest.room import answers
from guest.served import HERE, Play, Served, serving, until
from guest.test_long_poll import waits

ALL = 9_000
"""As many as `Limits.waiters` lets wait."""


async def wait_for(served: Served, count: int) -> None:
    await until(lambda: len(served.plane.connections.long_polls) == count)


def test_a_change_reaches_a_waiting_client(play: Play) -> None:
    async def body() -> None:
        async with serving() as served:
            reader, writer = await served.connect()
            writer.write(waits("0"))
            await wait_for(served, 1)
            served.plane.publish(1, "bastion")
            (answer,) = answers(await reader.readuntil(b"[]}"))
            assert (answer.status, answer.headers["etag"]) == (200, "1")
            writer.close()

    play(body())


@pytest.mark.parametrize("by_reset", [False, True], ids=["closed", "reset"])
def test_a_client_that_goes_frees_its_place_at_once(play: Play, by_reset: bool) -> None:
    async def body() -> None:
        async with serving() as served:
            _, writer = await served.connect()
            writer.write(waits("0"))
            await wait_for(served, 1)
            if by_reset:
                no_linger = struct.pack("ii", 1, 0)
                gone = writer.get_extra_info("socket")
                gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, no_linger)
            writer.close()
            await wait_for(served, 0)
            await until(lambda: len(served.plane.connections) == 0)
            assert len(served.plane.connections.long_polls) == 0

    play(body())


def test_a_half_closed_client_gets_its_answers_in_order(play: Play) -> None:
    async def body() -> None:
        async with serving() as served:
            got = await served.ask(waits("0") + room.get() + waits("0"))
            assert [answer.status for answer in got] == [304, 200, 304]

    play(body())


def test_the_sweep_ends_a_wait(play: Play) -> None:
    async def body() -> None:
        async with serving(limits=Limits(sweep_seconds=0.001)) as served:
            reader, writer = await served.connect()
            writer.write(waits("0", 30))
            await wait_for(served, 1)
            served.plane.clock.advance(room.timedelta(seconds=30))
            (answer,) = answers(await reader.readuntil(b"\r\n\r\n"))
            assert answer.status == 304
            writer.close()

    play(body())


async def connect_all(at: Listener) -> list[socket.socket]:
    loop = asyncio.get_running_loop()
    clients = []
    for _ in range(ALL):
        client = socket.socket()
        client.setblocking(False)
        clients.append(client)
        await loop.sock_connect(client, (at.address, at.port))
        await loop.sock_sendall(client, waits("0", 120))
    return clients


async def read_all(clients: list[socket.socket]) -> set[int]:
    loop = asyncio.get_running_loop()
    statuses = set()
    for client in clients:
        (answer,) = answers(await loop.sock_recv(client, 4096))
        statuses.add(answer.status)
    return statuses


def test_9_000_cost_no_task_are_all_woken_and_all_answered_at_the_stop(play: Play) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * ALL + 500
    if hard != resource.RLIM_INFINITY and hard < needed:
        pytest.skip(f"a process may have {hard} open files here, and this needs {needed}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))

    async def body() -> None:
        async with serving(HERE, limits=Limits(connections_per_address=ALL)) as served:
            without = len(asyncio.all_tasks())
            clients = await connect_all(served.at[0])
            try:
                await wait_for(served, ALL)
                await until(lambda: len(asyncio.all_tasks()) == without)
                served.plane.publish(1, "bastion")
                assert await read_all(clients) == {200}
                loop = asyncio.get_running_loop()
                for client in clients:
                    await loop.sock_sendall(client, waits("1", 120))
                await wait_for(served, ALL)
                stopping = asyncio.ensure_future(served.stop(20))
                assert await read_all(clients) == {304}
            finally:
                for client in clients:
                    client.close()
            assert await stopping == 0

    play(body())

"""Waiting GETs over real sockets; the machine at 127.0.0.1 is bastion."""

import asyncio
import resource
import socket
import struct

import pytest

from forewarn.server.guest.limits import Limits
from guest import room
from guest.room import answers
from guest.served import HERE, Served, played, serving
from guest.test_long_poll import waits
from patience import reached

MANY = 1_500
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
            assert await read(client)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
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
        (answer,) = answers(await read(client))
        client.setblocking(True)
        statuses.add(answer.status)
    return statuses


async def read(client: socket.socket) -> bytes:
    return await asyncio.get_running_loop().sock_recv(client, 4096)


@pytest.mark.parametrize("number", [MANY, pytest.param(MOST, marks=pytest.mark.soak)])
@played
async def test_waiting_costs_no_task_and_all_are_woken_and_answered_at_the_stop(
    number: int,
) -> None:
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

"""What is the asyncio shell's alone: tasks, their cancellation, and what is left behind."""

import asyncio
import errno
import gc
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

import patience
from client import scripted
from client.scripted import document, losing, message, serving
from client.shells import QUICK
from client.test_shells import Silent
from client.world import listed
from forewarn.client.aio import AsyncClient, AsyncWatch
from forewarn.client.event import Change, Misuse
from forewarn.protocol.message import Reply
from forewarn.testing import Emulator

Doing = Callable[[AsyncClient], Coroutine[Any, Any, Any]]


async def drawn(watch: AsyncWatch) -> list[Change]:
    return [change async for change in watch]


async def first(watch: AsyncWatch) -> Change:
    return await anext(watch)


async def asked(server: Silent) -> None:
    """Wait until the server has got a request, without holding the loop up."""
    await asyncio.to_thread(server.asked.wait, patience.SECONDS)


DOINGS: dict[str, Doing] = {
    "document": lambda client: client.document(),
    "approve": lambda client: client.approve("A"),
    "machine": lambda client: client.machine(),
    "watch": lambda client: first(client.watch()),
}


@pytest.mark.parametrize("doing", DOINGS)
def test_a_task_that_is_cancelled_leaves_no_socket_behind(doing: str) -> None:
    async def run(server: Silent) -> None:
        client = AsyncClient(server.url, name="web-0")
        task = asyncio.ensure_future(DOINGS[doing](client))
        await asked(server)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        del task
        await asyncio.sleep(0)
        assert await asyncio.to_thread(server.everyone_left)
        assert client._idle == [] or all(line._stream is None for line in client._idle)
        await client.close()

    with Silent() as server:
        asyncio.run(run(server), debug=True)


def test_a_connection_that_is_being_made_is_cancelled_too() -> None:
    async def run(server: scripted.Scripted) -> None:
        client = AsyncClient(server.url, name="web-0")
        task = asyncio.ensure_future(client.document())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(server.everyone_left)
        await client.close()

    with serving(lambda *_: message(200, document())) as server:
        asyncio.run(run(server), debug=True)


def test_a_timeout_around_a_watch_ends_it_and_the_watch_goes_on_afterwards(cloud: Emulator) -> None:
    async def run() -> None:
        async with AsyncClient(cloud.endpoint, name="web-0", pace=QUICK) as client:
            watch = client.watch()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await anext(watch)
            cloud.schedule("Reboot", "web-0")
            change = await asyncio.wait_for(anext(watch), patience.SECONDS)
            assert change.appeared

    asyncio.run(run(), debug=True)


def test_closing_ends_every_watch_at_once() -> None:
    async def run(server: Silent) -> None:
        client = AsyncClient(server.url, name="web-0")
        tasks = [asyncio.ensure_future(drawn(client.watch())) for _ in range(10)]
        await asked(server)
        await client.close()
        assert await asyncio.wait_for(asyncio.gather(*tasks), patience.SECONDS) == [[]] * 10
        assert await asyncio.to_thread(server.everyone_left)

    with Silent() as server:
        asyncio.run(run(server), debug=True)


def test_a_cancellation_while_the_client_closes_is_a_cancellation() -> None:
    async def run(server: Silent) -> None:
        client = AsyncClient(server.url, name="web-0")
        task = asyncio.ensure_future(drawn(client.watch()))
        await asked(server)
        task.cancel()
        await client.close()
        with pytest.raises(asyncio.CancelledError):
            await task

    with Silent() as server:
        asyncio.run(run(server), debug=True)


def test_two_tasks_in_one_watch_are_a_mistake_and_nothing_worse() -> None:
    async def run(server: Silent) -> None:
        async with AsyncClient(server.url, name="web-0") as client:
            watch = client.watch()
            task = asyncio.ensure_future(drawn(watch))
            await asked(server)
            with pytest.raises(Misuse, match="two tasks"):
                await anext(watch)
            watch.close()
            assert await task == []

    with Silent() as server:
        asyncio.run(run(server), debug=True)


def test_a_watch_closes_with_its_block() -> None:
    async def run(url: str) -> None:
        async with AsyncClient(url, name="web-0") as client:
            async with client.watch() as watch:
                assert (await anext(watch)).appeared
            assert await drawn(watch) == []

    with serving(lambda *_: message(200, document(listed()))) as server:
        asyncio.run(run(server.url), debug=True)
        assert server.everyone_left()


def test_a_closed_client_makes_no_watch() -> None:
    async def run() -> None:
        client = AsyncClient("http://127.0.0.1:1")
        await client.close()
        with pytest.raises(Misuse, match="closed"):
            client.watch()
        with pytest.raises(Misuse, match="closed"):
            await client.document()

    asyncio.run(run(), debug=True)


def test_a_silent_peer_is_asked_again_on_a_fresh_connection_at_once() -> None:
    """The system says so by a TimeoutError, which is not the end of the time for an answer."""

    async def run(server: scripted.Scripted) -> None:
        client = AsyncClient(server.url, name="web-0")
        assert (await client.document()).events == ()
        (connection,) = client._idle
        assert connection._stream is not None
        connection._stream._reader.set_exception(TimeoutError(errno.ETIMEDOUT, "timed out"))
        outcome = (await connection.do(client._session.question())).outcome
        assert isinstance(outcome, Reply)
        assert server.connections == 2
        await client.close()

    with serving(lambda _asked, _number: message(200, document())) as server:
        asyncio.run(run(server))


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_client_that_another_loop_asks_connects_again() -> None:
    async def ask(client: AsyncClient) -> int | None:
        return (await client.document()).incarnation

    with serving(lambda _asked, number: message(200, document(incarnation=number))) as server:
        client = AsyncClient(server.url, name="web-0")
        assert [asyncio.run(ask(client)) for _ in range(3)] == [1, 2, 3]
        assert server.connections == 3
        del client
        gc.collect()  # while the warnings of asyncio are ignored


class TwoAddresses(asyncio.SelectorEventLoop):
    """A loop for which a name has two addresses, as a resolver that has both would say."""

    async def getaddrinfo(self, host: Any, port: Any, **asked: Any) -> Any:
        if host != "two.test":
            return await super().getaddrinfo(host, port, **asked)
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port))
            for each in ("127.0.0.1", "127.0.0.2")
        ]


def test_a_name_whose_first_address_loses_packets_is_reached_at_its_second() -> None:
    async def run(port: int) -> int | None:
        endpoint = f"http://two.test:{port}"
        pace = msgspec.structs.replace(QUICK, connect_seconds=1.0)
        async with AsyncClient(endpoint, name="web-0", pace=pace) as client:
            return (await client.document()).incarnation

    with (
        losing() as (_, port),
        serving(lambda *_: message(200, document(incarnation=7)), port, "127.0.0.2"),
        asyncio.Runner(loop_factory=TwoAddresses) as runner,
    ):
        assert runner.run(run(port)) == 7

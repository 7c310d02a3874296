"""What is the asyncio client's alone: tasks, their cancellation, threads, what is left behind."""

import asyncio
import contextvars
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import patience
from client.scripted import (
    QUICK,
    Silent,
    document,
    losing,
    message,
    serving,
    without_files,
    without_threads,
)
from client.world import EVENT_ID, listed
from forewarn.client.aio import AsyncClient, AsyncWatch
from forewarn.client.event import Change, Misuse, RequestRefused, Trouble, Unreachable
from forewarn.client.sync import SocketConnection
from forewarn.testing import Emulator

Doing = Callable[[AsyncClient], Coroutine[Any, Any, Any]]


async def drawn(watch: AsyncWatch) -> list[Change]:
    return [change async for change in watch]


async def first(watch: AsyncWatch) -> Change:
    return await anext(watch)


async def asked(server: Silent) -> None:
    """Wait until the server has got a request, without holding the loop up."""
    await asyncio.to_thread(server.asked.wait, patience.SECONDS)


def threads() -> list[threading.Thread]:
    """The clients' threads, those of tests before that are about to end included."""
    return [each for each in threading.enumerate() if each.name == "forewarn-client"]


async def cancelled(task: "asyncio.Task[Any]") -> None:
    """Cancel a task; fail unless it ends as one that is cancelled, and its thread after it."""
    running = threads()
    assert running
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for each in running:
        await asyncio.to_thread(each.join, patience.SECONDS)
        assert not each.is_alive()


def test_a_watch_goes_on_once_the_system_has_threads_again() -> None:
    async def play(url: str) -> None:
        async with AsyncClient(url, pace=QUICK) as client:
            with without_threads():
                task = asyncio.create_task(first(client.watch()))
                with pytest.raises(Unreachable, match="thread"):
                    await client.document()
                assert not task.done()
            assert (await task).appeared

    with serving(lambda *_: message(200, document(listed()))) as made:
        asyncio.run(play(made.url))


@pytest.fixture
def server() -> Iterator[Silent]:
    with Silent() as made:
        yield made


DOINGS: dict[str, Doing] = {
    "document": lambda client: client.document(),
    "approve": lambda client: client.approve("A"),
    "machine": lambda client: client.machine(),
    "watch": lambda client: first(client.watch()),
}


@pytest.mark.parametrize("doing", DOINGS)
async def test_a_task_that_is_cancelled_leaves_neither_a_socket_nor_a_thread_behind(
    doing: str, server: Silent
) -> None:
    client = AsyncClient(server.url, name="web-0")
    task = asyncio.ensure_future(DOINGS[doing](client))
    await asked(server)
    await cancelled(task)
    assert await asyncio.to_thread(server.everyone_left)
    assert client._client._idle == []


@pytest.mark.parametrize("doing", DOINGS)
async def test_a_connection_that_is_being_made_is_cancelled_too(doing: str) -> None:
    with losing() as (_, port):
        client = AsyncClient(f"http://127.0.0.1:{port}", name="web-0")
        task = asyncio.ensure_future(DOINGS[doing](client))
        await asyncio.sleep(0)
        await cancelled(task)
        assert client._client._idle == []


@pytest.mark.parametrize("doing", DOINGS)
async def test_a_name_that_is_being_looked_up_holds_no_cancelled_task_up(doing: str) -> None:
    looking, silent = threading.Event(), threading.Event()

    def resolve(*_: object, flags: int = 0, **__: object) -> list[Any]:
        if flags:
            raise socket.gaierror(socket.EAI_NONAME, "not an address")
        looking.set()
        silent.wait()
        return []

    client = AsyncClient("http://two.test", name="web-0")
    connection = SocketConnection(client._client._session, resolve)
    client._client._connection = lambda: connection  # type: ignore[method-assign]
    try:
        task = asyncio.ensure_future(DOINGS[doing](client))
        await asyncio.to_thread(looking.wait, patience.SECONDS)
        await cancelled(task)
        assert not silent.is_set()
    finally:
        silent.set()


async def test_a_timeout_ends_the_wait_and_the_watch_goes_on_afterwards(cloud: Emulator) -> None:
    async with AsyncClient(cloud.endpoint, name="web-0", pace=QUICK) as client:
        watch = client.watch()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await anext(watch)
        cloud.schedule("Reboot", "web-0")
        change = await asyncio.wait_for(anext(watch), patience.SECONDS)
        assert change.appeared


async def test_a_change_that_came_at_a_cancellation_is_neither_lost_nor_done(
    tmp_path: Path,
) -> None:
    file = tmp_path / "state"
    with serving(lambda *_: message(200, document(listed()))) as server:
        async with AsyncClient(server.url, name="web-0") as client:
            watch = client.watch(since=file)
            task = asyncio.ensure_future(first(watch))
            await asyncio.sleep(0)
            assert watch._call is not None
            watch._call.join(patience.SECONDS)  # the loop has not heard of it yet
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await watch.done()
            assert '"handled":false' in file.read_text()
            assert (await anext(watch)).appeared
            await watch.done()
            assert '"handled":true' in file.read_text()


async def test_watches_take_no_thread_of_the_loops_own(server: Silent) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    async with AsyncClient(server.url, name="web-0") as client:
        tasks = [asyncio.ensure_future(drawn(client.watch())) for _ in range(3)]
        await asyncio.to_thread(patience.until, lambda: server.connections == 3)
        await client.close()
        assert await asyncio.gather(*tasks) == [[]] * 3


async def test_trouble_is_reported_in_the_task_that_waits_and_what_that_raises_ends_the_watch(
    cloud: Emulator,
) -> None:
    name = contextvars.ContextVar[str]("name")
    told: list[tuple[str, str, threading.Thread]] = []

    def tell(trouble: Trouble) -> None:
        asyncio.get_running_loop()
        told.append((trouble.reason, name.get(), threading.current_thread()))
        if trouble.over:
            raise KeyError("enough")

    cloud.faults("status", status=503)
    name.set("handler")
    async with AsyncClient(cloud.endpoint, name="web-0", pace=QUICK) as client:
        with pytest.raises(KeyError, match="enough"):
            await anext(client.watch(on_trouble=tell))
    here = threading.current_thread()
    assert told == [("status-503", "handler", here), ("over", "handler", here)]


def test_an_interrupt_ends_the_watch_with_its_loop() -> None:
    async def run(server: Silent) -> None:
        watching = asyncio.ensure_future(drawn(AsyncClient(server.url, name="web-0").watch()))
        await asked(server)
        signal.raise_signal(signal.SIGINT)
        await watching

    with Silent() as server:
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(run(server))
        assert server.everyone_left()


def test_an_answer_to_a_loop_that_is_closed_meanwhile_ends_its_thread_in_silence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    came, answers = threading.Event(), threading.Event()

    def answer(*_: object) -> bytes:
        came.set()
        answers.wait(patience.SECONDS)
        return message(200, document())

    with serving(answer) as server:
        client = AsyncClient(server.url, name="web-0")
        loop = asyncio.new_event_loop()
        task = loop.create_task(client.document())
        loop.run_until_complete(asyncio.sleep(0))
        assert came.wait(patience.SECONDS)
        loop.close()
        running = threads()
        answers.set()
        for each in running:
            each.join(patience.SECONDS)
            assert not each.is_alive()
        assert not caplog.records
        task._log_destroy_pending = False  # type: ignore[attr-defined] # asyncio would log that
        asyncio.run(client.close())


async def test_closing_ends_a_call_and_a_watch_whose_task_was_cancelled(server: Silent) -> None:
    client = AsyncClient(server.url, name="web-0")
    watch = client.watch()
    waiting = asyncio.ensure_future(first(watch))
    await asked(server)
    await cancelled(waiting)
    calling = asyncio.ensure_future(client.document())
    await asyncio.sleep(0)
    await client.close()
    with pytest.raises(Misuse, match="closed"):
        await calling
    assert await drawn(watch) == []


async def test_two_tasks_in_one_watch_are_a_mistake_and_nothing_worse(server: Silent) -> None:
    async with AsyncClient(server.url, name="web-0") as client:
        watch = client.watch()
        task = asyncio.ensure_future(drawn(watch))
        await asked(server)
        with pytest.raises(Misuse, match="two tasks"):
            await anext(watch)
        watch.close()
        assert await task == []


async def test_a_watch_whose_task_was_cancelled_goes_on_once_there_are_files(
    cloud: Emulator,
) -> None:
    async with AsyncClient(cloud.endpoint, name="web-0", pace=QUICK) as client:
        watch = client.watch()
        waiting = asyncio.ensure_future(first(watch))
        await asyncio.sleep(0)
        await cancelled(waiting)
        with without_files():
            waiting = asyncio.ensure_future(first(watch))
            await asyncio.sleep(0)
            assert not waiting.done()
        cloud.schedule("Reboot", "web-0")
        assert (await waiting).appeared


def test_a_call_outside_asyncio_is_not_taken_for_a_want_of_threads(cloud: Emulator) -> None:
    asked = AsyncClient(cloud.endpoint).document()
    with pytest.raises(RuntimeError):
        asked.send(None)


async def test_every_call_is_awaited_and_raises_what_the_sync_client_does(cloud: Emulator) -> None:
    ours = cloud.schedule("Reboot", "web-0")
    cloud.schedule("Reboot", "web-1")
    async with AsyncClient(cloud.endpoint, pace=QUICK) as client:
        assert client.endpoint == cloud.endpoint
        assert (await client.machine()).name == "web-0"
        assert len((await client.document()).events) == 2
        assert client.name == "web-0"
        (event,) = await client.events(mine=True)
        async with client.documents() as documents:
            assert len((await anext(documents)).events) == 2
            assert (documents.looks, documents.answered_at is None) == (1, False)
        await client.report("preparing")
        with pytest.raises(Misuse):
            await client.report("asleep")
        with pytest.raises(RequestRefused):
            await client.approve(EVENT_ID)
        await client.approve(event)
    assert event.event_id == ours.event_id
    assert ours.approved_by == "web-0"


def test_a_client_serves_one_loop_after_another() -> None:
    async def ask(client: AsyncClient) -> int | None:
        return (await client.document()).incarnation

    with serving(lambda _asked, number: message(200, document(incarnation=number))) as server:
        client = AsyncClient(server.url, name="web-0")
        assert [asyncio.run(ask(client)) for _ in range(3)] == [1, 2, 3]
        assert server.connections == 1
        asyncio.run(client.close())

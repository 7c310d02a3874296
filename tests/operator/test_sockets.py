"""Strangers on the operators' TCP socket: they give way, and have little time."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from forewarn.server.operator import auth, sockets

TOKEN = "0123456789abcdef0123456789abcdef"
ASK = f"GET /v1/x HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
PLAY_SECONDS = 30


async def application(_: Any, __: Any, send: Callable[[Any], Awaitable[None]]) -> None:
    headers = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})


Reading = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Served:
    def __init__(self, port: int) -> None:
        self.port = port
        self.open: list[asyncio.StreamWriter] = []

    async def send(self, data: bytes) -> Reading:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.open.append(writer)
        writer.write(data)
        return reader, writer


@contextlib.asynccontextmanager
async def serving(head_seconds: float) -> AsyncIterator[Served]:
    opened = sockets.open_tcp("127.0.0.1", 0)
    server = sockets.Server(auth.Gate(application, TOKEN, ()), head_seconds)
    running = asyncio.create_task(server.serve(sockets=[opened]))
    served = Served(opened.getsockname()[1])
    try:
        yield served
    finally:
        for writer in served.open:
            writer.transport.abort()
        server.should_exit = True
        await running


def play(head_seconds: float, story: Callable[[Served], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(PLAY_SECONDS), serving(head_seconds) as served:
            await story(served)

    asyncio.run(run())


def test_six_hundred_half_heads_do_not_keep_an_operator_out() -> None:
    async def story(served: Served) -> None:
        for data in (ASK[:20], b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"):
            for _ in range(600):
                await served.send(data)
            reader, _ = await served.send(ASK)
            assert (await reader.readline()).split()[1] == b"200"

    play(60, story)


def test_the_oldest_stranger_gives_way_and_nobody_else() -> None:
    async def story(served: Served) -> None:
        first, _ = await served.send(ASK[:20])
        second, writer = await served.send(ASK[:20])
        for _ in range(sockets.MAX_CONNECTIONS - 1):
            await served.send(ASK[:20])
        with contextlib.suppress(ConnectionError):
            assert await first.read() == b""
        writer.write(ASK[20:])
        assert (await second.readline()).split()[1] == b"200"

    play(60, story)


def test_half_a_head_is_cut_off_in_time_also_behind_an_answer() -> None:
    async def story(served: Served) -> None:
        for data in (b"", ASK[:20], ASK + ASK[:20]):
            reader, writer = await served.send(data[: len(ASK)])
            got = await reader.read(15) if data[: len(ASK)] == ASK else b""
            writer.write(data[len(ASK) :])
            with contextlib.suppress(ConnectionError):
                got += await reader.read()
            assert got.count(b"HTTP/1.1 ") == data.count(ASK)

    play(0.2, story)


def test_a_connection_that_is_idle_between_requests_stays() -> None:
    async def story(served: Served) -> None:
        reader, writer = await served.send(ASK)
        await reader.readuntil(b"ok")
        late, _ = await served.send(b"")
        with contextlib.suppress(ConnectionError):
            await late.read()  # the time of a head is over
        writer.write(ASK)
        assert (await reader.readline()).split()[1] == b"200"

    play(0.2, story)

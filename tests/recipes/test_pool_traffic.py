"""The pool's client counts how each request ended, and never asks twice for one."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

import patience
from pool import traffic
from ports import free_port

GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nweb-0\n"
WAYS = {
    "status 503": b"HTTP/1.0 503 Service Unavailable\r\nContent-Length: 2\r\n\r\nno",
    "cut short": GOOD[:-2],
    "hung up": b"",
    "no machine's answer": GOOD.replace(b"web-0", b"nginx"),
}


KINDS = {"quick new", "quick kept", "slow new", "slow kept"}


def answered(told: list[dict[str, Any]]) -> Counter[str]:
    """Return how many requests of each kind were answered, of all that the program has told."""
    return sum((Counter(each["answered"]) for each in told), Counter())


class Server:
    """Answers every request with the same bytes, and counts."""

    def __init__(self, answer: bytes, *, then_close: bool = True, reset: bool = False) -> None:
        self._answer, self._close, self._reset = answer, then_close, reset
        self.requests = self.connections = 0
        self._serving: set[asyncio.Task[None]] = set()

    async def over(self) -> None:
        """Wait until every client has hung up."""
        await asyncio.gather(*self._serving)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n"):
                self.requests += 1
                writer.write(self._answer)
                await writer.drain()
                if self._close:
                    break
        if self._reset:
            once = struct.pack("ii", 1, 0)  # no lingering: what is closed is reset
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, once)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def asked(server: Server, times: int = 1, *, kept: bool = True) -> list[str]:
    """Ask over one `Connection`, and return how each request ended."""
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listening:
        connection = traffic.Connection(listening.sockets[0].getsockname(), kept=kept)
        ended = []
        for _ in range(times):
            try:
                await connection.ask("/quick")
            except traffic.Failure as failure:
                ended.append(str(failure))
            else:
                ended.append("answered")
        connection.close()
        await server.over()
    return ended


@pytest.mark.parametrize("way", WAYS)
def test_each_bad_end_is_counted_as_what_it_is_and_asked_once(way: str) -> None:
    server = Server(WAYS[way])
    assert asyncio.run(asked(server, 3)) == [way] * 3
    assert server.requests == 3
    assert server.connections == 3  # what went wrong is not used again


def test_a_reset_is_counted() -> None:
    server = Server(b"", reset=True)
    assert asyncio.run(asked(server)) == ["reset"]
    assert server.requests == 1


def test_a_refused_connection_is_counted() -> None:
    port = free_port()

    async def refused() -> None:
        await traffic.Connection(("127.0.0.1", port), kept=False).ask("/quick")

    with pytest.raises(traffic.Failure, match="refused"):
        asyncio.run(refused())


def test_a_kept_connection_serves_all_and_a_new_one_serves_one() -> None:
    kept = Server(GOOD, then_close=False)
    assert asyncio.run(asked(kept, 3)) == ["answered"] * 3
    assert (kept.connections, kept.requests) == (1, 3)
    alone = Server(GOOD, then_close=False)
    assert asyncio.run(asked(alone, 3, kept=False)) == ["answered"] * 3
    assert (alone.connections, alone.requests) == (3, 3)


def test_a_connection_that_is_said_to_close_is_not_used_again() -> None:
    closing = GOOD.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    server = Server(closing, then_close=True)
    assert asyncio.run(asked(server, 3)) == ["answered"] * 3
    assert server.connections == 3


def test_the_program_asks_steadily_tells_all_and_ends_when_it_is_told_to() -> None:
    server = Server(GOOD, then_close=False)

    async def run() -> list[dict[str, Any]]:
        async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listening:
            host, port = listening.sockets[0].getsockname()
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", traffic.__file__),
                *("--address", host, "--port", str(port)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            assert process.stdout is not None
            told: list[dict[str, Any]] = []
            while answered(told).total() <= 200 or set(answered(told)) != KINDS:
                told.append(json.loads(await process.stdout.readline()))
            os.kill(process.pid, signal.SIGTERM)
            rest = await process.stdout.read()
            assert await process.wait() == 0
            await server.over()
        return told + [json.loads(line) for line in rest.splitlines()]

    told = asyncio.run(run())
    assert answered(told).total() == server.requests
    assert set(answered(told)) == KINDS
    assert not any(each["failed"] for each in told)


def test_the_program_ends_when_nobody_listens_to_it_any_more() -> None:
    port = free_port()
    argv = [sys.executable, "-I", traffic.__file__, "--address", "127.0.0.1", "--port", str(port)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        assert {failed["how"] for failed in told["failed"]} == {"refused"}
        process.stdin.close()
        assert process.wait(patience.SECONDS) == 0

"""The service on a machine of the pool: a small web server, as its owner might write it.

It knows nothing of Forewarn, and does not shut down in order: requests in progress are lost when it
is killed. Each answer names the machine and the process.

    /health   answers while it serves
    /quick    answers at once
    /slow     the same, but the body takes SLOW_SECONDS

It ends when its stdin does, so that no machine outlives its host.
"""

import argparse
import asyncio
import os
import sys

SLOW_SECONDS = 2.0
PIECES = 20
"""The parts of the body of a slow answer."""

LENGTH = 2000
"""Bytes of each body."""


class Backend:
    """Answers requests for the machine of a name."""

    def __init__(self, name: str) -> None:
        self._body = f"{name} {os.getpid()} ".encode().ljust(LENGTH - 1, b".") + b"\n"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection until the client closes it."""
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                await self._answer(head.split(b" ", 2)[1], writer)
                if b"\r\nconnection: close" in head:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            return  # the client has hung up
        finally:
            writer.close()

    async def _answer(self, path: bytes, writer: asyncio.StreamWriter) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % LENGTH
        if path != b"/slow":
            writer.write(head + self._body)
            await writer.drain()
            return
        writer.write(head)
        size = LENGTH // PIECES
        for at in range(0, LENGTH, size):
            await asyncio.sleep(SLOW_SECONDS / PIECES)  # its work
            writer.write(self._body[at : at + size])
            await writer.drain()


async def main() -> None:
    """Serve until stdin ends."""
    parser = argparse.ArgumentParser(description="A service on a machine of the demo's pool.")
    parser.add_argument("--name", required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--port", required=True, type=int)
    given = parser.parse_args()
    backend = Backend(given.name)
    over = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), over.set)
    server = await asyncio.start_server(backend.serve, given.address, given.port)
    await over.wait()
    server.close()


if __name__ == "__main__":
    asyncio.run(main())

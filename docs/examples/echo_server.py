"""An asyncio server that stops listening before its machine goes down, and listens again after."""

import asyncio
import logging
import os
import signal

import forewarn

PORT = int(os.environ.get("ECHO_PORT", "7007"))
log = logging.getLogger("echo")


class Echo:
    """Sends back what it gets."""

    def __init__(self) -> None:
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        if self._server is not None:
            return
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", PORT)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            while data := await reader.read(4096):
                writer.write(data)
                await writer.drain()
        finally:
            self._open.discard(task)
            writer.close()

    async def drain(self, seconds: float) -> None:
        """Accept no new connection, and give open ones this long to end."""
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._open:
            _, late = await asyncio.wait(self._open, timeout=seconds)
            for task in late:
                task.cancel()


async def handle(client: forewarn.AsyncClient, echo: Echo) -> None:
    """Drain for each event that concerns this machine, and approve it."""
    async for change in client.watch(mine=True):
        event = change.event
        if change.appeared and not event.started:
            left = event.notice_left
            await echo.drain(min(30.0, left.total_seconds() if left else 0.0))
            try:
                await client.approve(event)
                log.info("approved")
            except forewarn.ClientError as error:
                log.warning("not approved, so it starts by its notice: %s", error)
        elif change.last:
            await echo.start()
            log.info("listening again")


async def main() -> None:
    echo = Echo()
    await echo.start()
    async with forewarn.AsyncClient() as client:
        handling = asyncio.create_task(handle(client, echo))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, handling.cancel)
        try:
            await handling
        except asyncio.CancelledError:
            log.info("stopped")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    asyncio.run(main())

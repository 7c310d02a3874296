"""The clients of the pool: they send requests steadily, never retry, and count each result.

They know no pool: one request, one answer or none. Requests start at fixed times, however long the
answers take. A few last for seconds. Each kind goes over new connections and over kept ones. A good
answer is 200, complete, and from a machine.

Twice per second the program prints what has ended since then, a JSON object per line: see
`_Tally.told`. After SIGTERM it starts nothing more, waits for the requests in progress, and ends.
It ends at once when its stdin does.
"""

import argparse
import asyncio
import json
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable

ANSWER_SECONDS = 20.0
"""An answer that takes longer counts as none."""

TELL_SECONDS = 0.5
LINE_LIMIT = 64 * 1024

QUICK_NEW = 120.0
"""Quick requests per second, each over a new connection."""
QUICK_KEPT = 120.0
"""Quick requests per second over kept connections."""
SLOW_NEW = 5.0
SLOW_KEPT = 5.0
"""The same for requests that last for seconds."""

KEPT_CONNECTIONS = 24
"""For quick requests: five per second over each."""
KEPT_SLOW_CONNECTIONS = 15
"""For slow requests: one of two seconds every three seconds over each."""


class Failure(Exception):  # noqa: N818 - how a request ended, not a fault of the code
    """A request without a good answer; the text says how it ended."""


class Connection:
    """One connection to the balancer, opened by the first request, and kept or not."""

    def __init__(self, address: tuple[str, int], *, kept: bool) -> None:
        self._address = address
        self._kept = kept
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._begun = False

    async def ask(self, path: str) -> None:
        """Send one request; Failure if there was no good answer."""
        whole = False
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                whole = await self._asked(path)
        except TimeoutError as error:
            raise Failure("no answer") from error
        except ConnectionRefusedError as error:
            raise Failure("refused") from error
        except ConnectionError as error:
            raise Failure("reset") from error
        except OSError as error:
            raise Failure(str(error)) from error
        except asyncio.IncompleteReadError as error:
            raise Failure("cut short" if error.partial or self._begun else "hung up") from error
        finally:
            if not whole:
                self.close()

    def close(self) -> None:
        """Close it; the next request opens another one."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def _asked(self, path: str) -> bool:
        """Send the request, judge the answer, and tell whether the connection can be kept."""
        self._begun = False
        if self._streams is None:
            self._streams = await asyncio.open_connection(*self._address, limit=LINE_LIMIT)
        reader, writer = self._streams
        close = "" if self._kept else "Connection: close\r\n"
        writer.write(f"GET {path} HTTP/1.1\r\nHost: pool\r\n{close}\r\n".encode())
        await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        self._begun = True
        status = head.split(" ", 2)[1]
        fields = dict(line.split(":", 1) for line in head.split("\r\n")[1:] if ":" in line)
        body = await reader.readexactly(int(fields.get("content-length", "0")))
        if status != "200":
            raise Failure(f"status {status}")
        if not body.startswith(b"web-"):
            raise Failure("no machine's answer")
        return self._kept and fields.get("connection", "").strip() != "close"


class _Tally:
    """The requests that have ended since the last report."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._counts: Counter[str] = Counter()
        self._failures: list[dict[str, object]] = []
        self._slowest: dict[str, float] = {}

    def answered(self, kind: str, seconds: float) -> None:
        self._counts[kind] += 1
        self._slowest[kind] = max(seconds, self._slowest.get(kind, 0.0))

    def failed(self, kind: str, how: str, at: float) -> None:
        self._failures.append({"at": at, "kind": kind, "how": how})

    def told(self, at: float, under_way: int) -> str:
        """Return the report, and begin the next.

        `at` is the monotonic clock of the machine; `answered` counts good answers by kind; `failed`
        lists the other requests; `slowest` is the longest good answer in seconds, by kind.
        """
        told = {
            "at": at,
            "under_way": under_way,
            "answered": self._counts,
            "failed": self._failures,
            "slowest": self._slowest,
        }
        line = json.dumps(told)
        self._begin()
        return line


class Traffic:
    """All requests to the balancer at an address."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._loop = asyncio.get_running_loop()
        self._tally = _Tally()
        self._under_way: set[asyncio.Task[None]] = set()
        self.over = asyncio.Event()
        """When nothing more is begun."""

    async def run(self) -> None:
        """Ask until `over`, and return when the last request has ended."""
        telling = asyncio.ensure_future(self._tell())
        await asyncio.gather(
            self._alone("quick new", "/quick", QUICK_NEW),
            self._alone("slow new", "/slow", SLOW_NEW),
            *self._together("quick kept", "/quick", QUICK_KEPT, KEPT_CONNECTIONS),
            *self._together("slow kept", "/slow", SLOW_KEPT, KEPT_SLOW_CONNECTIONS),
        )
        if self._under_way:
            await asyncio.wait(self._under_way)
        telling.cancel()
        say(self._tally.told(self._loop.time(), 0))

    async def _alone(self, kind: str, path: str, rate: float) -> None:
        """Begin requests at a rate, each over a connection of its own."""

        async def ask() -> None:
            connection = Connection(self._address, kept=False)
            await self._ask(connection, kind, path)

        async def begin() -> None:
            task = asyncio.ensure_future(ask())
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

        await self._paced(rate, 0.0, begin)

    def _together(self, kind: str, path: str, rate: float, count: int) -> list[Awaitable[None]]:
        """Return what asks at a rate over kept connections, one after the other over each."""

        async def over(number: int) -> None:
            connection = Connection(self._address, kept=True)
            try:
                await self._paced(
                    rate / count, number / rate, lambda: self._ask(connection, kind, path)
                )
            finally:
                connection.close()

        return [over(number) for number in range(count)]

    async def _paced(self, rate: float, first: float, act: Callable[[], Awaitable[None]]) -> None:
        """Act at a rate until it is over; what comes late does not make the next come late."""
        due = self._loop.time() + first
        while not self.over.is_set():
            await asyncio.sleep(due - self._loop.time())
            if self.over.is_set():
                return
            await act()
            due += 1 / rate

    async def _ask(self, connection: Connection, kind: str, path: str) -> None:
        began = self._loop.time()
        try:
            await connection.ask(path)
        except Failure as failure:
            self._tally.failed(kind, str(failure), self._loop.time())
        else:
            self._tally.answered(kind, self._loop.time() - began)

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(TELL_SECONDS)
            say(self._tally.told(self._loop.time(), len(self._under_way)))


def say(what: str) -> None:
    """Tell the demo, which counts."""
    print(what, flush=True)


async def main() -> None:
    """Ask until SIGTERM."""
    parser = argparse.ArgumentParser(description="The client of the demo's pool.")
    parser.add_argument("--address", required=True)
    parser.add_argument("--port", required=True, type=int)
    given = parser.parse_args()
    traffic = Traffic((given.address, given.port))
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, traffic.over.set)
    alone = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), alone.set)
    running = asyncio.ensure_future(traffic.run())
    ending = asyncio.ensure_future(alone.wait())
    await asyncio.wait((running, ending), return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        await running  # and its error, if there was one


if __name__ == "__main__":
    asyncio.run(main())

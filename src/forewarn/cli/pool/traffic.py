"""The pool's client: it asks steadily, never asks twice for one thing, and counts how each ended.

It does not retry, and knows no pool: one request, one answer or none. Requests come at fixed times,
however long the answers take; a few last for seconds, each kind over connections of its own and
over ones that are kept. An answer counts as good only if it is 200, whole, and a machine's.

Run by `python -I`, it imports nothing of Forewarn. Twice a second it tells on stdout what has ended
since, a JSON object a line: see `_Tally.told`. SIGTERM lets it begin nothing more, wait for what is
under way, and end; it ends at once when its stdin does.
"""

import argparse
import asyncio
import json
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable

ANSWER_SECONDS = 20.0
"""How long an answer may take before it counts as none."""

TELL_SECONDS = 0.5
LINE_LIMIT = 64 * 1024

QUICK_NEW = 120.0
"""Quick requests in a second that have a connection of their own."""
QUICK_KEPT = 120.0
"""Quick requests in a second over connections that are kept."""
SLOW_NEW = 5.0
SLOW_KEPT = 5.0
"""The same of those that last for seconds."""

KEPT_CONNECTIONS = 24
"""For quick requests: five in a second over each."""
KEPT_SLOW_CONNECTIONS = 15
"""For slow ones: each has three seconds for one of two."""


class Failure(Exception):  # noqa: N818 - how a request ended, and no fault of the code
    """A request that did not get its answer; the text says how it ended."""


class Connection:
    """One connection to the balancer, opened when it is wanted.

    Args:
        address: The balancer's.
        kept: Whether it is kept from one request to the next.
    """

    def __init__(self, address: tuple[str, int], *, kept: bool) -> None:
        self._address = address
        self._kept = kept
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._begun = False

    async def ask(self, path: str) -> None:
        """Ask once.

        Args:
            path: What is asked for.

        Raises:
            Failure: There was no good answer.
        """
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
        """Close it; the next request opens another."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def _asked(self, path: str) -> bool:
        """Ask, judge the answer, and tell whether the connection may be kept."""
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
    """What has ended since it was told last."""

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
        """Return what is told, and begin anew.

        `at` is the machine's monotonic clock; `answered` counts good answers by kind; `failed` is
        each request that had none; `slowest` is the longest that a good answer took, in seconds.
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
    """All requests.

    Args:
        address: The balancer's.
    """

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
    print(what, flush=True)  # noqa: T201 - stdout is how the client talks to the demo


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

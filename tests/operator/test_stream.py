"""GET /v1/stream on a real socket: everything once, in order, wherever a reader goes on."""

import asyncio
import itertools
import json
import socket
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import patience
from forewarn.cli.follow import EventParser, StreamEvent
from forewarn.cli.operator_client import OperatorClient
from forewarn.clock import ManualClock
from forewarn.control.changefeed import NewsTail, Some, Told
from forewarn.maintenance.model import Refused
from forewarn.maintenance.news import NumberedNews
from forewarn.server.operator import auth, stream
from forewarn.store.sqlite import InMemoryStore
from server.exchange import Exchanges
from server.running import (
    NOON,
    Client,
    Running,
    UnixConnection,
    settings_in,
)
from stories import listed, stories_beside


class Reader:
    """Reads one stream; it has begun."""

    def __init__(
        self, service: Running | str, last_id: str = "", token: str | None = None, **query: Any
    ) -> None:
        address = service if isinstance(service, str) else service.settings.operator.socket
        self.parser = EventParser(last_id)
        operator = OperatorClient(address=address, token=token)
        self._pieces = operator.stream("/v1/stream", patience.SECONDS, last_id, **query)
        begun = self.parser.feed(next(self._pieces))
        told = (event for piece in self._pieces for event in self.parser.feed(piece))
        self.events = itertools.chain(begun, told)

    def close(self) -> None:
        self._pieces.close()  # type: ignore[attr-defined]

    def some(self, count: int) -> list[StreamEvent]:
        """Return the next events."""
        return [*itertools.islice(self.events, count)]


class Streamed(Exchanges):
    """A story so far, of readers by their names."""

    def __init__(self, service: Running, clock: ManualClock) -> None:
        super().__init__(service)
        self.clock = clock
        self.readers: dict[str, Reader] = {}
        self.read: list[StreamEvent] = []

    def follow(
        self, name: str, after: str = "", types: str = "", token: str = "", **query: str
    ) -> None:
        """Begin to read, after an item, a transaction or the last that another has read.

        By a token it reads over TCP.
        """
        if after in self.readers:
            after = self.readers[after].parser.last_id
        more: dict[str, Any] = {"types": listed(types)} if types else {}
        more |= {"token": self.bound[token]} if token else {}
        place = self.service.opened.operators[1] if token else self.service
        self.readers[name] = Reader(place, self.spelled(after), **query, **more)

    def ends(self, name: str) -> None:
        """Nothing more comes to a reader."""
        assert [*self.readers[name].events] == []

    def reads(self, name: str, *names: str, **facts: str) -> None:
        """Its next events have these names; the last of them has these facts."""
        self.read = self.readers[name].some(len(names))
        assert [event.name for event in self.read] == [*names]
        last = self.read[-1]
        told = {"data": json.loads(last.data), "id": last.id, "whole": last}
        for place, expected in facts.items():
            self.compare(told, f"{{{place.replace('__', '.')}: {expected}}}")


@pytest.mark.parametrize("rows", stories_beside(__file__, "stream.txt"))
def test_a_reader_is_told_everything_once(
    service: Running, client: Client, clock: ManualClock, rows: list[tuple[int, str]]
) -> None:
    del client  # it applied the fleet
    story = Streamed(service, clock)
    try:
        assert story.play("stream.txt", rows)
    finally:
        for reader in story.readers.values():
            reader.close()


def test_streams_end_when_the_service_stops(tmp_path: Path) -> None:
    with Running(settings_in(tmp_path), InMemoryStore(), ManualClock(NOON)) as running:
        readers = [Reader(running) for _ in range(5)]
    for reader in readers:
        assert [*reader.events] == []


def test_a_refused_reader_takes_no_place(service: Running) -> None:
    with closing(UnixConnection(Path(service.settings.operator.socket))) as connection:
        for _ in range(stream.MAX_STREAMS + 1):
            connection.request("GET", "/v1/stream?since=x")
            answer = connection.getresponse()
            assert (answer.status, b"invalid" in answer.read()) == (400, True)
        Reader(service).close()


@pytest.mark.parametrize("path", ["/v1/stream?since=0", "/page/stream"])
def test_no_more_may_follow_if_many_begin_at_once(tmp_path: Path, path: str) -> None:
    async def begun(place: str) -> tuple[str, asyncio.StreamWriter]:
        # Not asyncio's own connect: on a full queue it goes on with a socket that is not connected.
        opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        opened.connect(place)
        reader, writer = await asyncio.open_unix_connection(sock=opened)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        return head.split()[1].decode(), writer

    async def burst(place: str) -> Counter[str]:
        answers = await asyncio.gather(*(begun(place) for _ in range(stream.MAX_STREAMS)))
        for _, writer in answers:
            writer.close()
        return Counter(status for status, _ in answers)

    wanted = settings_in(tmp_path, listen="127.0.0.1:0")
    with Running(wanted, InMemoryStore()) as running:
        place, half = running.settings.operator.socket, stream.MAX_STREAMS_OF_USER
        assert asyncio.run(burst(place)) == {"200": half, "422": half}
        # Those that were closed make room, once the service has noticed.
        patience.eventually(lambda: asyncio.run(burst(place)), {"200": half, "422": half})


def test_nobody_takes_the_streams_of_others_until_all_are_taken() -> None:
    news, accounts = SimpleNamespace(followers=0), auth.Accounts()
    leaving: list[Future[None]] = []

    def begun(name: str, times: int, *, token: bool = True) -> int:
        """Return how many of so many may follow."""
        for number in range(times):
            asks: Any = SimpleNamespace(by=name, token=token or None)
            scope = {auth.REQUEST: asks, "state": {auth.LOST: Future()}}
            try:
                stream.count_reader(cast("Any", SimpleNamespace(scope=scope)), news, accounts)
            except Refused:
                return number
            leaving.append(scope["state"][auth.LOST])
        return times

    share = stream.MAX_STREAMS_OF_TOKEN
    assert begun("root", stream.MAX_STREAMS, token=False) == stream.MAX_STREAMS_OF_USER
    for number in range((stream.MAX_STREAMS - stream.MAX_STREAMS_OF_USER) // share):
        assert begun(f"ann-{number}", share + 1) == share
    assert begun("late", 1) == 0
    leaving.pop(0).set_result(None)
    assert begun("late", 2) == 1
    for each in leaving:
        each.set_result(None)
    assert (news.followers, accounts.following) == (0, {})


class Ending(NewsTail):
    """News that takes so long to read that the reader's token has ended meanwhile."""

    is_valid = True

    async def after(self, sequence: int) -> Some:
        self.is_valid = False
        item = NumberedNews(id=f"{sequence + 1}-0", index=0, type="hold.put", json=b"{}")
        return Some((Told(sequence + 1, (item,)),), sequence + 1)


def test_a_reader_whose_token_ends_while_news_is_read_gets_none_of_it() -> None:
    tail = Ending(InMemoryStore(), ManualClock(NOON))
    told = stream.NewsStream(tail, (), is_valid=lambda: tail.is_valid)

    async def read() -> list[bytes]:
        return [chunk async for chunk in told.chunks()]

    (greeting,) = asyncio.run(read())
    assert b"hold.put" not in greeting


def test_what_is_sent_is_made_once_the_reader_has_taken_what_was_before() -> None:
    made: list[int] = []

    class Long(NewsTail):
        async def after(self, sequence: int) -> Some:
            def told() -> Iterator[Told]:
                for number in (sequence + 1, sequence + 2):
                    made.append(number)
                    json = b" " * stream.MAX_CHUNK
                    item = NumberedNews(id=f"{number}-0", index=0, type="hold.put", json=json)
                    yield Told(number, (item,))

            return Some(cast("Any", told()), sequence + 2)

    async def read() -> None:
        chunks = stream.NewsStream(Long(InMemoryStore(), ManualClock(NOON)), ()).chunks()
        await anext(chunks)  # the greeting
        await anext(chunks)

    asyncio.run(read())
    assert made == [1]


async def resumed(
    place: str, latest: int = 5, *types: str, of: type[NewsTail] = NewsTail
) -> tuple[NewsTail, AsyncIterator[bytes]]:
    """Return the tail of a replica that has read up to 5, and the stream of who goes on there."""
    asked: Any = None
    tail = of(asked, ManualClock(NOON))
    tail.begin(5)
    told = stream.NewsStream(tail, types)

    async def kept() -> tuple[int, int]:
        return 0, latest

    await told.resume(place, kept)
    return tail, told.chunks()


async def test_a_reader_is_told_of_a_gap_within_the_last_transaction_that_was_trimmed() -> None:
    async def kept() -> tuple[int, int]:
        return 4, 5

    asked: Any = None
    for place, trimmed in (("4-0", True), ("4", False), ("5-0", False)):
        told = stream.NewsStream(NewsTail(asked, ManualClock(NOON)), ())
        await told.resume(place, kept)
        assert (told._gap is not None) is trimmed


async def test_a_reader_that_knows_more_than_this_replica_waits_until_it_has_caught_up() -> None:
    tail, chunks = await resumed("7-0", 7)
    await anext(chunks)  # the greeting
    asyncio.get_running_loop().call_soon(tail.close)
    assert [chunk async for chunk in chunks] == []


async def test_a_reader_that_is_cut_off_before_it_hears_of_a_gap_hears_of_it_again() -> None:
    _, chunks = await resumed("7-0")
    assert b"id:" not in await anext(chunks)
    assert b"event: gap" in await anext(chunks)


async def test_a_reader_of_few_types_that_is_far_behind_gets_nearer_each_time_it_is_cut_off() -> (
    None
):
    class Dull(NewsTail):
        async def after(self, sequence: int) -> Some:
            item = NumberedNews(id=f"{sequence + 1}-0", index=0, type="hold.put", json=b"{}")
            return Some((Told(sequence + 1, (item,)),), sequence + 1)

    _, chunks = await resumed("1-0", 5, "operation.failed", of=Dull)
    assert b"id:" not in await anext(chunks)
    assert [await anext(chunks) for _ in range(2)] == [b": alive\nid: 1\n\n", b": alive\nid: 2\n\n"]

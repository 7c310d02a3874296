"""The guest plane put together, behind any source of documents."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from builders import NOW
from forewarn.clock import Clock, ManualClock, SystemClock
from forewarn.maintenance.model import Changes, Sighting
from forewarn.server.guest.limits import Limits
from forewarn.server.guest.listener import Listener
from forewarn.server.guest.plane import GuestPlane
from forewarn.server.relay_feed import GuestRules, PublishedEvent, ScopeDocument
from forewarn.server.sockets import HandedOver
from guest import room
from guest.room import Answer, answers, get, post
from guest.served import Play, run_by_asyncio, run_by_uvloop

HERE = Listener(address="127.0.0.1", port=0, default_vm="web-0")
WEB = ScopeDocument(scope=room.SCOPES[0])


class Opened:
    def __init__(self, plane: GuestPlane, port: int, source: room.BookedApprovals) -> None:
        self.plane = plane
        self.port = port
        self.source = source
        self.age = 0

    async def ask(self, data: bytes) -> Answer:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        writer.write_eof()
        (answer,) = answers(await reader.read())
        writer.close()
        return answer


@asynccontextmanager
async def opened(rules: GuestRules, time: Clock | None = None) -> AsyncIterator[Opened]:
    clock = SystemClock()
    source = room.BookedApprovals()
    source.record_requests = source.answer_turning
    plane = GuestPlane(
        listeners=(HERE,),
        limits=Limits(),
        rules=rules,
        backend=source,
        time=clock,
        wall=clock,
        request_time=time or clock,
        on_turn=lambda _: None,
        mint=lambda: "00000000-0000-4000-8000-a3c5e7091b2d",
        handed_over=HandedOver(),
        age=lambda: made.age,
    )
    made = Opened(plane, 0, source)
    plane.replace([WEB], machines=room.MACHINES[:2])
    (address,) = await plane.open()
    made.port = int(address.rpartition(":")[2])
    try:
        yield made
    finally:
        await plane.close()


def test_requests_are_dated_by_the_clock_that_decides() -> None:
    async def play() -> None:
        async with opened(GuestRules(), ManualClock(NOW)) as made:
            await made.ask(get())
            assert made.plane.seen("web-0") == Sighting(asked_at=NOW, version="2020-07-01")

    run_by_asyncio(play())


@pytest.mark.parametrize("run", [run_by_asyncio, run_by_uvloop])
def test_whole_documents_are_read_until_others_take_their_place(run: Play) -> None:
    async def play() -> None:
        async with opened(GuestRules()) as made:
            assert (await made.ask(get())).body == b'{"DocumentIncarnation":2,"Events":[]}'
            kept = room.DocumentCache()
            operation = room.operation(room.event())
            kept.learn(Changes(scopes=tuple(room.SCOPES), operations=(operation,)))
            whole = kept.whole("web")
            assert [type(each) for each in whole.events] == [PublishedEvent]
            made.plane.replace([whole])
            assert room.EVENT_ID.encode() in (await made.ask(get())).body
            assert (await made.ask(post())).status == 200
            assert made.source.book == [("web", (room.EVENT_ID,), "web-0", "127.0.0.1")]
            made.plane.replace([], removed_machines=("web-0",))
            assert (await made.ask(get())).status == 403

    run(play())


def test_rules_may_change_while_guests_ask() -> None:
    async def play() -> None:
        async with opened(GuestRules()) as made:
            assert [(await made.ask(get())).status for _ in range(3)] == [200] * 3
            made.plane.apply(GuestRules(rate_per_second=0.01, rate_burst=1))
            statuses = [(await made.ask(get())).status for _ in range(3)]
            assert statuses[1:] == [429, 429]
            made.plane.apply(GuestRules(rate_per_second=0, enablement="first-request"))
            assert made.source.turned == []
            assert (await made.ask(get())).status == 200
            assert made.source.turned == [("web",)]
            made.plane.apply(GuestRules(post_without_header="always", rate_per_second=0))
            bare = post().replace(b"Metadata: true\r\n", b"")
            assert (await made.ask(bare)).status == 200
            made.plane.apply(GuestRules(post_without_header="of a later release"))
            assert (await made.ask(bare)).status == 400

    run_by_asyncio(play())

"""News as a stream of server-sent events, which its reader may resume where it was cut off."""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator
from typing import Annotated, Final, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from forewarn.control.changefeed import NewsTail, Some, Told
from forewarn.maintenance import news
from forewarn.maintenance.model import Refused
from forewarn.maintenance.news import NumberedNews
from forewarn.server.operator import auth
from forewarn.server.operator.routing import OperatorCall
from forewarn.server.operator.table import API
from forewarn.store.port import StoreError
from forewarn.store.queries import Reading
from forewarn.vocabulary import AccessRole, ErrorCode

MAX_STREAMS: Final = 128
"""Readers of news at once, and open pages: each a quarter of the operators' connections."""

MAX_STREAMS_OF_TOKEN: Final = 8
"""Streams and open pages of an account with a token: a browser opens six, and no viewer takes
everybody's."""

MAX_STREAMS_OF_USER: Final = MAX_STREAMS // 2
"""Those of a user of the unix socket, whose scripts may wait for many things at once."""

HEARTBEAT_SECONDS: Final = 15.0
"""The interval of heartbeats on a silent stream: proxies close one that is silent for a minute."""

RETRY_MILLISECONDS: Final = 1000
"""When a browser connects again after the stream was cut."""

MAX_CHUNK: Final = 64 * 1024
"""About how many bytes are sent at once."""

HEADERS: Final = {
    "Cache-Control": "no-store",
    "Connection": "close",
    "X-Content-Type-Options": "nosniff",
    "X-Accel-Buffering": "no",  # nginx would keep some KiB back
}
"""The headers of a stream: one that ends ends its connection."""

MAX_ID: Final = 40
"""The most characters of a number of news that are looked at; ours have at most 28."""

_ID: Final = re.compile(r"(0|[1-9][0-9]{0,17})(?:-(0|[1-9][0-9]{0,8}))?")
_NO_NEWS: Final = -1
"""The index before the first item of a transaction."""

Since = Annotated[str, msgspec.Meta(max_length=MAX_ID)]
Types = Annotated[tuple[str, ...], msgspec.Meta(max_length=100)]


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """Why a stream does not go on where its reader was."""

    reason: str
    """`trimmed`, `unknown` or `lost`."""
    after: str
    """The number that it was to go on after."""


@API.route("GET", "/v1/stream", AccessRole.VIEWER)
async def follow(
    request: Request, call: OperatorCall, *, since: Since = "", types: Types = ()
) -> Response:
    """Send news as it happens, after the item with the number that the reader has."""
    backend, tail = call.backend, call.backend.news
    stream = NewsStream(tail, news.chosen(types), is_valid=call.is_valid)
    if place := request.headers.get("last-event-id", "")[:MAX_ID] or since:
        await stream.resume(place, lambda: backend.read(_kept))
    count_reader(request, tail, backend.accounts)
    return StreamingResponse(stream.chunks(), media_type="text/event-stream", headers=HEADERS)


def _kept(reading: Reading) -> tuple[int, int]:
    return reading.news_trimmed(), reading.position().sequence


class Followed(Protocol):
    """A source with readers whose answers do not end."""

    followers: int


def count_reader(request: Request, what: Followed, accounts: auth.Accounts) -> None:
    """Count one reader more until its connection is lost; its answer needs HEADERS, which close it.

    Counted only once it is sent to, all requests of a burst would pass. Refused (LIMIT) if there
    are MAX_STREAMS already, or its account has its share.
    """
    caller = auth.request_of(request.scope)
    if what.followers >= MAX_STREAMS:
        message = f"{MAX_STREAMS} already follow: close one of them"
        raise Refused(ErrorCode.LIMIT, message, most=MAX_STREAMS)
    most = MAX_STREAMS_OF_TOKEN if caller.token else MAX_STREAMS_OF_USER
    own = caller.by, most  # a user's browsers have their own share
    if accounts.following[own] >= most:
        message = f"{caller.by} already has {most} streams open: close one of them"
        raise Refused(ErrorCode.LIMIT, message, most=most)
    what.followers += 1
    accounts.following[own] += 1
    lost: asyncio.Future[None] = request.scope["state"][auth.LOST]

    def leave(_: "asyncio.Future[None]") -> None:
        what.followers -= 1
        accounts.following -= Counter((own,))  # without those that are at 0

    lost.add_done_callback(leave)


class NewsStream:
    """The news for one reader: its position, and the types that it asked for."""

    def __init__(
        self, tail: NewsTail, types: Collection[str], *, is_valid: Callable[[], bool] = lambda: True
    ) -> None:
        self._tail = tail
        self._types = types
        self._is_valid = is_valid
        self._gap: Gap | None = None
        self._sequence = tail.reached
        self._index: int | None = None
        """The last item read of the transaction after `_sequence`; None before the first."""
        self._losses = tail.losses

    async def resume(self, place: str, kept: Callable[[], Awaitable[tuple[int, int]]]) -> None:
        """Go on after the item, or after the whole transaction, with this number.

        `kept` asks the store for the last transaction whose news was trimmed, and for the last of
        all: this process may know less than the replica that the reader was told by.

        Raises:
            Refused: The number is not valid (INVALID).
            StoreError: The store is away.
        """
        found = _ID.fullmatch(place)
        if found is None:
            message = f"invalid number of news {place!r}: expected one such as 120-0"
            raise Refused(ErrorCode.INVALID, message, id=place, where="since")
        sequence, index = int(found[1]), found[2]
        oldest, latest = await kept()
        if sequence > latest:
            self._gap = Gap(reason="unknown", after=place)
        elif sequence < oldest or (sequence == oldest and index is not None):
            self._gap, self._sequence = Gap(reason="trimmed", after=place), oldest
        elif index is None:
            self._sequence = sequence
        else:
            self._sequence, self._index = sequence - 1, int(index)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield what is sent, until the service stops or the reader may read no more."""
        yield b"retry: %d\n%b" % (RETRY_MILLISECONDS, self._alive())
        while not self._tail.closed and self._is_valid():
            if self._losses != self._tail.losses:
                self._losses = self._tail.losses
                self._gap = Gap(reason="lost", after=str(self._sequence))
                self._sequence, self._index = self._tail.reached, None
            if self._gap is not None:
                yield b"event: gap\ndata: %b\nid: %d\n\n" % (
                    msgspec.json.encode(self._gap),
                    self._sequence,
                )
                self._gap = None
            try:
                some = await self._tail.after(self._sequence)
            except StoreError:
                return  # the reader connects again, and is told of it
            if some.sequence == self._sequence and not some.told:
                await self._tail.wait(HEARTBEAT_SECONDS)
                if self._sequence == self._tail.reached and not self._tail.closed:
                    yield self._alive()
                continue
            is_sent = False
            for chunk in self._frames(some):
                if not self._is_valid():
                    return
                is_sent = True
                yield chunk
            if not is_sent and self._sequence < self._tail.reached:
                # To read through what it did not choose may take minutes: cut off, it goes on here.
                yield self._alive()

    def _frames(self, some: Some) -> Iterator[bytes]:
        """Yield what is sent at once, made only then: a transaction may have thousands of items."""
        frames, size = list[bytes](), 0
        for frame in (_frame(item) for told in some.told for item in self._wanted(told)):
            frames.append(frame)
            size += len(frame)
            if size >= MAX_CHUNK:
                yield b"".join(frames)
                frames, size = [], 0
        if frames:
            yield b"".join(frames)
        self._sequence, self._index = some.sequence, None

    def _wanted(self, told: Told) -> Iterator[NumberedNews]:
        read = _NO_NEWS
        if self._index is not None and told.sequence == self._sequence + 1:
            read = self._index
        for item in told.items:
            if item.index > read and (not self._types or item.type in self._types):
                yield item

    def _alive(self) -> bytes:
        """Return a comment, with the place that a reader of few types goes on from.

        Before a gap it has none: a reader that was cut off then would not hear of the gap.
        """
        is_place = self._index is None and self._gap is None
        id_ = b"id: %d\n" % self._sequence if is_place else b""
        return b": alive\n%b\n" % id_


def _frame(item: NumberedNews) -> bytes:
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (item.id.encode(), item.type.encode(), item.json)

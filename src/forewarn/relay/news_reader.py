"""Reads news of this host, from one replica after another, for as long as the relay runs.

One request waits at a replica for whatever changes. Where it ends without a good answer the next
replica is asked at once; where none of them answers, again after a pause that grows and differs
from relay to relay, for a thousand of them come back to a service that starts. An answer that does
not fit changes nothing (see `held`), and a snapshot is asked for.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
import structlog

from forewarn.client.transport import RequestFailed
from forewarn.relay import freshness, upstream
from forewarn.relay.freshness import Freshness
from forewarn.relay.host_documents import NewsFault, NewsRefused
from forewarn.relay.upstream import ReplicaConnection, Upstream, UpstreamFailed
from forewarn.server import relay_feed
from forewarn.server.guest.counters import LimitLog
from forewarn.server.relay_feed import News, RelayState

ANSWER_SECONDS: Final = relay_feed.IDLE_WAIT_SECONDS + 10.0
"""For an answer to a request that waits: as long as the service lets it wait, and a slow path."""

FIRST_SECONDS: Final = 10.0
"""For an answer to a request that does not wait: a snapshot of thousands of machines."""

FIRST_PAUSE: Final = 0.25
"""Seconds before the replicas are tried again when none of them answered, doubled each time."""

LONGEST_PAUSE: Final = 3.0
"""The longest of these pauses: within it a service that came back finds the relay again."""

_log = structlog.get_logger(__name__)


class TokenRefused(UpstreamFailed):
    """The replica does not take this host's token."""


class NewsReader:
    """Asks for news; lives on the event loop.

    Args:
        asked: The replicas.
        position: Returns what the relay has; `""` asks for a snapshot.
        state: Returns what the relay says of itself, now.
        take: Takes news; NewsRefused if it does not fit.
        told: Is told of a state that the service has heard.
        heard_again: Is called when a replica is heard after one was lost.
        chance: Returns a number from 0 to 1.
        monotonic: Returns the machine's monotonic seconds.
    """

    def __init__(
        self,
        asked: Upstream,
        *,
        position: Callable[[], str],
        state: Callable[[], RelayState],
        take: Callable[[News], Awaitable[None]],
        told: Callable[[RelayState], None],
        heard_again: Callable[[], None],
        chance: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._upstream = asked
        self._position = position
        self._state = state
        self._take = take
        self._told = told
        self._heard_again = heard_again
        self._chance = chance
        self._monotonic = monotonic
        self._connection: ReplicaConnection | None = None
        self._wants_snapshot = False
        self._asks_again = False
        self._asked_at = 0.0
        self._log = LimitLog()
        self._refusals = 0
        self.freshness = Freshness(true_until=monotonic())
        self.trouble = ""
        """Why no replica is heard of, for people; `""` while one is."""
        self.tried = asyncio.Event()
        """Set once a replica has answered, or none of them did."""
        self.rounds_failed = 0
        """How often in turn no replica answered."""
        self.failures = 0
        self.answers = 0
        self.refused: Counter[NewsFault] = Counter()

    async def run(self) -> None:
        """Read news until it is cancelled."""
        failed = 0
        while True:
            heard = self.answers
            self._asks_again = False
            try:
                await self._read_on()
            except (UpstreamFailed, RequestFailed, OSError, ValueError, NewsRefused) as error:
                if self._asks_again:
                    continue
                failed = 1 if self.answers > heard else failed + 1
                self._fail(error)
                self._upstream.pass_over()
            if failed >= len(self._upstream.replicas):
                failed = 0
                await self._pause()

    async def _pause(self) -> None:
        """End a round in which no replica answered as it should."""
        now = self._monotonic()
        if self._refusals:
            self.freshness = freshness.refused(self.freshness, now)
        self._refusals = 0
        self.tried.set()
        longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(self.rounds_failed, 10))
        self.rounds_failed += 1
        await asyncio.sleep(longest * (1 + self._chance()) / 2)

    def _fail(self, error: Exception) -> None:
        now = self._monotonic()
        self.failures += 1
        is_dark = freshness.is_dark(error)
        self.freshness = freshness.lost(self.freshness, now, self._asked_at, is_dark=is_dark)
        self._refusals += isinstance(error, TokenRefused)
        if isinstance(error, NewsRefused):
            self.refused[error.fault] += 1
            self._wants_snapshot = error.fault is not NewsFault.BACKWARDS
        where = str(self._upstream.now_first)
        why = upstream.spoken(error)
        self.trouble = f"{where}: {why}"
        what = "refused news" if isinstance(error, NewsRefused) else "cannot read news"
        self._log.warn(what, (where, what, why[:100]), now, replica=where, why=why)

    async def _read_on(self) -> None:
        """Read news from the replica that is first until something is wrong with it."""
        began = self._monotonic()
        try:
            connection = await self._upstream.connect(self._upstream.now_first)
        except UpstreamFailed:  # nothing was heard while it tried
            known = self.freshness
            self.freshness = freshness.lost(known, self._monotonic(), began, is_dark=False)
            raise
        self._connection = connection
        try:
            while connection.is_open:
                await self._ask(connection)
                if not self._upstream.is_current(connection):
                    break
        finally:
            connection.close()
            self._connection = None

    async def _ask(self, connection: ReplicaConnection) -> None:
        position = "" if self._wants_snapshot else self._position()
        state = self._state()
        # The first answer comes at once: it shows that the service knows us, and that it is there.
        wait = "0" if connection.is_fresh else ""
        target = upstream.target(relay_feed.NEWS_PATH, after=position, wait=wait)
        self._asked_at = self._monotonic()
        async with asyncio.timeout(FIRST_SECONDS if wait else ANSWER_SECONDS):
            reply = await connection.ask(
                b"GET",
                target,
                (
                    *self._upstream.credentials.headers,
                    (relay_feed.STATE_HEADER.encode(), relay_feed.encode(state)),
                ),
            )
        if reply.status in {401, 403}:
            raise TokenRefused(f"it does not know this host: {upstream.refusal(reply).message}")
        if reply.status == 200:
            try:
                news = relay_feed.decode_news(reply.body)
            except msgspec.DecodeError as error:
                raise UpstreamFailed(f"its answer is no news: {error}") from error
            await self._take(news)
            self._wants_snapshot = False
        elif reply.status != 204:
            told = upstream.refusal(reply)
            raise UpstreamFailed(f"it answers {reply.status}: {told.message or told.code}")
        self._heard(state)

    def _heard(self, state: RelayState) -> None:
        now = self._monotonic()
        was_true = self.freshness.is_true
        if not was_true:
            _log.info(
                "the service is heard",
                replica=str(self._upstream.now_first),
                after_seconds=round(self.freshness.age(now), 1),
            )
            self._heard_again()
        self.freshness = freshness.heard(self.freshness, now)
        self._told(state)
        self.answers += 1
        self.trouble = ""
        self._refusals = self.rounds_failed = 0
        self.tried.set()

    def ask_again(self, true_until: float) -> None:
        """Ask at once, so that the service hears of a stall, and this relay of what it missed.

        What was known then is certain until `true_until`.
        """
        known = self.freshness
        self.freshness = freshness.lost(known, self._monotonic(), true_until, is_dark=False)
        if self._connection is not None:
            self._asks_again = True
            self._connection.close()

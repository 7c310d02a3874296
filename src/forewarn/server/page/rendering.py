"""Templates to HTML on a thread of its own, times as they write them, and files that browsers keep.

One thread is enough, and more would be worse: while a template is rendered, the event loop waits
for the interpreter (`process.SWITCH_SECONDS`), and with several such threads for each of them.
"""

import asyncio
import functools
import gzip
import hashlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

import jinja2
import msgspec
from starlette.responses import Response

from forewarn import times
from forewarn.clock import Clock
from forewarn.server.page import orders, timeline

T = TypeVar("T")

FOLDER: Final = Path(__file__).parent

KINDS: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""The media types of the static files, by the end of their names."""

COMPILE_GAP_SECONDS: Final = 0.05
"""The pause for guests' requests between two templates: to compile one takes 2 to 20 ms, and keeps
the interpreter for some of that."""

STATIC: Final = "/page/static/"

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
"""The content security policy of a page: its own files, and images in data URLs; nothing inline.
Even if a name got past the escaping, it could run nothing."""

HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    # Not `no-referrer`: forms would send `Origin: null` then, which is refused.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Vary": "HX-Request",
}
"""The headers of every page."""


class StaticFile(msgspec.Struct, frozen=True):
    """A file that a browser may keep for ever: its address changes with its content."""

    address: str
    kind: str
    body: bytes
    packed: bytes
    """The body, by gzip."""


@functools.cache
def static_files() -> dict[str, StaticFile]:
    """Return the static files by their names."""
    found = {}
    for path in sorted((FOLDER / "static").rglob("*")):
        if path.suffix in KINDS:
            body = path.read_bytes()
            digest = hashlib.sha256(body).hexdigest()[:16]
            found[path.name] = StaticFile(
                address=f"{STATIC}{path.stem}-{digest}{path.suffix}",
                kind=KINDS[path.suffix],
                body=body,
                packed=gzip.compress(body, mtime=0),
            )
    return found


@functools.cache
def environment() -> jinja2.Environment:
    """Return the templates, each compiled when it is first asked for."""
    files = static_files()
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        auto_reload=False,
        cache_size=-1,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update({**FILTERS, **orders.FILTERS, **timeline.FILTERS})
    made.globals["static"] = lambda name: files[name].address
    return made


class Renderer:
    """The thread that fills the templates in."""

    def __init__(self) -> None:
        self.files = {file.address.removeprefix(STATIC): file for file in static_files().values()}
        """The static files by the last part of their addresses."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="page")

    def text(self, template: str, values: Mapping[str, Any]) -> str:
        """Return a template, filled in; on the event loop's thread only what is short."""
        return environment().get_template(template).render(values)

    async def page(
        self, template: str, make: Callable[[], Mapping[str, Any]], status: int = 200
    ) -> Response:
        """Return an answer; on the page's thread `make` returns what its template needs."""
        text = await self.on_thread(lambda: self.text(template, make()))
        return Response(text, status_code=status, headers=HEADERS, media_type="text/html")

    async def on_thread(self, make: Callable[[], T]) -> T:
        """Call a function of immutable values on the page's thread, and return its result."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, make)

    async def compile(self, real: Clock) -> None:
        """Compile every template, one by one: a page that is asked for meanwhile goes between.

        All together take a quarter of a second, which a service that starts does not have.
        """
        for name in environment().list_templates():
            await real.wait(COMPILE_GAP_SECONDS)
            await self.on_thread(functools.partial(environment().get_template, name))

    def close(self) -> None:
        """End the thread after what it is at."""
        self._thread.shutdown(wait=False, cancel_futures=True)


# Times and spans as the page writes them: what templates use as filters.


def clock(moment: datetime) -> str:
    """Return `14:05:09`."""
    return f"{moment.astimezone(UTC):%H:%M:%S}"


def instant(moment: datetime) -> str:
    """Return `2026-03-01T14:05:09Z`, for attributes and for people who copy it."""
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def moment_of(moment: datetime, now: datetime) -> str:
    """Return `14:05:09` today, `11-21 14:05:09` in this year, and else all of it."""
    moment, now = moment.astimezone(UTC), now.astimezone(UTC)
    if moment.date() == now.date():
        return clock(moment)
    return f"{moment:%m-%d %H:%M:%S}" if moment.year == now.year else instant(moment)


def seconds(count: float) -> timedelta:
    """Return a number of seconds as a span."""
    return timedelta(seconds=count)


def millis(moment: datetime) -> int:
    """Return a time as scripts have it: in milliseconds since 1970."""
    return round(moment.timestamp() * 1000)


def countdown(left: timedelta) -> str:
    """Return `1:05`, or `1:00:05` from an hour on; `0:00` once it is over."""
    seconds = max(0, round(left.total_seconds()))
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def span(length: timedelta) -> str:
    """Return `40 s`, `12 min`, `1 h 30 m` or `3 d 4 h`: two units at most."""
    seconds = max(0, round(length.total_seconds()))
    if seconds < 60:
        return f"{seconds} s"
    minutes = seconds // 60
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes:02} m"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h"


FILTERS: Final = MappingProxyType(
    {
        each.__name__: each
        for each in (times.brief, clock, instant, moment_of, seconds, millis, countdown, span)
    }
)
"""By the names that templates call them."""

"""The rooms below, as handlers reach them; and what handlers share: pages of lists, times."""

import asyncio
import base64
import itertools
import re
from collections.abc import Awaitable, Callable, Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Final, Self, TypeVar

import msgspec
from prometheus_client.registry import Collector

from forewarn import times
from forewarn.clock import Clock
from forewarn.connectors.port import Connector
from forewarn.control.accounts import OperatorRequest
from forewarn.control.changefeed import NewsTail
from forewarn.control.control_plane import ControlPlane
from forewarn.control.heartbeat import Heartbeat
from forewarn.control.host_drains import HostDrains
from forewarn.control.maintenances import Checks, Maintenances
from forewarn.control.plane import Plane
from forewarn.control.relay_watch import RelayWatch
from forewarn.control.replicas import Replicas
from forewarn.control.service_clock import ServiceClock
from forewarn.maintenance import alerts, fleet_file, model
from forewarn.maintenance.accounts import Deed
from forewarn.maintenance.host_plan import HostSurvey
from forewarn.maintenance.model import Changes, Refused
from forewarn.maintenance.world import LiveState
from forewarn.server.guest.plane import GuestPlane
from forewarn.server.operator import auth, schemas, table, views
from forewarn.server.operator.auth import Accounts
from forewarn.server.operator.inventory import Inventory, MachineSearch
from forewarn.server.operator.webhook_requests import Sender
from forewarn.server.settings import Settings
from forewarn.store.port import EPOCH, MICROSECOND, Page, Place, StoreError, micros
from forewarn.store.queries import Reading
from forewarn.store.sql import Store
from forewarn.vocabulary import AccessRole, ErrorCode, EventStatus

T = TypeVar("T")

MAX_FLEET_BODY: Final = 64 * 1024 * 1024
"""The most bytes of a fleet: 200,000 machines with most of their fields."""

MAX_OBJECTS: Final = 4 * fleet_file.MAX_MACHINES + 1
"""The most opening braces of a fleet: a cloud service, a role, an instance and its tags for each
machine. A body of the smallest entries would take many times its size in memory."""

MAX_FLAT: Final = 1024 * 1024
"""The most bytes of a fleet without an opening brace: many times what a machine's fields have. No
other thread runs while so much is decoded."""

MAX_CURSOR: Final = 1400
"""The most characters of a cursor: that of a host, whose name may have 256 of four bytes each."""

STORE_SECONDS: Final = 2.0
"""The timeout of the store for alerts and scrapes: scrapers wait ten seconds for the whole."""

READERS: Final = 4
"""The most questions of operators that wait for the store at once: one that hangs keeps a thread
for a minute."""

WORKERS: Final = 2
"""The most answers that are made at once beside the loop: each thread keeps the interpreter from
guests for a while. What the service does for itself, such as its heartbeat, has other threads."""

MAX_FAILURES: Final = 1000
"""The most failures without an acknowledgement that are looked at, latest first."""


NUMBERS: Final = {
    "maintenances": re.compile(r"[0-9]{1,15}"),
    "audit": re.compile(r"[0-9]{1,15}"),
    "operations": re.compile(r"[0-9]{1,17}\.[0-9]{1,18}"),
}
"""The keys of lists that are not in the order of names."""

MAX_LISTED: Final = 20
"""The most references or names in the audit log's detail."""

Limit = Annotated[int, msgspec.Meta(ge=1, le=schemas.MAX_LIMIT)]
Name = Annotated[str, msgspec.Meta(max_length=256)]
Names = Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=schemas.MAX_REMOVED)]


# What a handler is given.


class ServiceState(msgspec.Struct, frozen=True, kw_only=True):
    """The readiness of the service: the reasons why it cannot do all its work."""

    reasons: tuple[str, ...]
    """For people; empty when all is well."""
    store_up: bool
    """True if a write was just committed."""


@dataclass(eq=False, repr=False, kw_only=True)
class Backend:
    """The rooms below, as the handlers reach them, and the memory that handlers share."""

    settings: Settings
    plane: Plane
    store: Store
    clock: ServiceClock
    real: Clock
    """The machine's own, by which the store is waited for."""
    guests: GuestPlane
    """Knows the machines, what they read, and what it counted."""
    heartbeat: Heartbeat
    """Knows whether the store can be written."""
    replicas: Replicas
    """Knows the processes that share the store, and what these saw of machines."""
    readiness: Callable[[], Awaitable[ServiceState]]
    """Writes something, and finds out what is missing."""
    tasks: Callable[[], int]
    """Returns how many tasks are being carried out."""
    hosts: HostDrains
    """Looks at the hosts, and knows their drains."""
    maintenances: Maintenances
    """Knows the maintenances that are open."""
    collectors: list[Collector] = field(default_factory=list)
    """The counters of all rooms, for Prometheus."""
    page_url: str | None = None
    """Where browsers reach the page, once it is open; None where there is none."""
    sender: Sender | None = None
    """Sends requests to webhooks; None where nobody does."""
    relays: RelayWatch | None = None
    """Knows the relays of hosts; None where they do not reach this process."""
    relay_waiters: Callable[[], int] = int
    """Returns how many requests of relays wait."""
    observed: Callable[[], Iterable[alerts.Alert]] = tuple
    """Returns the alerts that follow from observations of hosts."""
    inventory: Inventory = field(init=False)
    news: NewsTail = field(init=False)
    """The latest news."""
    accounts: Accounts = field(default_factory=Accounts)
    """The operators' tokens."""
    search: MachineSearch = field(init=False)
    whole: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held to export the whole fleet, or for a plan that changes nothing, one at a time: each keeps
    the interpreter from the loop, or the writer from guests, and viewers may ask for any number."""

    @classmethod
    def over(
        cls,
        control: ControlPlane,
        *,
        settings: Settings,
        guests: GuestPlane,
        connector: Connector,
        checks: Checks,
        drains: type[HostDrains] = HostDrains,
        **more: Any,  # noqa: ANN401 - its fields that this does not make
    ) -> Self:
        """Return the backend of a process with this control plane."""
        back = settings.rules.policy.host_back
        hosts = drains(control.plane, connector, control.clock, guests.machines.values, back)
        maintenances = Maintenances(
            control.plane,
            control.clock,
            hosts.survey,
            checks,
            replica=control.replicas.own.name,
            scale=settings.clock.scale,
        )
        return cls(
            settings=settings,
            plane=control.plane,
            store=control.store,
            clock=control.clock,
            real=control.real,
            guests=guests,
            heartbeat=control.heartbeat,
            replicas=control.replicas,
            hosts=hosts,
            maintenances=maintenances,
            **more,
        )

    def __post_init__(self) -> None:
        """Make what follows from these."""
        self.inventory = Inventory(self.guests.machines, self.replicas.sightings)
        self.news = NewsTail(self.read, self.real)
        self.search = MachineSearch(self.beside)
        self._readers = ThreadPoolExecutor(READERS, "operators-read")
        self._workers = ThreadPoolExecutor(WORKERS, "operators")

    def close(self) -> None:
        """End its threads, each after what it is at."""
        for threads in (self._readers, self._workers):
            threads.shutdown(wait=False, cancel_futures=True)

    def learn(self, changes: Changes) -> None:
        """Take over what changed, after the guest plane."""
        self.inventory.learn(changes)
        self.accounts.learn(changes)

    def live_state(self) -> LiveState:
        """Return the live state that this process keeps, as it is now, for another thread."""
        inventory = self.inventory.snapshot()
        return LiveState(
            inventory.scopes,
            inventory.machines,
            inventory.operations,
            dict(self.maintenances.open),
            inventory.holds,
            dict(self.hosts.drains),
            dict(self.accounts.tokens),
        )

    def now(self) -> datetime:
        """Return the service's time."""
        return self.clock.now()

    async def done(self, future: "Future[T]") -> T:
        """Await a change; it is made even if the client goes away meanwhile."""
        try:
            return await asyncio.shield(asyncio.wrap_future(future))
        finally:
            # A refusal's traceback leads to this frame: without the circle through the future,
            # memory is free at once of the fleet that was refused.
            del future

    async def read(self, question: Callable[[Reading], T]) -> T:
        """Ask the store, on another thread, at one instant."""

        def ask() -> T:
            with self.store.read() as reading:
                return question(reading)

        return await asyncio.get_running_loop().run_in_executor(self._readers, ask)

    @property
    def drains(self) -> bool:
        """True if hosts are being drained, or are going to be."""
        going = any(drain.goes_on for drain in self.hosts.drains.values())
        return going or any(one.draining for one in self.maintenances.open.values())

    async def survey(self, *, dry_run: bool) -> HostSurvey:
        """Look at all hosts; a dry run shares its look with others, and it may be a little old."""
        return await (self.hosts.recent_survey() if dry_run else self.hosts.survey())

    async def beside(self, make: Callable[..., T], *given: Any) -> T:  # noqa: ANN401 - its own
        """Call a function of immutable values on another thread, and return its result."""
        return await asyncio.get_running_loop().run_in_executor(self._workers, make, *given)

    def ask_for_alerts(self, now: datetime) -> Callable[..., list[alerts.Alert]]:
        """Return a function that finds alerts from a reading, or from None, on another thread."""
        down = self.heartbeat.store_down
        live = tuple(self.inventory.operations.values())
        drains = self.hosts.drains.values()
        opened = tuple(self.maintenances.open.values())
        observed = (*self.observed(), *alerts.of_drains(drains, now))

        def question(
            reading: Reading | None, down: alerts.Alert | None = down
        ) -> list[alerts.Alert]:
            return alerts.items(
                {
                    **(reading.unacknowledged_failures(MAX_FAILURES) if reading else {}),
                    **{operation.id: operation for operation in live},
                }.values(),
                opened,
                reading.holds() if reading else (),
                {
                    operation.id: views.audience(operation, self.inventory, now)
                    for operation in live
                    if operation.status is EventStatus.SCHEDULED and not operation.silent
                },
                now,
                up_since=self.replicas.own.started_at,
                observed=(*observed, down) if down else observed,
            )

        return question

    async def alerts(self, now: datetime) -> list[alerts.Alert]:
        """Return the alerts; if the store cannot be read, only those that memory knows."""
        question = self.ask_for_alerts(now)
        try:
            async with asyncio.timeout(STORE_SECONDS):
                return await self.read(question)
        except (StoreError, TimeoutError) as error:
            said = str(error) or f"it did not answer within {STORE_SECONDS:.0f} s"
            down = self.heartbeat.store_down or alerts.store_down(said, now)
            message = f"{down.message}; alerts of failures, holds and pauses are missing here"
            down = msgspec.structs.replace(down, message=message)
            return await self.beside(question, None, down)


@dataclass(frozen=True, eq=False, repr=False)
class OperatorCall:
    """A request that may change something: its caller, and the rooms below."""

    backend: Backend
    caller: OperatorRequest

    @property
    def by(self) -> str:
        """The caller's name."""
        return self.caller.by

    def is_valid(self) -> bool:
        """Tell whether its token is still valid."""
        return self.backend.accounts.admits(self.caller.token, self.backend.now())

    def changing(
        self,
        deed: Deed,
        detail: str | Collection[str] = "",
        told: Callable[[Any], str] = lambda _: "",
        *,
        more: str = "",
        needs: AccessRole = AccessRole.OPERATOR,
    ) -> Plane:
        """Return the plane for what this request changes, so that the audit log has it.

        The record tells the detail or names, with `more` behind them, or what `told` makes of what
        the change came to. A role below the one that it needs is refused (FORBIDDEN): routes with a
        dry run let viewers in.
        """
        named = detail if isinstance(detail, str) else model.listed(detail, MAX_LISTED)
        self.caller.deed, self.caller.detail = deed, named + more
        auth.require(self.caller, needs)
        return self.backend.plane.audited(self.caller, told)


def decoded_fleet(body: bytes) -> fleet_file.Fleet:
    """Return the fleet of a body; on a thread of its own, as this takes seconds.

    A body with too many objects, or too long a one, is refused (LIMIT).
    """
    objects = sum(body.count(b"{", at, at + MAX_FLAT) for at in range(0, len(body), MAX_FLAT))
    if objects > MAX_OBJECTS:
        message = f"the body has {objects} objects, at most {MAX_OBJECTS} allowed"
        raise Refused(ErrorCode.LIMIT, message, objects=objects, most=MAX_OBJECTS)
    at = 0
    while at + MAX_FLAT < len(body):
        brace = body.rfind(b"{", at + 1, at + MAX_FLAT)
        if brace < 0:
            message = f"an object of the body, at byte {at}, is longer than {MAX_FLAT} bytes"
            raise Refused(ErrorCode.LIMIT, message, at=at, most=MAX_FLAT)
        at = brace
    return table.decoded(body, fleet_file.Fleet)


def one_line(text: str, where: str) -> str:
    """Return a text if it is one printable line; else it is refused as INVALID."""
    if not text.isprintable():
        message = f"at {where}: {text[:80]!r} has unprintable characters"
        raise Refused(ErrorCode.INVALID, message, where=where)
    return text


def check_span(since: datetime | None, until: datetime | None) -> None:
    """Refuse two times (INVALID) between which nothing can be."""
    if since is not None and until is not None and until <= since:
        message = f"at until: expected a time after {times.shown(since)}, the since of the request"
        raise Refused(ErrorCode.INVALID, message, where="until")


def page(
    kind: str, entries: Iterable[T], limit: int, key: Callable[[T], str]
) -> tuple[list[T], str]:
    """Return the first entries, and the cursor of the page after them; `""` after the last.

    A cursor carries the kind of list, so that another list's is refused, and the key of the page's
    last entry, so that pages neither repeat nor skip an entry while others come and go.
    """
    found = list(itertools.islice(entries, limit + 1))
    if len(found) <= limit:
        return found, ""
    return found[:limit], _cursor(kind, key(found[limit - 1]))


def history_cursor(page: Page) -> str:
    """Return the cursor of the page of operations after this one; `""` after the last."""
    if page.next is None:
        return ""
    announced, sequence = page.next
    return _cursor("operations", f"{micros(announced)}.{sequence}")


def place_before(cursor: str) -> Place | None:
    """Return the place after which a page of operations begins, as `key_before` does a key."""
    announced, _, sequence = key_before("operations", cursor).partition(".")
    return (EPOCH + int(announced) * MICROSECOND, int(sequence)) if announced else None


def _cursor(kind: str, key: str) -> str:
    return base64.urlsafe_b64encode(f"{kind}/{key}".encode()).decode().rstrip("=")


def key_before(kind: str, cursor: str) -> str:
    """Return the key after which the page of a cursor begins; `""` for the first page.

    Raises:
        Refused: INVALID: `page` made no such cursor for this kind of list.
    """
    if not cursor:
        return ""
    try:
        padded = cursor[:MAX_CURSOR] + "=" * (-len(cursor) % 4)
        plain = base64.b64decode(padded, altchars=b"-_", validate=True).decode()
    except ValueError:
        plain = ""
    written, _, name = plain.partition("/")
    is_key = name and (kind not in NUMBERS or NUMBERS[kind].fullmatch(name))
    if len(cursor) > MAX_CURSOR or written != kind or not is_key:
        message = (
            f"invalid cursor {cursor[:80]!r}: expected the one that came with the page of {kind} "
            "before, or none for the first page"
        )
        raise Refused(ErrorCode.INVALID, message, cursor=cursor[:80])
    return name

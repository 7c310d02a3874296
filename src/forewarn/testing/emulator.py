"""The emulator: Scheduled Events on a loopback port, with a clock that a test moves.

    with Emulator() as emulator:
        machine = emulator.machine("web-0")
        event = emulator.schedule("Reboot", "web-0")
        ...                              # your handler reads, drains and approves
        emulator.until_idle()
        assert event.approved_by == "web-0"

The wire, the rules and the guest plane are the service's own, on one background thread. Any thread
may call an emulator, also one in which an event loop runs: no call but `replay` and those that
begin with `until` waits for anything but that thread.
"""

import asyncio
import functools
import math
import operator
import os
import selectors
import socket
import threading
import tomllib
import weakref
from collections.abc import Callable, Coroutine, Mapping
from concurrent import futures
from concurrent.futures import Future
from datetime import datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, TypeVar
from urllib.parse import urlsplit

import msgspec

from forewarn import clock, times
from forewarn.maintenance import fleet_file, planner
from forewarn.maintenance.model import Operation, OperationEvent, Refused, key
from forewarn.server import settings
from forewarn.settings import explain, prepare_types
from forewarn.store.port import EPOCH
from forewarn.store.sqlite import InMemoryStore
from forewarn.testing import faults, record
from forewarn.testing.emulated_service import EmulatedService
from forewarn.testing.faults import Concerns
from forewarn.testing.wire import Exchange
from forewarn.vocabulary import ErrorCode

if TYPE_CHECKING:
    from forewarn.testing.operators import Operators

T = TypeVar("T")

Span: TypeAlias = timedelta | float | str
"""A `timedelta`, seconds, or a text such as `90s`, `15m` or `1h30m`."""

LOOK_SECONDS: Final = 0.05
"""The longest pause between two looks at a condition, which may be about anything else."""

SECOND: Final = timedelta(seconds=1)

IDLE_SECONDS: Final = 10.0
"""The time limit of `until_idle` and `until`, in real seconds: ten polls of a usual handler."""

CLOSE_SECONDS: Final = 30.0
"""The longest wait of the end for the thread, which only closes sockets then."""

DEFAULT: Final = "127.0.0.1"

_RUNNING: "weakref.WeakSet[Emulator]" = weakref.WeakSet()
"""The emulators of this process, which a process that is forked leaves to its parent."""


class NotIdle(TimeoutError):  # noqa: N818 - what it is not
    """A condition was not met in time; the message says which."""


class EmulatedMachine(msgspec.Struct, frozen=True):
    """A machine, and the endpoint for its handler."""

    name: str
    endpoint: str
    """The URL before `/metadata/...`."""

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which clients ask here: Forewarn's, its agent's, and curl's proxies."""
        own = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
        direct = ",".join(filter(None, (own, urlsplit(self.endpoint).hostname)))
        return {"FOREWARN_ENDPOINT": self.endpoint, "NO_PROXY": direct, "no_proxy": direct}


class EmulatedApproval(msgspec.Struct, frozen=True):
    """The first approval of an event."""

    event_id: str
    by: str
    """The machine, or the operator who approved on its behalf."""
    at: datetime


class EmulatedEvent:
    """An event; its properties are always current."""

    def __init__(self, emulator: "Emulator", operation: str, event_id: str) -> None:
        self._emulator = emulator
        self.operation = operation
        """The operation that it belongs to, such as `1.1`."""
        self.event_id = event_id

    def __repr__(self) -> str:
        """Return its type, its machines and its status."""
        return f"<{self.event_type} of {', '.join(self.machines)}: {self.status}>"

    def __eq__(self, other: object) -> bool:
        """Return True for the same event of the same emulator."""
        if not isinstance(other, EmulatedEvent):
            return NotImplemented
        return self.event_id == other.event_id and self._emulator is other._emulator

    def __hash__(self) -> int:
        """Return the hash of an event, of whatever status."""
        return hash(self.event_id)

    @property
    def event_type(self) -> str:
        """`Freeze`, `Reboot`, `Redeploy`, `Preempt` or `Terminate`."""
        return self._now().event_type.value

    @property
    def status(self) -> str:
        """Its status.

        `Scheduled`, `Started`, `Completed`, `Failed` or `Canceled`; `Queued` before guests see it,
        and `Returning` while they still read Started, until their machines have asked again.
        """
        return self._now().status.value

    @property
    def machines(self) -> tuple[str, ...]:
        """The machines that it affects, in the order of `Resources`."""
        return self._event().machines

    @property
    def not_before(self) -> datetime:
        """The time at which it starts without an approval."""
        return self._now().not_before

    @property
    def approved_by(self) -> str:
        """The machine that approved it first; `""` while none has."""
        approval = self._event().approval
        return "" if approval is None else approval.by

    @property
    def start_cause(self) -> str:
        """Why it started: `approved`, `notice-over` or `no-notice`; `""` while it has not."""
        cause = self._now().start_cause
        return "" if cause is None else cause.value

    @property
    def outcome(self) -> str:
        """The message of its end; `""` for none."""
        return self._now().outcome

    def _now(self) -> Operation:
        found = self._emulator.read(lambda service: service.operation(self.operation))
        assert found is not None  # nothing is ever forgotten here
        return found

    def _event(self) -> OperationEvent:
        return next(event for event in self._now().events if event.id == self.event_id)


class Emulator:
    """Scheduled Events for tests; a context manager.

    Args:
        rules: Settings of `[rules]`, such as `{"preset": "azure"}`.
        port: The port on 127.0.0.1; 0 is any free one.
        beginning: The clock's first time, with its zone; None for the time of day.
    """

    def __init__(
        self,
        *,
        rules: Mapping[str, object] | None = None,
        port: int = 0,
        beginning: datetime | None = None,
    ) -> None:
        if beginning is not None and beginning.tzinfo is None:
            message = f"invalid beginning={beginning}: expected a time zone, such as tzinfo=UTC"
            raise ValueError(message)
        given = dict(rules or {})
        preset = settings.AZURE if given.get("preset") == "azure" else {}
        try:
            self._rules = msgspec.convert({**preset, **given}, settings.RulesSettings)
        except msgspec.ValidationError as error:
            raise ValueError(f"rules: {explain(error, settings.RulesSettings)}") from error
        self._port = port
        self._beginning = beginning
        self._news = threading.Condition()
        self._changes = 0
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        """Is held while a call, or the order to stop, is handed to the thread."""
        self._is_open = False
        """True while the thread takes calls; written with the lock in hand."""
        self._is_over = False
        """True once it was stopped, perhaps while the thread begins; written with the lock, too."""
        self._loop: asyncio.AbstractEventLoop
        self._sockets: selectors.BaseSelector
        self._service: EmulatedService
        self._machines: dict[str, EmulatedMachine] = {}
        self._operators: Operators | None = None

    # Beginning and end.

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop."""
        self.stop()

    def start(self) -> None:
        """Open the port; once."""
        if self._thread is not None:
            raise RuntimeError("an emulator can be started only once: make another")
        prepare_types()
        ready: Future[int] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(ready,), name="forewarn-emulator", daemon=True
        )
        try:
            self._thread.start()
            self._port = ready.result()
        except BaseException:  # its own, or a KeyboardInterrupt of this thread
            self.stop()
            raise

    def stop(self) -> None:
        """Close the port and every connection, and end the thread.

        Any number of threads may do so: each returns when all is closed. Calls that wait in others
        are refused.
        """
        with self._lock:
            self._is_over = True
            if self._is_open:
                self._is_open = False
                self._loop.call_soon_threadsafe(self._loop.stop)
        self._tell()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(CLOSE_SECONDS)

    def open_operators(self, port: int = 0) -> str:
        """Open the operator plane on a port of its own, and return its URL; once.

        It is the service's API, for `forewarn`'s commands and tests in other languages, with the
        requests that move the clock. It needs the extra `server`.
        """
        from forewarn.testing import operators  # noqa: PLC0415 - it takes half a second to load

        async def open_port() -> str:
            self._operators = operators.Operators(self._service, self.until_asked, port)
            return self._operators.open_port()

        return self._call(open_port())

    def _run(self, ready: "Future[int]") -> None:
        self._sockets = selectors.DefaultSelector()
        loop = self._loop = asyncio.SelectorEventLoop(self._sockets)
        store = InMemoryStore()
        _RUNNING.add(self)
        try:
            try:
                beginning = self._beginning or clock.SystemClock().now()
                # In UTC, whose days have no jumps, and no library's own kind of datetime.
                beginning = EPOCH + (beginning - EPOCH) // SECOND * SECOND
                self._service = EmulatedService(
                    self._rules, beginning, store, loop.run_until_complete, self._tell
                )
                port = loop.run_until_complete(self._service.open(self._port))
            except BaseException as error:  # noqa: BLE001 - the caller of `start` gets it
                ready.set_exception(error)
                return
            with self._lock:
                self._is_open = not self._is_over
            ready.set_result(port)
            if self._is_open:
                loop.run_forever()
            if self._operators is not None:
                loop.run_until_complete(self._operators.end())
            loop.run_until_complete(self._service.close())
        finally:
            with self._lock:
                self._is_open = False
            loop.run_until_complete(asyncio.sleep(0))  # the last calls become tasks
            for task in asyncio.all_tasks(loop):
                task.cancel()
                loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
            store.discard()  # only now: a task that asks would open another, and an empty one
            _RUNNING.discard(self)
            loop.close()

    def leave_to_parent(self) -> None:
        """Drop the parent's sockets in a process that was forked, and refuse calls there.

        As long as one process has a connection it is open, though another has closed it.
        """
        self._is_open, self._lock, self._news = False, threading.Lock(), threading.Condition()
        nothing = os.open(os.devnull, os.O_RDWR)
        for known in [*self._sockets.get_map().values()]:
            os.dup2(nothing, known.fd, inheritable=False)  # its owner closes the number later
        os.close(nothing)

    # The fleet.

    def machine(self, name: str, **fields: object) -> EmulatedMachine:
        """Add a machine in its own scope, with the fields of a `[[machine]]` of the fleet file."""
        self.fleet({"machine": [{"name": name, **fields}]})
        return self._machines[key(name)]

    def fleet(self, definition: Mapping[str, object] | Path | str) -> tuple[EmulatedMachine, ...]:
        """Add machines as a fleet file defines them, in its order, and return all that there are.

        Args:
            definition: TOML text, the path of a file, or a mapping such as parsed TOML.

        Raises:
            Refused: It is not a fleet; the fact `where` is the place in it.
        """
        if isinstance(definition, Path):
            definition = definition.read_text(encoding="utf-8-sig")
        if isinstance(definition, str):
            definition = tomllib.loads(definition)
        try:
            wanted = msgspec.convert(definition, fleet_file.Fleet)
        except msgspec.ValidationError as error:
            mistake = explain(error, fleet_file.Fleet)
            message = f"at {mistake.where}: {mistake.what}" if mistake.where else mistake.what
            raise Refused(ErrorCode.INVALID, message, where=mistake.where) from error

        def add(service: EmulatedService) -> list[str]:
            applied = service.ask(lambda plane: plane.apply_fleet(wanted))
            others = service.look(lambda reading: reading.machines())  # an operator's too
            names = [machine.name for machine in (*applied.placed, *others.values())]
            default = service.wire.default_machine
            service.wire.default_machine = default or key(next(iter(names), ""))
            return names

        for name in self._change(add):
            endpoint = f"{self.endpoint}/vm/{name}"
            self._machines.setdefault(key(name), EmulatedMachine(name, endpoint))
        return tuple(self._machines.values())

    @property
    def endpoint(self) -> str:
        """The URL before `/metadata/...` of the machine that was added first."""
        return f"http://{DEFAULT}:{self._port}"

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which clients ask as the machine that was added first."""
        return EmulatedMachine("", self.endpoint).environment

    def default(self, machine: EmulatedMachine) -> None:
        """Treat requests whose path names no machine as this one's; at first, the first one's."""

        def choose(service: EmulatedService) -> None:
            service.wire.default_machine = key(machine.name)

        self.read(choose)

    def listen(self, opened: socket.socket, *, forward_to: int | None = None) -> None:
        """Serve the connections to one more listening socket, such as a network namespace's.

        Args:
            opened: The emulator closes it.
            forward_to: A port of 127.0.0.1 to which connections are forwarded instead.
        """
        service = self._service
        self._call(
            service.listen(opened) if forward_to is None else service.forward(opened, forward_to)
        )

    def on_request(self, observe: Callable[[Exchange], None]) -> None:
        """Call `observe`, on the emulator's thread, with each request before it is answered.

        It has the request alone: a call of the emulator would wait for that thread, and is refused.
        The next call that changes the emulator raises its first error.
        """
        self.read(lambda service: service.observe(observe))

    # Maintenance.

    def schedule(
        self,
        event_type: str,
        *machines: str,
        notice: Span | None = None,
        scope: str = "",
        host: str = "",
        source: str = "Platform",
        description: str | None = None,
        duration_seconds: int = -1,
        no_notice: bool = False,
    ) -> EmulatedEvent:
        """Announce maintenance of machines, of a scope or of a host.

        Args:
            event_type: `Freeze`, `Reboot`, `Redeploy`, `Preempt` or `Terminate`.
            *machines: Their names.
            notice: The time until NotBefore; None for the least that the type has.
            scope: All machines of an availability set, a scale set or a cloud service.
            host: All machines on it.
            source: `Platform` or `User`.
            description: The text for guests; None for the usual one.
            duration_seconds: The expected interruption for guests; -1 is unknown.
            no_notice: True if it has happened already: the event is Started at once.

        Returns:
            Its first event: of several scopes or update domains each has its own in `history`.

        Raises:
            Refused: The rules do not allow it, for example too short a notice.
        """
        given = {
            "event_type": event_type,
            "source": source,
            "machines": machines,
            "scope": scope,
            "host": host,
            "description": description,
            "duration_seconds": duration_seconds,
            "no_notice": no_notice,
            "requested_by": "emulator",
        }
        try:
            asked = msgspec.convert(given, planner.Request)
        except msgspec.ValidationError as error:
            raise ValueError(str(explain(error, planner.Request))) from error

        def request(service: EmulatedService) -> tuple[str, str]:
            at = None if notice is None else service.clock.now() + span(notice)
            wanted = msgspec.structs.replace(asked, not_before=at)
            first = service.ask(lambda plane: plane.request(wanted)).operations[0]
            return first.id, first.events[0].id

        return EmulatedEvent(self, *self._change(request))

    def finish(self, event: EmulatedEvent | None = None) -> None:
        """Complete a started event after its usual duration; None for all that have started.

        The clock moves on by the rest of it. Then the event is gone as soon as its machines have
        asked again, if they ever asked.

        Raises:
            Refused: Nothing has started.
        """
        self._change(lambda service: service.finish(_operation_of(event)))

    def fail(self, event: EmulatedEvent | None = None, reason: str = "it failed") -> None:
        """Fail a started event now; None for all that have started.

        Raises:
            Refused: Nothing has started.
        """
        self._change(lambda service: service.fail(_operation_of(event), reason))

    def cancel(self, event: EmulatedEvent | None = None, reason: str = "canceled") -> None:
        """Cancel a Scheduled event; None for all of them.

        Raises:
            Refused: It has started, or is over.
        """

        def cancel(service: EmulatedService) -> None:
            names = [_operation_of(event)] if event else [o.id for o in service.live() if o.pending]
            for name in names:
                service.ask(operator.methodcaller("cancel", [name], reason=reason))

        self._change(cancel)

    # Time.

    @property
    def now(self) -> datetime:
        """The clock's time."""
        return self.read(lambda service: service.clock.now())

    def advance(self, by: Span) -> None:
        """Advance the clock.

        When this returns, everything that is due by then has happened, documents show it, and
        waiting requests are answered.
        """
        length = span(by)

        async def advance() -> None:
            self._service.follow_up()
            self._service.run_until(self._service.elapsed + length)
            await self._service.settle()

        self._call(advance())

    def end_waits(self) -> None:
        """Answer requests that wait for a change now, as at the end of their wait.

        A wait is in real time, so `advance` does not end it.
        """
        self._change(lambda service: service.end_waits())

    def until_idle(self, seconds: float = IDLE_SECONDS) -> None:
        """Wait for handlers until no maintenance is left.

        Handlers read and approve in real time. Started events are carried out at once: the clock
        moves on by as long as they take, and never only because a notice is to pass. An event is
        over when its machines have asked again.

        Args:
            seconds: The longest wait for handlers, in real time.

        Raises:
            NotIdle: The rest waits for a handler; the message says for what.
        """
        self._wait(lambda: self._change(lambda service: service.work_off()), seconds)

    def replay(self, file: Path | str, seconds: float = IDLE_SECONDS) -> None:
        """Replay each document of a file of `forewarn record`, in its time and to the byte.

        Its machine is added. The next document follows when handlers have read the one before
        twice: a handler may ask again before it believes that an event is gone.

        Args:
            file: The recording.
            seconds: The longest wait for the readers of each document, in real time.

        Raises:
            ValueError: It is not a recording.
            NotIdle: Nobody reads a document in time.
        """
        path = Path(file)
        name, answers = record.read(path.read_bytes())
        self.machine(name)
        began = self.now
        for number, answer in enumerate(answers, 1):
            at = began + EmulatedService.length(answer.after_seconds)
            self.advance(max(at - self.now, timedelta()))
            self._change(operator.methodcaller("replay", answer))
            self._wait(functools.partial(self._unread, number), seconds)

    def _unread(self, number: int) -> list[str]:
        count = self.read(lambda service: service.times_read)
        return [f"document {number} was read {count} times, not 2"] if count < 2 else []

    def until(self, condition: Callable[[], object], seconds: float = IDLE_SECONDS) -> None:
        """Wait for a condition; it is checked after each answer and each change, and every 50 ms.

        Args:
            condition: Is called in this thread.
            seconds: The longest wait, in real time.

        Raises:
            NotIdle: It does not hold in time.
        """
        waiting = ["the condition does not hold"]
        self._wait(lambda: [] if condition() else waiting, seconds, LOOK_SECONDS)

    def until_asked(self, machine: str, times: int = 2, seconds: float = IDLE_SECONDS) -> None:
        """Wait until a handler has asked for its events some more times, and has its answers.

        A handler that works in one thread asks again only when it has dealt with the answer before:
        after two answers from now on it has approved the present events, or never will. Answers
        that met a fault do not count.

        Args:
            machine: The name of the handler's machine.
            times: The number of answers to wait for.
            seconds: The longest wait, in real time.

        Raises:
            NotIdle: It does not ask so often in time.
            Refused: There is no such machine.
        """
        asking = key(msgspec.convert(machine, str))

        def answers(service: EmulatedService) -> dict[int, Exchange]:
            service.end_waits()
            return {
                id(each): each
                for each in service.wire.exchanges
                if each.concerns is Concerns.EVENTS
                and each.machine == asking
                and each.status in {HTTPStatus.OK, HTTPStatus.NOT_MODIFIED}
                and not each.fault
            }

        def begin(service: EmulatedService) -> dict[int, Exchange]:
            if asking not in service.guests.machines:
                message = f"no machine named {machine!r}"
                raise Refused(ErrorCode.NOT_FOUND, message, what="machine", name=machine)
            return answers(service)

        before = self.read(begin)

        def left() -> list[str]:
            new = len(self._change(answers).keys() - before.keys())
            said = f"{machine} has had {new} answers to requests for its events, not {times}"
            return [said] if new < times else []

        self._wait(left, seconds)

    def _wait(self, left: Callable[[], list[str]], seconds: float, every: float = math.inf) -> None:
        self._refuse_own_thread()
        until = clock.monotonic() + seconds
        while True:
            is_over = clock.monotonic() >= until
            seen = self._changes  # before the question: what comes meanwhile is news
            if not self._is_open:
                raise _not_running()
            if not (waiting := left()):
                return
            if is_over:
                if asyncio._get_running_loop():  # noqa: SLF001 - the one that is None without
                    waiting.append("the event loop of this thread stood still: use to_thread")
                raise NotIdle(f"after {seconds:g} s: {'; '.join(waiting)}")
            with self._news:
                longest = max(0.0, min(every, until - clock.monotonic()))
                self._news.wait_for(functools.partial(self._has_news, seen), longest)

    def _has_news(self, seen: int) -> bool:
        return self._changes != seen

    # What goes wrong on the way.

    def faults(self, name: str, *, seed: int = 0, **values: object) -> None:
        """Add faults for the requests to come, beside those that are still to come.

        Args:
            name: A playbook, such as `azure-bad-day`, or a kind of fault, such as `status`.
            seed: The seed of a playbook's chance.
            **values: Of a kind, fields of `Fault`, such as `status=503, times=3`; of a playbook
                only `machine`.

        Raises:
            ValueError: There is no such name or machine, or the values do not fit.
        """
        wanted = faults.named(name, seed=seed, **values)
        self._change(lambda service: service.wire.bring(wanted))

    def clear_faults(self) -> None:
        """Remove all faults; an UNREACHABLE that has begun lasts until its time is over."""
        self._change(lambda service: service.wire.faults.clear())

    # What there is to see.

    @property
    def approvals(self) -> list[EmulatedApproval]:
        """The first approval of each event, in their order."""
        found = self.read(lambda service: list(service.approved.items()))
        return [EmulatedApproval(each, first.by, first.at) for each, first in found]

    def events(self) -> list[EmulatedEvent]:
        """Return the events that guests see now."""
        return self._events(lambda its, event: its.status.visible and not event.silent)

    def history(self) -> list[EmulatedEvent]:
        """Return every event that there ever was, in the order of their maintenance."""
        return self._events(lambda *_: True)

    def _events(self, fits: Callable[[Operation, OperationEvent], bool]) -> list[EmulatedEvent]:
        return [
            EmulatedEvent(self, operation.id, event.id)
            for operation in self._operations()
            for event in operation.events
            if fits(operation, event)
        ]

    @property
    def requests(self) -> list[Exchange]:
        """Every request of handlers, and its answer, oldest first; also after the end."""
        if self._thread is not None and not self._thread.is_alive():
            return list(self._service.wire.exchanges)
        return self.read(lambda service: list(service.wire.exchanges))

    @property
    def warnings(self) -> list[str]:
        """Faults of handlers that Azure may refuse, each once; the fixture warns of them."""
        return list(dict.fromkeys(each.warning for each in self.requests if each.warning))

    def _operations(self) -> list[Operation]:
        return self.read(lambda service: service.operations())

    # The thread.

    def read(self, question: Callable[[EmulatedService], T]) -> T:
        """Return the service's answer to a question, on its own thread."""

        async def ask() -> T:
            return question(self._service)

        return self._call(ask())

    def _change(self, order: Callable[[EmulatedService], T]) -> T:
        __tracebackhide__ = True

        async def carry_out() -> T:
            self._service.follow_up()
            done = order(self._service)
            await self._service.settle()
            return done

        return self._call(carry_out())

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        __tracebackhide__ = True
        try:
            self._refuse_own_thread()
        except RuntimeError:
            coroutine.close()
            raise
        with self._lock:
            if not self._is_open:
                coroutine.close()
                raise _not_running()
            asked = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        futures.wait([asked])
        if asked.cancelled():
            raise _not_running()
        try:
            return asked.result()
        except Refused as refused:  # it is the test's: without the frames of ours
            if refused.facts.get("what") == "machine":
                name = refused.facts["name"]
                message = f"no machine named {name!r}: add it by Emulator.machine"
                raise Refused(refused.code, message, **refused.facts) from None
            raise refused.with_traceback(None) from None

    def _refuse_own_thread(self) -> None:
        """Refuse a call of an observer: it would wait for the thread that it holds up."""
        if threading.current_thread() is self._thread:
            message = "an observer of on_request has only its exchange: ask in the test's thread"
            raise RuntimeError(message)

    def _tell(self) -> None:
        with self._news:
            self._changes += 1
            self._news.notify_all()


def _not_running() -> Refused:
    message = "the emulator is not running in this process: use it in a 'with'"
    return Refused(ErrorCode.UNAVAILABLE, message)


def _operation_of(event: EmulatedEvent | None) -> str:
    return "" if event is None else event.operation


def span(length: Span) -> timedelta:
    """Read a span; ValueError for an invalid one, or one that would set the clock back."""
    read = times.span(length) if isinstance(length, str) else length
    return EmulatedService.length(read.total_seconds() if isinstance(read, timedelta) else read)


def _leave_to_parent() -> None:
    for emulator in [*_RUNNING]:
        emulator.leave_to_parent()
    _RUNNING.clear()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_leave_to_parent)

"""Runs a handler through scenarios, and judges it by its traffic and by its marks.

The handler is a black box in any language. In each scenario it is a process of its own with an
emulator of its own; all run at the same time. Nothing is judged by its duration, except that a
handler has to react at all: the absence of a reaction is judged after the handler has asked for its
events some more times. The verdicts are written as JUnit's XML for CI, too.
"""

import contextlib
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, TypeAlias
from xml.etree import ElementTree as ET

from forewarn import clock
from forewarn.client import transport
from forewarn.maintenance.model import Refused
from forewarn.protocol import codec, versions
from forewarn.testing import faults, handler_process, namespace
from forewarn.testing.emulator import EmulatedEvent, EmulatedMachine, Emulator
from forewarn.testing.handler_process import HandlerProcess
from forewarn.testing.wire import Exchange

PATIENCE_SECONDS: Final = 30.0
"""The time for a handler to react: thirty polls of one that polls once a second."""

LOOK_SECONDS: Final = 0.05

TICK: Final = timedelta(seconds=5)
"""The step of the clock between two looks, where it moves on."""

LONG_NOTICE: Final = "8h"
"""A notice that is longer than any handler's patience."""

MORE_POLLS: Final = 3
"""The number of further polls after which a handler counts as having done nothing."""

DRAINING_SECONDS: Final = 1.0
"""From the beginning of a drain to the kill: a handler that notes the event as dealt with beside
the drain has done so by then, also on a busy machine."""

BESIDE_SECONDS: Final = 3.0
"""The time for some polls beside a drain that waits."""

IDLE_SECONDS: Final = 3.0

MOST_A_SECOND: Final = 10.0
"""Polls a second: the original answers 429 above 5."""

ASK_SECONDS: Final = 10.0
"""For one answer of the emulator to `certify` itself."""

EVENTS: Final = "/metadata/scheduledevents"
ADDRESS: Final = f"http://{namespace.ADDRESS}"

MARKS: Final = frozenset({"drain", "drained", "undrain"})

NO_DRAIN: Final = (
    "no drain was seen: the drain must run {drain} or $FOREWARN_DRAIN, or append a line 'drain' "
    "to the file $FOREWARN_DRAIN_LOG"
)
NO_UNDRAIN: Final = (
    "no undrain after the event ended: the handler must then run {undrain} or "
    "$FOREWARN_UNDRAIN, or append a line 'undrain' to the file $FOREWARN_DRAIN_LOG"
)
FORGOT: Final = (
    "it was killed after its approval, as by the reboot, and has not gone back to work since: it "
    "must remember what it drained, or undrain when it starts"
)
AGAIN: Final = "it was killed after its approval, as by the reboot, and drained again afterwards"
INTERRUPTED: Final = "it was killed while it drained, and approved without draining again"
NO_WORK: Final = "no further undrain after the event and its drain ended"


class HandlerVerdict(StrEnum):
    """The verdicts on a scenario."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Result:
    """A scenario's verdict."""

    name: str
    about: str
    verdict: HandlerVerdict
    message: str = ""
    """The fault, in a sentence, or the reason for skipping it."""
    exchange: str = ""
    """The request and the answer that show it; `""` for none."""
    output: str = ""
    warning: str = ""
    """The part of the handler's requests that Azure may refuse, whatever the verdict; `""` for
    none."""
    seconds: float = 0.0


class Violation(Exception):  # noqa: N818 - what is said of the handler
    """The handler did something wrong."""

    def __init__(self, message: str, exchange: Exchange | None = None) -> None:
        super().__init__(message)
        self.exchange = exchange


class NotConcerned(Exception):  # noqa: N818 - what a scenario is
    """The scenario does not concern this handler."""


class Interrupted(Exception):  # noqa: N818 - what happened
    """The caller ends the scenarios."""


def real_time(_: Emulator) -> float:
    """Return the seconds of the monotonic clock."""
    return clock.monotonic()


PatienceClock: TypeAlias = Callable[[Emulator], float]
"""The clock, in seconds, by which a handler's patience is measured; tests count its requests."""


@dataclass(frozen=True)
class HandlerScenario:
    """A scenario: the events for a handler, and the reaction that is expected."""

    name: str
    about: str
    play: Callable[["HandlerRun"], None]
    fleet: str = '[[machine]]\nname = "web-0"\n'
    machine: str = "web-0"


@dataclass(frozen=True)
class Handler:
    """A handler's command, and its conditions."""

    command: tuple[str, ...]
    """The program and its arguments, with the placeholders of `handler_process.HandlerProcess`."""
    isolated: tuple[str, ...] = ()
    """The result of `handler_process.isolation`; `()` leaves it on the host's network."""
    ports: tuple[int, ...] = ()
    """The host's ports that an isolated handler reaches at 127.0.0.1."""
    patience_seconds: float = PATIENCE_SECONDS
    patience_clock: PatienceClock = real_time
    undrains: bool = True
    """True if it has something to undo; after a checkpoint, it has not."""


@dataclass
class HandlerRun:
    """A handler in a scenario."""

    emulator: Emulator
    handler: HandlerProcess
    machine: str
    tested: Handler
    is_ticking: bool = False
    """True if the clock moves on during waits, as delays need it."""
    stop: threading.Event = field(default_factory=threading.Event)
    """Once it is set, each wait raises `Interrupted`."""
    marks_at: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """The marks at the arrival of each approval, by its place among the exchanges."""

    # What happens.

    def start(self) -> None:
        """Start the handler, and wait until it asks for its events."""
        before = len(self.polls())
        inside = self.handler.start()
        for opened, port in zip(inside, (None, *self.handler.ports), strict=False):
            self.emulator.listen(opened, forward_to=port)
        instead = "it never asked for its events"
        if not inside and not before:
            instead = (
                "no request for events came to its FOREWARN_ENDPOINT; "
                f"if it has {namespace.ADDRESS} in it, use --namespace"
            )
        self.wait(lambda: len(self.polls()) > before, instead)

    def announce(
        self,
        event_type: str = "Reboot",
        *machines: str,
        **how: Any,  # noqa: ANN401 - as schedule's
    ) -> EmulatedEvent:
        """Announce an event of the handler's machine, or of others."""
        if not self.emulator.history():
            self.refuse_early_drain()
        named = machines or (() if how.get("scope") else (self.machine,))
        return self.emulator.schedule(event_type, *named, **how)

    def end(self, event: EmulatedEvent) -> None:
        """Start an event, carry it out and end it."""
        if event.status == "Scheduled":
            self.emulator.advance("15m")
        if event.status == "Started":
            self.emulator.finish(event)
        self.wait(
            lambda: event.status not in {"Started", "Returning"},
            "it did not ask for its events again after the maintenance",
        )
        self.more_polls(2)  # two looks in a row confirm that an event is over

    def end_without_handler(self, event: EmulatedEvent) -> None:
        """End an event that has started while another program asks for the events."""
        self.emulator.finish(event)
        url = f"{self.emulator.endpoint}{EVENTS}?api-version=2020-07-01"
        while event.status == "Returning":
            transport.request("GET", url, seconds=ASK_SECONDS, headers=[("Metadata", "true")])

    # What must follow.

    def refuse_early_drain(self) -> None:
        """Complain of a drain before any event."""
        if "drain" in self.handler.marks():
            raise Violation("it drained although no event was announced", self.last_exchange())

    def wait(self, condition: Callable[[], object], instead: str) -> None:
        """Wait for a condition; complain if it does not hold in time, or the handler ends."""
        now, patience = self.tested.patience_clock, self.tested.patience_seconds
        until = now(self.emulator) + patience
        while not condition():
            if (status := self.handler.status) is not None:
                raise Violation(f"it ended with {_ending(status)}", self.last_exchange())
            if now(self.emulator) > until:
                raise Violation(f"{instead} (within {patience:g} s)", self.last_exchange())
            if self.is_ticking:
                self.emulator.advance(TICK)
            self.pause(LOOK_SECONDS)

    def pause(self, seconds: float) -> None:
        """Wait in real time; raise `Interrupted` if the scenario has to end."""
        if self.stop.wait(seconds):
            raise Interrupted

    def more_polls(self, more: int = MORE_POLLS) -> None:
        """Wait until the handler has asked some more times, and has had its answers."""
        before = sum(1 for each in self.polls() if each.status)
        for count in range(before + 1, before + more + 1):  # patience is for one reaction
            answered = partial(self._answered_by, count)
            self.wait(answered, "it does not ask for its events any more")

    def _answered_by(self, awaited: int) -> bool:
        if sum(1 for each in self.polls() if each.status) >= awaited:
            return True
        self.emulator.end_waits()
        return False

    def polls_beside_its_drain(self) -> None:
        """Wait as long as a handler needs that may ask while its drain waits; others do not."""
        until = clock.monotonic() + BESIDE_SECONDS
        awaited = len(self.polls()) + MORE_POLLS
        while clock.monotonic() < until and not self._answered_by(awaited):
            self.pause(LOOK_SECONDS)

    def expect_drain(self, times: int = 1) -> None:
        """The handler has to drain."""
        instead = self._no_drain()
        if self.handler.marks():
            instead = f"it did not drain again: fewer than {times} lines 'drain' in its log"
        self.wait(lambda: self.handler.marks().count("drain") >= times, instead)

    def _no_drain(self) -> str:
        asked = self.polls()[-1].target
        version = next((each for each in versions.VERSIONS if each.name in asked), None)
        if version is None:
            return NO_DRAIN
        for event in self.emulator.events():
            if event.event_type not in version.event_types:
                return f"it asks by version {version.name}, which shows no {event.event_type}"
        if version.prefixed_names:
            return f"{NO_DRAIN}; version {version.name} writes '_' before the machine's name"
        return NO_DRAIN

    def expect_approval(self, event: EmulatedEvent) -> None:
        """The handler has to approve, after its drain has ended."""
        self.wait(lambda: event.approved_by, f"it did not approve the {event.event_type}")

    def expect_work(self, times: int = 1, instead: str = "") -> None:
        """The handler has to put its machine back to work, if it undrains at all."""

        def works() -> bool:
            marks = [each for each in self.handler.marks() if each in MARKS]
            return marks.count("undrain") >= times and marks[-1] == "undrain"

        if not instead:
            instead = NO_WORK if "undrain" in self.handler.marks() else NO_UNDRAIN
        self.wait(lambda: not self.tested.undrains or works(), instead)

    def round(
        self,
        event_type: str = "Reboot",
        **how: Any,  # noqa: ANN401 - as schedule's
    ) -> None:
        """Play a further event from its announcement to the machine's return."""
        drains, undrains = map(self.handler.marks().count, ("drain", "undrain"))
        event = self.announce(event_type, **how)
        self.expect_drain(drains + 1)
        self.expect_approval(event)
        self.end(event)
        self.expect_work(undrains + 1)

    # What the wire saw.

    def polls(self) -> list[Exchange]:
        """Return the requests for events."""
        return [each for each in self.exchanges() if each.method == "GET"]

    def approvals(self) -> Iterator[tuple[Exchange, tuple[str, ...]]]:
        """Yield the approvals, without those that are malformed, and their ids in upper case."""
        for each in self.exchanges():
            if each.method == "POST":
                with contextlib.suppress(codec.Malformed):
                    yield each, codec.decode_start_requests(each.body)

    def exchanges(self) -> list[Exchange]:
        """Return the requests for events and the approvals."""
        return [each for each in self.emulator.requests if EVENTS in each.target.lower()]

    def last_exchange(self) -> Exchange | None:
        """Return the latest request with an answer."""
        return next((each for each in reversed(self.emulator.requests) if each.status), None)

    def note_marks(self, exchange: Exchange) -> None:
        """Keep the present marks as an approval arrives; on the emulator's thread."""
        if exchange.method == "POST":
            self.marks_at[id(exchange)] = self.handler.marks()

    # What holds in every scenario.

    def judge(self) -> None:
        """Complain of behaviour that no handler may show, in any scenario."""
        events = {event.event_id: event for event in self.emulator.history()}
        confirmed: set[str] = set()
        told_end = "drained" in self.handler.marks()
        for each, ids in self.approvals():
            for event_id in ids:
                event = events.get(event_id)
                if event is None:
                    raise Violation(f"it approved an unknown event: {event_id}", each)
                if self.machine not in event.machines:
                    others = ", ".join(event.machines)
                    message = f"it approved an event of other machines: {event_id} of {others}"
                    raise Violation(message, each)
                marks = self.marks_at.get(id(each), ())
                if event.event_type != "Freeze" and "drain" not in marks:
                    raise Violation(f"it approved {event_id} before it drained", each)
                if told_end and marks and marks[-1] == "drain":
                    raise Violation(f"it approved {event_id} before its drain had ended", each)
                if event_id in confirmed:
                    raise Violation(f"it approved {event_id} again after it was confirmed", each)
            if each.status == HTTPStatus.OK and not each.fault:
                confirmed.update(ids)
        if zombies := self._zombies():
            raise Violation(f"it leaves zombies: {zombies} of its children ended unawaited")

    def _zombies(self) -> int:
        seen = set(self.handler.family("Z"))
        for _ in range(MORE_POLLS):
            if not seen:
                return 0
            self.pause(1.0)
            seen &= set(self.handler.family("Z"))
        return len(seen)


# The scenarios.


def _again(run: HandlerRun) -> None:
    run.round()
    run.round("Redeploy")


def _not_mine(run: HandlerRun) -> None:
    event = run.announce("Reboot", "web-1")
    run.more_polls()
    if "drain" in run.handler.marks():
        raise Violation("it drained for an event of another machine", run.last_exchange())
    run.end(event)
    run.round()


def _two_events(run: HandlerRun) -> None:
    mine, other = run.announce(), run.announce("Reboot", "web-1")
    run.expect_drain()
    run.expect_approval(mine)
    run.more_polls()  # in which it must not approve the other
    run.emulator.advance("15m")
    if other.status == "Started":
        run.emulator.finish(other)
    if mine.status == "Started":
        run.more_polls()
        if "undrain" in run.handler.marks():
            raise Violation("it went back to work while its own event was still listed")
    run.end(mine)
    run.expect_work()


def _not_first(run: HandlerRun) -> None:
    event = run.announce(scope="web")
    run.expect_drain()
    run.more_polls()
    run.end(event)
    run.expect_work()


def _cancelled(run: HandlerRun) -> None:
    run.handler.order("wait", on=True)
    event = run.announce()
    run.expect_drain()
    run.emulator.cancel(event)
    run.handler.order("wait", on=False)
    run.more_polls()
    run.expect_work()
    run.round()


def _drain_fails(run: HandlerRun) -> None:
    run.handler.order("fail", on=True)
    event = run.announce()
    run.expect_drain()
    run.more_polls()
    if event.approved_by:
        approval, _ = next(run.approvals())
        raise Violation("it approved although its drain failed", approval)
    run.end(event)
    run.handler.order("fail", on=False)
    drains = run.handler.marks().count("drain")
    second = run.announce()
    run.expect_drain(drains + 1)
    run.expect_approval(second)


def _drain_is_slow(run: HandlerRun) -> None:
    run.handler.order("wait", on=True)
    event = run.announce()
    run.expect_drain()
    run.emulator.advance("15m")
    run.emulator.finish(event)
    run.polls_beside_its_drain()
    run.handler.order("wait", on=False)
    run.end(event)
    run.expect_work()


def _started(run: HandlerRun) -> None:
    event = run.announce(no_notice=True)
    run.more_polls()
    run.end(event)
    if "drain" in run.handler.marks():
        run.expect_work()
    run.round()


def _deletion(run: HandlerRun, event_type: str) -> None:
    event = run.announce(event_type)
    run.expect_drain()
    run.expect_approval(event)


def _freeze(run: HandlerRun) -> None:
    event = run.announce("Freeze", duration_seconds=9)
    run.more_polls()
    run.end(event)
    drains = run.handler.marks().count("drain")
    if drains:
        run.expect_work(drains)
    run.round()


def _restarted(run: HandlerRun) -> None:
    run.handler.order("wait", on=True)
    event = run.announce()
    run.expect_drain()
    run.pause(DRAINING_SECONDS)
    run.handler.kill()
    run.handler.order("wait", on=False)
    run.start()
    run.expect_approval(event)
    approval, _ = next(run.approvals())
    marks = run.marks_at[id(approval)]
    if "drained" not in marks and marks.count("drain") < 2:
        raise Violation(INTERRUPTED, approval)
    run.end(event)
    run.expect_work()


def _rebooted(run: HandlerRun, *, is_over: bool) -> None:
    event = run.announce()
    run.expect_drain()
    run.expect_approval(event)
    run.handler.kill()
    if is_over:
        run.end_without_handler(event)
    run.start()
    run.more_polls(2)  # two looks in a row confirm that an event is over
    if run.handler.marks().count("drain") > 1:
        raise Violation(AGAIN, run.last_exchange())
    if not is_over:
        run.end(event)
    run.expect_work(instead=FORGOT)


def _preview(run: HandlerRun) -> None:
    if not any("2017-03-01" in each.target for each in run.polls()):
        raise NotConcerned("it does not ask by version 2017-03-01")
    run.round()


def _faulty_at_first(run: HandlerRun, playbook: str) -> None:
    run.is_ticking = True
    run.handler.kill()
    run.emulator.faults(playbook)
    run.start()
    run.round(notice=LONG_NOTICE)


def _faulty_meanwhile(run: HandlerRun, name: str, **values: int) -> None:
    met = sum(fault.after + fault.times for fault in faults.named(name, **values))
    run.handler.order("wait", on=True)
    event = run.announce()
    run.expect_drain()
    run.emulator.faults(name, **values)
    run.handler.order("wait", on=False)
    run.expect_approval(event)
    run.more_polls(met + 1)
    if run.handler.marks()[-1] == "undrain":
        message = "it went back to work while its event was still listed"
        raise Violation(message, run.last_exchange())
    run.end(event)
    run.expect_work()


def _idle(run: HandlerRun) -> None:
    before = len(run.polls())
    run.pause(IDLE_SECONDS)
    polls = len(run.polls()) - before
    if polls > MOST_A_SECOND * IDLE_SECONDS:
        message = f"it polls too often: {polls} times in {IDLE_SECONDS:g} s; once a second is usual"
        raise Violation(message, run.last_exchange())
    run.refuse_early_drain()


def _stops(run: HandlerRun) -> None:
    run.more_polls(1)
    seconds = handler_process.STOP_SECONDS
    until = clock.monotonic() + seconds
    run.handler.terminate()
    while run.handler.status is None:
        if clock.monotonic() > until:
            raise Violation(f"it did not end within {seconds:g} s after SIGTERM")
        run.pause(LOOK_SECONDS)
    until = clock.monotonic() + seconds
    while left := len(run.handler.family()):
        if clock.monotonic() > until:
            raise Violation(f"it ended and left {left} processes behind")
        run.pause(LOOK_SECONDS)


_PAIR: Final = (
    '[[availability_set]]\nname = "web"\nupdate_domains = 2\nmachines = [\n'
    '  {{ name = "web-0", update_domain = 0 }},\n  {{ name = "web-1", update_domain = {0} }},\n]\n'
)
_TOGETHER, _APART = _PAIR.format(0), _PAIR.format(1)
_SPOT: Final = '[[scale_set]]\nname = "batch"\npriority = "low"\nmachines = [{ index = 0 }]\n'
_SET: Final = (
    '[[scale_set]]\nname = "batch"\nterminate_notice_minutes = 5\nmachines = [{ index = 0 }]\n'
)

SCENARIOS: Final = (
    HandlerScenario(
        "approve", "a reboot is announced: drain, approve, go back to work", HandlerRun.round
    ),
    HandlerScenario("again", "a second event after the first", _again),
    HandlerScenario(
        "not-mine", "an event of another machine, then one of its own", _not_mine, _APART
    ),
    HandlerScenario("two-events", "its own event beside another machine's", _two_events, _TOGETHER),
    HandlerScenario(
        "two-machines",
        "one event of two machines, of which it is the first",
        partial(HandlerRun.round, scope="web"),
        _TOGETHER,
    ),
    HandlerScenario(
        "not-first",
        "one event of two machines, of which it is not the first",
        _not_first,
        _TOGETHER,
        "web-1",
    ),
    HandlerScenario("cancelled", "the event is cancelled while it drains", _cancelled),
    HandlerScenario("drain-fails", "its drain fails: it must not approve", _drain_fails),
    HandlerScenario("drain-is-slow", "its drain takes longer than the notice", _drain_is_slow),
    HandlerScenario(
        "started", "a failure without notice: an event that is Started at once", _started
    ),
    HandlerScenario(
        "preempt",
        "a spot machine is deleted in 30 s",
        partial(_deletion, event_type="Preempt"),
        _SPOT,
        "batch_0",
    ),
    HandlerScenario(
        "terminate",
        "a scale set deletes the machine",
        partial(_deletion, event_type="Terminate"),
        _SET,
        "batch_0",
    ),
    HandlerScenario("freeze", "a pause of 9 s, which may be ignored", _freeze),
    HandlerScenario("restarted", "it is killed while it drains, and started again", _restarted),
    HandlerScenario(
        "rebooted",
        "it is killed after its approval, and is back when the event is over",
        partial(_rebooted, is_over=True),
    ),
    HandlerScenario(
        "rebooted-early",
        "it is killed after its approval, and is back while the event is still Started",
        partial(_rebooted, is_over=False),
    ),
    HandlerScenario("preview", "names that begin with '_', as 2017-03-01 has them", _preview),
    HandlerScenario("stops", "it is asked to end by SIGTERM", _stops),
    HandlerScenario("idle", "nothing happens: it must not poll too often", _idle),
    *(
        HandlerScenario(
            f"fault-{name}",
            f"the endpoint has the faults of {name}, at first",
            partial(_faulty_at_first, playbook=name),
        )
        for name in ("azure-bad-day", "slow-start", "throttled", "host-update")
    ),
    *(
        HandlerScenario(
            f"fault-{name}",
            f"the endpoint has the faults of {name}, after its drain",
            partial(_faulty_meanwhile, name=name),
        )
        for name in ("lost-approvals", "restarted", "flapping", "wrong-answers", "hanging")
    ),
    HandlerScenario(
        "fault-lower-case",
        "EventIds change to lower case for some answers",
        partial(_faulty_meanwhile, name="lower-case", times=4),
    ),
)


def run(
    handler: Handler,
    scenarios: Sequence[HandlerScenario] = SCENARIOS,
    on_result: Callable[[Result], None] = lambda _: None,
    stop: threading.Event | None = None,
) -> list[Result]:
    """Run a handler through scenarios, all at the same time, and return their results in order.

    `on_result` is called as each ends, in a thread of its own. Once `stop` is set, the scenarios
    under way end at once, without results.
    """
    stop = stop or threading.Event()

    def one(scenario: HandlerScenario) -> Result | None:
        try:
            result = _played(scenario, handler, stop)
        except Interrupted:
            return None
        on_result(result)
        return result

    with ThreadPoolExecutor(max_workers=len(scenarios) or 1) as pool:
        return [result for result in pool.map(one, scenarios) if result is not None]


def _played(scenario: HandlerScenario, handler: Handler, stop: threading.Event) -> Result:
    began = clock.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix=f"certify-{scenario.name}-") as folder,
        Emulator() as emulator,
    ):
        machine = next(m for m in emulator.fleet(scenario.fleet) if m.name == scenario.machine)
        emulator.default(machine)
        asked = EmulatedMachine(machine.name, ADDRESS) if handler.isolated else machine
        process = HandlerProcess(handler, Path(folder), asked.environment)
        run = HandlerRun(emulator, process, machine.name, handler, stop=stop)
        emulator.on_request(run.note_marks)
        verdict, message, shown = HandlerVerdict.PASSED, "", ""
        try:
            run.pause(0)
            run.start()
            _play(scenario, run)
        except Violation as violation:
            verdict, message = HandlerVerdict.FAILED, str(violation)
            shown = "" if violation.exchange is None else exchange_text(violation.exchange)
        except NotConcerned as reason:
            verdict, message = HandlerVerdict.SKIPPED, str(reason)
        except OSError as error:
            verdict, message = HandlerVerdict.FAILED, f"it cannot be started: {error}"
        finally:
            process.kill()
        return Result(
            name=scenario.name,
            about=scenario.about,
            verdict=verdict,
            message=message,
            exchange=shown,
            output=process.said(),
            warning="; ".join(emulator.warnings),
            seconds=clock.monotonic() - began,
        )


def _play(scenario: HandlerScenario, run: HandlerRun) -> None:
    try:
        scenario.play(run)
    except Refused as refusal:  # the event started while the scenario holds the drain up
        run.judge()
        message = f"it approved before its drain had ended: {refusal.message}"
        raise Violation(message, run.last_exchange()) from refusal
    run.judge()


def exchange_text(exchange: Exchange) -> str:
    """Return a request and its answer as they went over the wire, for people."""
    head = [f"{exchange.method} {exchange.target}"]
    head += [f"{name}: {value}" for name, value in exchange.headers]
    status = "no answer" if not exchange.status else str(exchange.status)
    bodies = [each.decode("utf-8", "replace") for each in (exchange.body, exchange.answer)]
    return "\n\n".join(filter(None, ["\n".join(head), bodies[0], status, bodies[1]]))


def _ending(status: int) -> str:
    return f"status {status}" if status >= 0 else f"signal {-status}"


def junit(command: Sequence[str], results: Sequence[Result]) -> str:
    """Return JUnit's XML: one suite, a test case for each scenario."""
    counts = _counts(results)
    suite = ET.Element(
        "testsuite",
        name=_xml(" ".join(command)),
        tests=str(len(results)),
        failures=str(counts[HandlerVerdict.FAILED]),
        skipped=str(counts[HandlerVerdict.SKIPPED]),
        errors="0",
        time=f"{max((each.seconds for each in results), default=0.0):.3f}",
    )
    for each in results:
        case = ET.SubElement(
            suite,
            "testcase",
            classname="forewarn.certify",
            name=each.name,
            time=f"{each.seconds:.3f}",
        )
        if each.verdict is HandlerVerdict.SKIPPED:
            ET.SubElement(case, "skipped", message=_xml(each.message))
        elif each.verdict is HandlerVerdict.FAILED:
            failure = ET.SubElement(case, "failure", message=_xml(each.message))
            failure.text = _xml(each.exchange)
        if each.output:
            ET.SubElement(case, "system-out").text = _xml(each.output)
        if each.warning:
            ET.SubElement(case, "system-err").text = _xml(f"warning: {each.warning}")
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def summary(results: Sequence[Result]) -> str:
    """Return the number of scenarios with each verdict, such as `25 passed, 1 skipped`."""
    return ", ".join(f"{count} {verdict}" for verdict, count in _counts(results).items() if count)


def _counts(results: Sequence[Result]) -> dict[HandlerVerdict, int]:
    return {verdict: sum(each.verdict is verdict for each in results) for verdict in HandlerVerdict}


def _xml(text: str) -> str:
    return "".join(each for each in text if each.isprintable() or each in "\n\t")

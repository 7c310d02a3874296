"""The drain of a host: its table of transitions, and its next step: `step(view, now)`.

    up --drain--> draining --emptied--> empty --reboot--> rebooting
    rebooting --booted--> back --return--> returning --open--> up

`step` is pure. It is called again after each change, after each look at the hosts (`HostSurvey`),
and at the time that it names. It asks for one ordinary maintenance a machine, so that none waits
for another's approval; the caller saves the request and the drain in one transaction.

A drain stops at the first failure and waits for an operator: it turns no machine off because a move
failed, and repeats nothing by itself. A host is rebooted only if a look that began after the last
machine left shows none running, and at most once: the time and the boot id are saved before the
command runs, and only another boot id proves that it rebooted.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Final

import msgspec

from forewarn.maintenance import host_plan
from forewarn.maintenance.host_plan import HostPlan, HostSurvey
from forewarn.maintenance.model import (
    Drain,
    DrainGuest,
    HoldKind,
    HostFacts,
    HostState,
    Operation,
    Refused,
    Way,
    key,
    listed,
)
from forewarn.maintenance.planner import Request
from forewarn.maintenance.relays import Relay
from forewarn.maintenance.world import World
from forewarn.vocabulary import ErrorCode, EventStatus, EventType

LOOK_EVERY: Final = timedelta(seconds=2)
"""The time between two looks at a host, while something there takes time."""

ASK_AGAIN_AFTER: Final = timedelta(seconds=5)
"""The wait where a machine has a live event of another maintenance."""

SILENT_LIMIT: Final = timedelta(seconds=60)
"""The time for which a host that is drained may not answer: a restart of its daemon takes seconds.
"""

COMMAND_LIMIT: Final = timedelta(seconds=60)
"""The time for which a host may keep its old boot id after its reboot command reported a failure.
"""

LOOK_AGE_LIMIT: Final = timedelta(seconds=60)
"""The greatest age of the look on which a host is rebooted: a machine may be started meanwhile."""

replace = msgspec.structs.replace


class HostTrigger(StrEnum):
    """The causes of a change of a host's state."""

    DRAIN = "drain"
    EMPTIED = "emptied"
    """A look shows that no machine runs there any longer."""
    FILL = "fill"
    """A look shows that a machine runs there again."""
    REBOOT = "reboot"
    """Its reboot command is about to run."""
    BOOTED = "booted"
    """It has another boot id."""
    RETURN = "return"
    OPEN = "open"
    """Machines may run and move there as before."""
    STICK = "stick"
    """Something went wrong, and an operator decides."""
    RETRY = "retry"


TRANSITIONS: Final[Mapping[tuple[HostState, HostTrigger], HostState]] = MappingProxyType(
    {
        (before, trigger): following
        for befores, trigger, following in (
            ("up", HostTrigger.DRAIN, HostState.DRAINING),
            ("draining", HostTrigger.EMPTIED, HostState.EMPTY),
            ("empty", HostTrigger.FILL, HostState.DRAINING),
            ("empty", HostTrigger.REBOOT, HostState.REBOOTING),
            ("draining empty rebooting", HostTrigger.BOOTED, HostState.BACK),
            ("draining empty back stuck", HostTrigger.RETURN, HostState.RETURNING),
            ("draining empty back returning stuck", HostTrigger.OPEN, HostState.UP),
            ("draining empty rebooting back returning", HostTrigger.STICK, HostState.STUCK),
            ("stuck", HostTrigger.RETRY, HostState.DRAINING),
        )
        for before in map(HostState, befores.split())
    }
)
"""From where, by what, to where. What is not in the table is refused."""


class DrainView(msgspec.Struct, frozen=True, kw_only=True):
    """The input of a step: all that it may look at."""

    world: World
    """With the operations of the drain that are over, as far as history has them."""
    drain: Drain
    survey: HostSurvey | None = None
    """The look that was just taken; None where there is none."""
    relay: Relay | None = None
    """The latest report about the host's relay; None where its absence would not hold the host."""

    def operation(self, number: int) -> Operation | None:
        """Return the operation of a maintenance that the drain has asked for."""
        return self.world.operations.get(f"{number}.1")

    def is_over(self, number: int) -> bool:
        """Return True if the operation of a maintenance is over, or there is none."""
        operation = self.operation(number)
        return operation is None or operation.status.over

    def has_left(self, guest: DrainGuest) -> bool:
        """Return True if the operation that takes a machine away is over."""
        return self.is_over(guest.leaves_by)


class DrainStep(msgspec.Struct, frozen=True, kw_only=True):
    """The next step of a drain."""

    drain: Drain
    asks: tuple[Request, ...] = ()
    """The maintenance to ask for: the first of these that is not refused because of a live event.
    """
    cancel: tuple[str, ...] = ()
    survey: bool = False
    """True if the hosts are to be looked at, and `step` called again at once."""
    reboot: bool = False
    """True if the reboot command is to run once this is saved."""
    wake_at: datetime | None = None
    """The time to call `step` again, even if nothing changes."""


def after(host: str, state: HostState, trigger: HostTrigger) -> HostState:
    """Return the next state of a host.

    Raises:
        Refused: The table has no such transition (CONFLICT).
    """
    following = TRANSITIONS.get((state, trigger))
    if following is None:
        message = f"cannot {trigger} host {host}: it is {state}"
        raise Refused(ErrorCode.CONFLICT, message, host=host, state=str(state))
    return following


# What each state does next.


def step(view: DrainView, now: datetime, host_back: timedelta) -> DrainStep:
    """Return the next step of a drain; `host_back` is the longest time for its host to reboot."""
    match view.drain.state:
        case HostState.DRAINING:
            return _draining(view, now)
        case HostState.EMPTY:
            return _empty(view, now)
        case HostState.REBOOTING:
            return _rebooting(view, now, host_back)
        case HostState.BACK:
            return _back(view, now, host_back)
        case HostState.RETURNING:
            return _returning(view, now)
    return DrainStep(drain=view.drain)


def _draining(view: DrainView, now: datetime) -> DrainStep:
    drain = view.drain
    if (failed := _failed(view, drain.guests)) is not None:
        return _stuck(view, now, failed)
    if (step := _asking(view, now)) is not None:
        return step
    asked = [guest for guest in drain.guests if guest.leaves_by]
    if any(guest.way in host_plan.MOVES and not view.has_left(guest) for guest in asked):
        return DrainStep(drain=replace(drain, reason=""))
    # All are announced before any is waited for: the first would be off while the last has notice.
    announced = not any(guest.way is Way.STOP and not guest.leaves_by for guest in drain.guests)
    if announced and any((o := view.operation(g.leaves_by)) and o.unstarted for g in asked):
        return DrainStep(drain=replace(drain, reason=""))
    if not _is_fresh(view, now):
        return DrainStep(drain=view.drain, survey=True)
    assert view.survey is not None
    facts = view.survey.of(drain.host)
    if not facts.answers:
        return _silent(view, now, facts)
    if (step := _rebooted(view, facts, now)) is not None:
        return step
    found = host_plan.plan(view.world, drain, view.survey)
    drain = replace(drain, guests=found.guests, silent_since=None, reason="")
    if found.problems:
        return _stuck(replace(view, drain=drain), now, "; ".join(found.problems))
    if drain.guests != view.drain.guests:
        return DrainStep(drain=drain, survey=True)
    return _look(view, drain, found, facts, now)


def _rebooted(view: DrainView, facts: HostFacts, now: datetime) -> DrainStep | None:
    """Return the step of a host that has rebooted before it was empty; None where it has not."""
    drain = view.drain
    if not drain.boot_id or facts.boot_id in {"", drain.boot_id}:
        return None
    if drain.reboot_asked_at is not None:
        # Its drain was stuck, and it rebooted after all: nothing is shut down a second time.
        return DrainStep(drain=_changed(drain, HostTrigger.BOOTED, now, booted_at=now))
    if any(guest.way is Way.STOP and guest.leaves_by for guest in drain.guests):
        return None  # once it is empty, the reboot that these waited for is over
    # By itself; or by an order that the store has lost, and then another is one too many.
    drain = replace(drain, boot_id=facts.boot_id)
    reason = f"host {drain.host} has rebooted meanwhile; a retry goes on all the same"
    return _stuck(replace(view, drain=drain), now, reason)


def _asking(view: DrainView, now: datetime) -> DrainStep | None:
    """Return the step that asks for the moves that nobody has asked for; None for none.

    Other maintenance may have moved or deleted a machine while its own move waited for that.
    """
    drain = view.drain
    waiting = [g for g in drain.guests if g.way in host_plan.MOVES and not g.leaves_by]
    if lost := [guest for guest in waiting if host_plan.machine_of(view.world, guest) is None]:
        return DrainStep(drain=_without(drain, lost), survey=True)
    if elsewhere := [guest for guest in waiting if _is_elsewhere(view, guest)]:
        if view.survey is None:
            return DrainStep(drain=drain, survey=True)
        facts = view.survey.of(drain.host)
        running = {guest.vm_id for guest in facts.guests if guest.running}
        if facts.answers and (left := [g for g in elsewhere if g.vm_id not in running]):
            return DrainStep(drain=_without(drain, left), survey=True)
    asks = tuple(_ask(drain, guest) for guest in waiting)
    return DrainStep(drain=drain, asks=asks, wake_at=now + ASK_AGAIN_AFTER) if asks else None


def _is_elsewhere(view: DrainView, guest: DrainGuest) -> bool:
    """Return True if the fleet has a machine on another host."""
    machine = host_plan.machine_of(view.world, guest)
    return machine is not None and machine.host != view.drain.host


def _without(drain: Drain, gone: Sequence[DrainGuest]) -> Drain:
    guests = tuple(replace(g, way=Way.GONE) if g in gone else g for g in drain.guests)
    return replace(drain, guests=guests)


def _look(
    view: DrainView, drain: Drain, found: HostPlan, facts: HostFacts, now: datetime
) -> DrainStep:
    """Judge the machines that still run on a host after all that could be moved have left."""
    running = {guest.vm_id for guest in facts.guests if guest.running}
    there = [guest for guest in drain.guests if guest.vm_id in running]
    left = [guest.name for guest in there if guest.way in host_plan.MOVES]
    if left:
        reason = f"still on {drain.host} although its move has ended: {listed(left)}"
        return _stuck(view, now, reason)
    others = [*found.strangers, *(guest.name for guest in there if guest.way is Way.SKIP)]
    if others:
        return _stuck(view, now, f"not empty: {listed(others)} runs there")
    stops = [guest for guest in drain.guests if guest.way is Way.STOP]
    unasked = [guest for guest in stops if not guest.leaves_by]
    if off := [guest for guest in unasked if guest.vm_id not in running]:
        return DrainStep(drain=_without(drain, off), survey=True)
    if unasked and not facts.boot_id:
        return _silent(view, now, facts)
    if unasked:
        drain = replace(drain, boot_id=facts.boot_id)
        asks = tuple(_ask(drain, guest) for guest in unasked)
        return DrainStep(drain=drain, asks=asks, wake_at=now + ASK_AGAIN_AFTER)
    if again := [guest.name for guest in there if guest.way is Way.STOP and view.has_left(guest)]:
        return _stuck(view, now, f"runs on {drain.host} again: {listed(again)}")
    if there:  # machines that are being shut down
        return DrainStep(drain=drain, wake_at=now + LOOK_EVERY)
    return DrainStep(drain=_changed(drain, HostTrigger.EMPTIED, now), survey=drain.reboot)


def _empty(view: DrainView, now: datetime) -> DrainStep:
    drain = view.drain
    if drain.rests:
        return _resting(view, now)
    held = [
        hold
        for hold in view.world.holds_in_order()
        if hold.kind is HoldKind.EVERYTHING
        or (hold.kind is HoldKind.HOST and hold.name == drain.host)
    ]
    if held:
        return DrainStep(drain=replace(drain, reason=f"held: {held[0]}"))
    if (
        not _is_fresh(view, now)
        or view.survey is None
        or now - view.survey.began_at > LOOK_AGE_LIMIT
    ):
        return DrainStep(drain=view.drain, survey=True)
    facts = view.survey.of(drain.host)
    if not facts.answers:
        return _silent(view, now, facts)
    if drain.boot_id and facts.boot_id and facts.boot_id != drain.boot_id:
        return DrainStep(drain=_changed(drain, HostTrigger.BOOTED, now, booted_at=now))
    if any(guest.running for guest in facts.guests):
        return DrainStep(drain=_changed(drain, HostTrigger.FILL, now), survey=True)
    if not facts.boot_id:
        return _silent(view, now, facts)
    if not facts.can_reboot:
        return _stuck(view, now, f"no command reboots host {drain.host}")
    noted = {"boot_id": facts.boot_id, "reboot_asked_at": now}
    return DrainStep(
        drain=_changed(drain, HostTrigger.REBOOT, now, **noted),
        reboot=True,
        wake_at=now + LOOK_EVERY,
    )


def _resting(view: DrainView, now: datetime) -> DrainStep:
    """Check that an empty host still is: somebody may patch or reboot it relying on this state."""
    if view.survey is None or not _is_fresh(view, now):
        return DrainStep(drain=view.drain, survey=True)
    there = [guest.name for guest in view.survey.of(view.drain.host).guests if guest.running]
    if there:
        return _stuck(view, now, f"not empty any more: {listed(there)} runs there")
    return DrainStep(drain=view.drain)


def _rebooting(view: DrainView, now: datetime, host_back: timedelta) -> DrainStep:
    drain = view.drain
    assert drain.reboot_asked_at is not None
    if view.survey is None or not _is_fresh(view, now):
        return DrainStep(drain=view.drain, survey=True)
    facts = view.survey.of(drain.host)
    if facts.answers and facts.boot_id and facts.boot_id != drain.boot_id:
        return DrainStep(drain=_changed(drain, HostTrigger.BOOTED, now, booted_at=now))
    waited = now - drain.reboot_asked_at
    if waited >= COMMAND_LIMIT and drain.reason and facts.answers:
        return _stuck(view, now, f"the reboot command failed: {drain.reason}")
    if waited >= host_back:
        seen = "it still has its old boot id" if facts.answers else "it does not answer"
        reason = f"has not rebooted within {host_back.total_seconds():.0f} s: {seen}"
        return _stuck(view, now, f"{reason} {facts.why}".rstrip())
    return DrainStep(drain=drain, wake_at=now + LOOK_EVERY)


def _back(view: DrainView, now: datetime, host_back: timedelta) -> DrainStep:
    drain = view.drain
    stopped = [guest for guest in drain.guests if guest.way is Way.STOP and guest.leaves_by]
    if (failed := _failed(view, stopped)) is not None:
        return _stuck(view, now, failed)
    if not all(map(view.has_left, stopped)):
        return DrainStep(drain=drain)
    # Without it guests that come home could neither read nor approve. What was heard before the
    # look that showed the new boot id may have been said before the reboot; a clock that was set
    # back has dated both to the same time.
    if view.relay is not None and view.relay.heard_at <= drain.changed_at:
        asked = f"the relay of host {drain.host} has not asked for it since the reboot"
        if now - drain.changed_at >= host_back:
            return _stuck(view, now, asked)
        return DrainStep(drain=replace(drain, reason=asked), wake_at=now + LOOK_EVERY)
    trigger = HostTrigger.RETURN if drain.bring_home else HostTrigger.OPEN
    return DrainStep(drain=_changed(drain, trigger, now))


def _returning(view: DrainView, now: datetime) -> DrainStep:
    drain = view.drain
    if (failed := _failed(view, drain.guests, home=True)) is not None:
        return _stuck(view, now, failed)
    if not all(map(view.has_left, drain.guests)):
        return DrainStep(drain=replace(drain, reason=""))
    away = [
        guest
        for guest in drain.guests
        if drain.bring_home
        and guest.way is not Way.SKIP
        and not guest.visits
        and _is_elsewhere(view, guest)
    ]
    if asks := tuple(_ask(drain, guest) for guest in away if not guest.returns_by):
        return DrainStep(drain=drain, asks=asks, wake_at=now + ASK_AGAIN_AFTER)
    moved = (host_plan.machine_of(view.world, g) for g in away if view.is_over(g.returns_by))
    if astray := [machine.name for machine in moved if machine is not None and machine.host]:
        # A hold of this host came between the start and the claim: its connector chose another.
        return _stuck(view, now, f"not home although its move has ended: {listed(astray)}")
    if not all(view.is_over(guest.returns_by) for guest in drain.guests):
        return DrainStep(drain=replace(drain, reason=""))
    return DrainStep(drain=_changed(drain, HostTrigger.OPEN, now))


def ask_first(
    view: DrainView, step: DrainStep, ask: Callable[[Request], int], now: datetime
) -> DrainStep:
    """Ask for the first maintenance of a step that is not refused; return the step after it.

    `ask` returns the number of a maintenance, or raises Refused and changes nothing.
    """
    refusals: list[Refused] = []
    for each in step.asks:
        try:
            number = ask(each)
        except Refused as refusal:
            refusals.append(refusal)
        else:
            return DrainStep(drain=asked(step.drain, each, number))
    return refused(replace(view, drain=step.drain), refusals, now) if refusals else step


def asked(drain: Drain, ask: Request, number: int) -> Drain:
    """Return the drain after one of its maintenances was asked for, with its number."""
    field = "returns_by" if drain.state is HostState.RETURNING else "leaves_by"
    guests = tuple(
        replace(guest, **{field: number})
        if guest.name in ask.machines and not getattr(guest, field)
        else guest
        for guest in drain.guests
    )
    return replace(drain, guests=guests, reason="")


def refused(view: DrainView, refusals: Sequence[Refused], now: datetime) -> DrainStep:
    """Return the step that follows when every maintenance of a step was refused.

    A machine with a live event has its turn when that is over; anything else needs an operator.
    """
    for refusal in refusals:
        if refusal.code is not ErrorCode.CONFLICT:
            return _stuck(view, now, refusal.message)
    facts = refusals[0].facts
    reason = refusals[0].message
    if "operation" in facts:  # the message advises to cancel it, and there is no need to
        reason = f"{facts['machine']} has operation {facts['operation']} first"
    drain = replace(view.drain, reason=reason)
    return DrainStep(drain=drain, wake_at=now + ASK_AGAIN_AFTER)


def reboot_failed(drain: Drain, message: str) -> Drain:
    """Return the drain after its reboot command reported a failure, which proves nothing."""
    if drain.state is not HostState.REBOOTING:
        return drain
    return replace(drain, reason=message or "it gave no reason")


def stuck(drain: Drain, now: datetime, reason: str) -> Drain:
    """Return the drain as it waits for an operator."""
    return _changed(drain, HostTrigger.STICK, now, stuck_in=drain.state, reason=reason)


# What operators order.


class DrainOrder(StrEnum):
    """An order about the drain of a host."""

    UNDRAIN = "undrain"
    """Open the host and leave its machines where they are; what has not started ends."""
    RETURN = "return"
    """Open the host and bring its machines home."""
    RETRY = "retry"
    SKIP = "skip"
    """Go on without a machine."""
    STOP = "stop"
    """Go on, and shut a machine down while the host reboots."""


def order(view: DrainView, kind: DrainOrder, now: datetime, machine: str = "") -> DrainStep:
    """Return the step that an operator's order about a drain leads to."""
    match kind:
        case DrainOrder.UNDRAIN:
            return _opened(view, HostTrigger.OPEN, now)
        case DrainOrder.RETURN:
            return _opened(view, HostTrigger.RETURN, now, bring_home=True)
        case DrainOrder.RETRY:
            return retry(view, now)
    return look_after(view, machine, Way(kind), now)


def begin(world: World, wanted: Drain, survey: HostSurvey, now: datetime) -> Drain:
    """Drain a host, and return its drain; one that is under way goes on.

    It has its plan from the start: no other drain counts on the same memory.

    Raises:
        Refused: The host is unknown, or could not be drained now (`host_plan.check`).
    """
    boot_id = survey.of(wanted.host).boot_id if wanted.reboot else ""
    for plan in host_plan.check(world, [wanted], survey):
        wanted = replace(wanted, guests=plan.guests, boot_id=boot_id)
    drain = request(world.drains.get(wanted.host), wanted, now)
    world.drains[drain.host] = drain
    return drain


def request(before: Drain | None, wanted: Drain, now: datetime) -> Drain:
    """Return the drain of a host that is asked for; one that is under way goes on.

    Asking again changes only what becomes of the host once it is empty.

    Raises:
        Refused: The drain has gone too far to do what is asked for (CONFLICT): the reboot is over,
            or has begun and none is wanted.
    """
    if before is None or host_plan.is_up(before):
        return _changed(replace(wanted, state=HostState.UP), HostTrigger.DRAIN, now)
    state = before.stuck_in or before.state
    in_time = {HostState.DRAINING, HostState.EMPTY}
    if state not in (in_time | {HostState.REBOOTING} if wanted.reboot else in_time):
        stuck = "" if before.stuck_in is None else ", and stuck"
        message = f"host {before.host} is {state}{stuck}: ask again once it is up"
        raise Refused(ErrorCode.CONFLICT, message, host=before.host, state=str(before.state))
    return replace(before, reboot=wanted.reboot, bring_home=wanted.bring_home)


def retry(view: DrainView, now: datetime) -> DrainStep:
    """Retry a drain that is stuck: failed operations are looked at, and asked for, again."""
    drain = view.drain
    if drain.state is not HostState.STUCK:
        message = f"host {drain.host} is {drain.state}, not stuck"
        raise Refused(ErrorCode.CONFLICT, message, host=drain.host, state=str(drain.state))
    if drain.stuck_in in {HostState.BACK, HostState.RETURNING}:
        drain = replace(drain, guests=_with_returns_that_run(view))
        return DrainStep(drain=_changed(drain, HostTrigger.RETURN, now))
    guests = tuple(_undecided(view, guest) for guest in drain.guests)
    return DrainStep(drain=_changed(replace(drain, guests=guests), HostTrigger.RETRY, now))


def look_after(view: DrainView, machine: str, way: Way, now: datetime) -> DrainStep:
    """Continue a drain that is stuck without a machine (SKIP), or after shutting it down (STOP).

    A machine that is to come home is left where it is by SKIP.
    """
    drain = view.drain
    named = [guest for guest in drain.guests if key(guest.name) == key(machine)]
    if not named:
        message = f"no machine {machine!r} in the drain of host {drain.host}"
        raise Refused(ErrorCode.NOT_FOUND, message, host=drain.host, machine=machine)
    # A machine that was deleted and made again is in it twice: the order is about the one there is.
    guest = max(named, key=lambda one: host_plan.machine_of(view.world, one) is not None)
    if way is Way.STOP and drain.stuck_in in {HostState.BACK, HostState.RETURNING}:
        message = f"host {drain.host} has rebooted: there is no need to shut {guest.name} down"
        raise Refused(ErrorCode.CONFLICT, message, host=drain.host, machine=guest.name)
    live = [
        operation
        for number in (guest.leaves_by, guest.returns_by)
        if (operation := view.operation(number)) is not None and not operation.status.over
    ]
    if live:
        message = f"operation {live[0].id} of {guest.name} is {live[0].status}: wait until it ends"
        raise Refused(ErrorCode.CONFLICT, message, machine=guest.name, operation=live[0].id)
    following = retry(view, now)
    guests = tuple(
        replace(one, way=way, to_host="", leaves_by=0) if one.vm_id == guest.vm_id else one
        for one in following.drain.guests
    )
    problems = [*host_plan.together(view.world, guests)]
    if problems:
        raise Refused(ErrorCode.NOT_ELIGIBLE, problems[0], machine=guest.name)
    return replace(following, drain=replace(following.drain, guests=guests))


def _opened(view: DrainView, trigger: HostTrigger, now: datetime, **more: object) -> DrainStep:
    drain = view.drain
    off = [
        guest.name
        for guest in drain.guests
        if guest.way is Way.STOP
        and (operation := view.operation(guest.leaves_by)) is not None
        and operation.status is EventStatus.STARTED
    ]
    if off:
        message = (
            f"{listed(off)} is shut down until host {drain.host} has rebooted: reboot the host, or "
            "start the machine on it, and try again"
        )
        raise Refused(ErrorCode.CONFLICT, message, host=drain.host, machine=off[0])
    drain = replace(drain, guests=_with_returns_that_run(view), **more)
    return DrainStep(drain=_changed(drain, trigger, now), cancel=_unstarted(view))


def _with_returns_that_run(view: DrainView) -> tuple[DrainGuest, ...]:
    return tuple(
        replace(guest, returns_by=0) if view.is_over(guest.returns_by) else guest
        for guest in view.drain.guests
    )


def _undecided(view: DrainView, guest: DrainGuest) -> DrainGuest:
    """Return a machine to be planned again, except for an operation of it that is under way."""
    if guest.way is Way.SKIP or not view.is_over(guest.leaves_by):
        return guest
    way = Way.STOP if guest.way is Way.STOP else Way.UNDECIDED
    return replace(guest, way=way, to_host="", leaves_by=0)


def _changed(drain: Drain, trigger: HostTrigger, now: datetime, **more: object) -> Drain:
    state = after(drain.host, drain.state, trigger)
    fresh = {"stuck_in": None, "reason": "", "silent_since": None}
    return replace(drain, **{**fresh, **more}, state=state, changed_at=now)


def _stuck(view: DrainView, now: datetime, reason: str) -> DrainStep:
    return DrainStep(drain=stuck(view.drain, now, reason), cancel=_unstarted(view))


def _unstarted(view: DrainView) -> tuple[str, ...]:
    known = map(view.operation, dict.fromkeys(view.drain.maintenances))
    return tuple(one.id for one in known if one is not None and one.unstarted)


def _silent(view: DrainView, now: datetime, facts: HostFacts) -> DrainStep:
    drain = view.drain
    since = drain.silent_since or now
    if now - since >= SILENT_LIMIT:
        how = "does not tell its boot id" if facts.answers else f"does not answer: {facts.why}"
        return _stuck(view, now, f"host {drain.host} {how}".rstrip(": "))
    return DrainStep(drain=replace(drain, silent_since=since), wake_at=now + LOOK_EVERY)


def _is_fresh(view: DrainView, now: datetime) -> bool:
    """Return True if there is a look that began after everything that has happened.

    A time later than now is from before the clock was set back, and so before any look.
    """
    times = [view.drain.changed_at]
    for guest in view.drain.guests:
        operation = view.operation(guest.leaves_by)
        if operation is not None:
            times += [at for at in (operation.started_at, operation.ended_at) if at is not None]
    survey = view.survey
    return survey is not None and all(at <= survey.began_at or at > now for at in times)


def _failed(view: DrainView, guests: Iterable[DrainGuest], *, home: bool = False) -> str | None:
    for guest in guests:
        operation = view.operation(guest.returns_by if home else guest.leaves_by)
        if operation is None or not operation.status.over or guest.way is Way.SKIP:
            continue
        if operation.status is not EventStatus.COMPLETED:
            what = f"{operation.event_type} of {guest.name} ({operation.id}) is {operation.status}"
            return f"{what}: {operation.outcome}".removesuffix(": ")
    return None


_TYPES: Final = MappingProxyType(
    {Way.LIVE: EventType.FREEZE, Way.REDEPLOY: EventType.REDEPLOY, Way.STOP: EventType.REBOOT}
)


def _ask(drain: Drain, guest: DrainGuest) -> Request:
    """Return the request that takes a machine away, or brings it home."""
    home = drain.state is HostState.RETURNING
    way = (Way.REDEPLOY if guest.obstacles else Way.LIVE) if home else guest.way
    return Request(
        event_type=_TYPES[way],
        machines=(guest.name,),
        live_migration=way is Way.LIVE,
        to_host=drain.host if home else guest.to_host,
        host_boot_id=drain.boot_id if way is Way.STOP else "",
        without_notice=drain.without_notice,
        requested_by=drain.requested_by,
    )

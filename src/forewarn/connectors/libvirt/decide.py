"""From the sight of a machine on all hosts to the next step. Pure: values in, a step out.

`program` looks, does one step by `hypervisor`, and looks again, until a step ends it. So it needs
no memory of its own to go on where an earlier run was killed: that run's work is in the state of
the domain and in the marker. The tables name each pair of state and phase; a pair that is in none
of them fails and touches nothing.

The rules that hold in every table:

- A marker of a later attempt, or of a later operation: another run has taken over. Stop.
- A machine that is active on two hosts without a job is left alone: one of them is the wrong one.
- A machine is shut down for a move only while a target answers, has memory and is free of
  definitions of it; it is started again where it was as soon as that is not so any more.
- A machine that is off and may be defined on two hosts is started on one only while the other
  answers, or is known to have none or to have started none.
- A run that gives up leaves the machine running, resumed or started, unless it may run elsewhere.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from forewarn.connectors.libvirt.facts import (
    Act,
    DomainSight,
    DomainState,
    HostSight,
    Marker,
    MarkerPhase,
    MoveBy,
    Order,
)

LOOK_AGAIN_SECONDS = 0.5
"""The pause before the next look where no event announces a change."""

PRESS_EVERY_SECONDS = 8.0
"""The pause before the power button is pressed again: a press while the guest boots is lost."""

RETRY_EVERY_SECONDS = 2.0
"""The pause before a failed step is tried again."""

JOB_IN_THE_WAY = 68
"""libvirt's code for a step that waited 30 s for another job, and gave up."""


class Do(StrEnum):
    """The kinds of steps; the last four end the run."""

    MARK = "mark"
    """Write the marker of the step to the machine on the step's host."""
    SUSPEND = "suspend"
    RESUME = "resume"
    SYNC_TIME = "sync time"
    """Set the guest's clock by its agent, if it has one."""
    PRESS = "press"
    """Ask the guest to shut down: by its agent, or by its power button."""
    POWER_OFF = "power off"
    START = "start"
    """Start from the definition, never from a saved state."""
    MIGRATE = "migrate"
    MOVE_DEFINITION = "move definition"
    """Move the definition of a machine that is off to the target."""
    AUTOSTART = "autostart"
    """Make a machine that has moved start with its host again."""
    ABORT = "abort"
    DEFINE = "define"
    """Give a transient machine a definition: it names the disks once the machine is off."""
    DELETE_DISKS = "delete disks"
    UNDEFINE = "undefine"
    WAIT = "wait"
    """Look again later: what is under way ends by itself."""
    ASK_AGAIN = "ask again"
    """Look again later, for a limited time: a host that matters does not answer."""
    DONE = "done"
    FAIL = "fail"
    UNKNOWN = "unknown"
    """The result is unknown: a host that matters does not answer."""
    FENCED = "fenced"


ENDS = frozenset({Do.DONE, Do.FAIL, Do.UNKNOWN, Do.FENCED})

LOOKS = ENDS | {Do.WAIT, Do.ASK_AGAIN}

TRIES: Mapping[Do, int] = {Do.RESUME: 30, Do.START: 10}
"""The number of failures after which a step is given up; `TRIES_ELSE` for the others. A machine
that is paused or off is not given up soon. A migration is not repeated at all (`_stays`), and a
press of the power button as long as the guest has time to shut down (`_shut_down`)."""

TRIES_ELSE = 5

TRIES_AFTER_BOOT = 150
"""The same for a start after the host's boot, in five minutes or more: the storage of a host may be
there minutes after libvirt."""

MAX_FAILURES = 300
"""The number of failures that are remembered: more than all tries together."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """The next step."""

    do: Do
    host: str = ""
    target: str = ""
    live: Marker | None = None
    config: Marker | None = None
    seen: Marker | None = None
    """The marker that a mark replaces; refused where it has changed since the look: one waits for a
    host that hangs, and an earlier attempt may be at work."""
    seconds: float = 0.0
    message: str = ""
    """For the operator: the reason of the end, or of the wait."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A step that libvirt refused."""

    do: Do
    host: str
    code: int
    message: str
    at: float


@dataclass(frozen=True, kw_only=True)
class Past:
    """The actions and sights of this run of the program; times in seconds since it began."""

    now: float = 0.0
    acted: bool = False
    """Something may have been changed."""
    stopping: bool = False
    """Its time is over: leave the machine running and end."""
    paused_at: float | None = None
    paused_on: str = ""
    """The host on which this run has paused the machine, until it has resumed it."""
    time_set: bool = False
    disks_deleted: bool = False
    moved: bool = False
    """A move by this run has succeeded, so its source is free of the machine."""
    pressed_first: float | None = None
    pressed_last: float | None = None
    waiting_since: float | None = None
    """Start of the wait for a host that went dark, or for a copy that is handed over; None without
    one."""
    failures: tuple[Failure, ...] = ()
    started_on: str = ""
    """The host on which this run started the machine again after it had shut it down to move it."""
    marked_on: str = ""
    """The host whose copy has the marker that this run has written."""
    notes: tuple[str, ...] = ()

    def failed(self, do: Do) -> Failure | None:
        """Return the latest failure of a kind of step."""
        return next((each for each in reversed(self.failures) if each.do is do), None)


def decide(order: Order, hosts: tuple[HostSight, ...], past: Past) -> Step:
    """Return the next step, or the end."""
    if not order.vm_id:
        return Step(do=Do.FAIL, message="has no vm_id: it is not in the fleet any more")
    found = _found(hosts)
    if (step := _fence(order, hosts, past)) is not None:
        for host, domain in found:
            paused = domain.state is DomainState.PAUSED and not domain.handed_over
            if paused and host.name == past.paused_on:
                # The other run may have ended before this one, which had stood still, paused it.
                return _tempered(order, Step(do=Do.RESUME, host=host.name), past)
        return step
    if not found:
        return _nowhere(order, hosts, past)
    if (busy := _at_work(order, found)) is not None:
        return _busy(order, busy, found, past)
    active = [(host, domain) for host, domain in found if domain.active]
    if len(active) > 1 and not _handing_over(active):
        return Step(do=Do.FAIL, message=_doubled(active))
    is_it = bool(active) or any(
        host.name == order.host or order.owns(domain.config) for host, domain in found
    )
    if not is_it and order.act is not Act.DELETE and (dark := _dark(hosts)):
        # An old definition, perhaps: the machine itself may run where nobody can look.
        return _unseen(order, past, dark, waits=order.unforeseen)
    if order.act is Act.MOVE:
        step = _move(order, hosts, past)
    elif len(active) > 1:
        return _patient(order, past, _doubled(active))
    elif order.act is Act.DELETE:
        step = _delete(order, hosts, past)
    else:
        # One that this operation has shut down is started where it was, whatever old definitions
        # there are elsewhere.
        known = active or [each for each in found if order.owns(each[1].marker)] or found
        if len(known) > 1:
            return Step(do=Do.FAIL, message=_ambiguous(known))
        step = _by_table(order, *known[0], past)
    return _tempered(order, step, past)


def verdict(order: Order, hosts: tuple[HostSight, ...]) -> Step:
    """Judge by one look: DONE, FAIL for not done, WAIT for a job, else UNKNOWN."""
    step = decide(replace(order, again=True), hosts, Past())
    found = _found(hosts)
    if step.do in {Do.DONE, Do.UNKNOWN, Do.ASK_AGAIN} or _at_work(order, found) is not None:
        return step
    doubled = step.do is Do.FAIL and len([1 for _, domain in found if domain.active]) > 1
    if doubled or step.do is Do.FENCED:
        return replace(step, do=Do.UNKNOWN)
    return Step(do=Do.FAIL, message=step.message)


def after(past: Past, step: Step, order: Order) -> Past:
    """Return this run's past after a step."""
    if step.do is Do.ASK_AGAIN:
        since = past.now if past.waiting_since is None else past.waiting_since
        return replace(past, waiting_since=since)
    past = replace(past, waiting_since=None, acted=past.acted or step.do not in LOOKS)
    match step.do:
        case Do.MARK:
            return replace(past, marked_on=step.host)
        case Do.SUSPEND:
            return replace(past, paused_at=past.now, paused_on=step.host)
        case Do.RESUME:
            return replace(past, paused_on="")
        case Do.SYNC_TIME:
            return replace(past, time_set=True)
        case Do.DELETE_DISKS:
            return replace(past, disks_deleted=True)
        case Do.MIGRATE | Do.MOVE_DEFINITION:
            return replace(past, moved=True, marked_on=step.target)
        case Do.START if order.act is Act.MOVE:
            return replace(past, started_on=step.host)
        case Do.PRESS:
            first = past.now if past.pressed_first is None else past.pressed_first
            return replace(past, pressed_first=first, pressed_last=past.now)
    return past


def refused(past: Past, step: Step, code: int, message: str) -> Past:
    """Return this run's past after libvirt refused a step."""
    if step.do is Do.MIGRATE and code == JOB_IN_THE_WAY:
        return replace(past, acted=True)  # it has waited for the other job: look again
    failure = Failure(do=step.do, host=step.host, code=code, message=message, at=past.now)
    past = replace(past, acted=True, failures=(*past.failures, failure)[-MAX_FAILURES:])
    if step.do is Do.PRESS:  # the time for the guest to shut down passes all the same
        first = past.now if past.pressed_first is None else past.pressed_first
        return replace(past, pressed_first=first, pressed_last=past.now)
    if step.do is Do.SYNC_TIME:
        note = f"the guest's clock was not set: {message}"
        return replace(past, time_set=True, notes=(*past.notes, note))
    return past


def place(hosts: Iterable[HostSight]) -> str:
    """Return the host that the machine runs on now, else the only one that defines it; or ""."""
    found = _found(tuple(hosts))
    chosen = [host.name for host, domain in found if domain.active] or [h.name for h, _ in found]
    return chosen[0] if len(chosen) == 1 else ""


Found = list[tuple[HostSight, DomainSight]]


def _found(hosts: tuple[HostSight, ...]) -> Found:
    return [(host, host.domain) for host in hosts if host.domain is not None]


def _fence(order: Order, hosts: tuple[HostSight, ...], past: Past) -> Step | None:
    for host, domain in _found(hosts):
        for marker in (domain.live, domain.config):
            if marker is None:
                continue
            if order.owns(marker):
                if marker.attempt > order.attempt:
                    # Its own end is not known here, nor whether it is lost meanwhile.
                    return Step(do=Do.UNKNOWN, message=f"attempt {marker.attempt} has taken over")
            elif order.precedes(marker) or (
                # An old definition on another host may have the marker of an earlier operation.
                host.name == past.marked_on and marker == domain.marker
            ):
                message = f"operation {marker.operation} has taken over"
                return Step(do=Do.FENCED, message=message)
    return None


def _dark(hosts: tuple[HostSight, ...]) -> str:
    return "; ".join(
        f"host {host.name} does not answer: {host.why}" for host in hosts if not host.answers
    )


def _nowhere(order: Order, hosts: tuple[HostSight, ...], past: Past) -> Step:
    dark = _dark(hosts)
    if dark:
        return _unseen(order, past, dark)
    if order.act is Act.DELETE:
        said = [] if past.acted else ["it was gone already"]
        if order.delete_disks and not past.disks_deleted:
            said.append("nothing names its disks any more: delete what is left of them by hand")
        return Step(do=Do.DONE, message="; ".join(said))
    names = ", ".join(host.name for host in hosts)
    return Step(do=Do.FAIL, message=f"no domain with the uuid {order.vm_id} on {names}")


def _unseen(order: Order, past: Past, dark: str, *, waits: bool = False) -> Step:
    begun = past.acted or order.again
    if order.host_boot_id and not past.stopping and begun:
        return Step(do=Do.WAIT, seconds=RETRY_EVERY_SECONDS, message="waits for its host")
    if not begun and not waits:
        return Step(do=Do.FAIL, message=f"{dark}; nothing was touched")
    return _patient(order, past, dark)


def _patient(order: Order, past: Past, message: str) -> Step:
    """Wait, for a limited time, for another look to tell."""
    since = past.now if past.waiting_since is None else past.waiting_since
    if past.stopping or past.now - since >= order.retry_seconds:
        return Step(do=Do.UNKNOWN, message=message)
    return Step(do=Do.ASK_AGAIN, seconds=RETRY_EVERY_SECONDS, message=message)


def _at_work(order: Order, found: Found) -> HostSight | None:
    """Return a host with a job to wait for; None where there is none.

    A machine that this operation has paused is resumed beside a job: a backup may take hours.
    """
    for host, domain in found:
        mine = order.act is Act.PAUSE and order.owns(domain.marker) and not domain.handed_over
        if domain.job and not (mine and domain.state is DomainState.PAUSED):
            return host
    return None


def _busy(order: Order, host: HostSight, found: Found, past: Past) -> Step:
    """Wait for the end of a job, which is judged then; cancel it when the time is over."""
    if past.stopping and past.failed(Do.ABORT) is None:
        markers = [(each.name, domain.marker) for each, domain in found]
        for name, marker in markers:
            if marker is not None and order.owns(marker) and name == marker.source:
                return Step(do=Do.ABORT, host=name)
    message = f"a job is under way on {host.name}"
    if past.stopping:
        return Step(do=Do.UNKNOWN, message=message)
    return Step(do=Do.WAIT, seconds=LOOK_AGAIN_SECONDS, message=message)


def _handing_over(active: Found) -> bool:
    return len(active) == 2 and any(domain.handed_over for _, domain in active)


def _doubled(active: Found) -> str:
    names = " and ".join(host.name for host, _ in active)
    return f"is active on {names} at once: stop the wrong one by hand; neither was touched"


def _ambiguous(found: Found) -> str:
    names = ", ".join(host.name for host, _ in found)
    return f"is off, and defined on several hosts: {names}"


def _tempered(order: Order, step: Step, past: Past) -> Step:
    """Delay a step that failed for a moment, and end it where it failed too often."""
    failed = [each for each in past.failures if (each.do, each.host) == (step.do, step.host)]
    if not failed or step.do in LOOKS | {Do.PRESS}:  # presses have their own pause and time
        return step
    latest = failed[-1]
    booted = bool(order.host_boot_id) and step.do is Do.START
    if why := _given_up(past, step.do, step.host, TRIES_AFTER_BOOT if booted else 0):
        return Step(do=Do.FAIL, message=why)
    if past.now - latest.at < RETRY_EVERY_SECONDS:
        return Step(do=Do.WAIT, seconds=LOOK_AGAIN_SECONDS, message=latest.message)
    return step


def _given_up(past: Past, do: Do, host: str, tries: int = 0) -> str:
    """Return the reason why a kind of step is not tried again on a host; "" while it is.

    `tries` are the most failures, 0 for the usual ones.
    """
    failed = [each for each in past.failures if (each.do, each.host) == (do, host)]
    if len(failed) < (tries or TRIES.get(do, TRIES_ELSE)):
        return ""
    return f"could not {do} on {host}: {failed[-1].message}"


# Pause and reboot: what happens on one host, by tables of (state, phase).

_Table = Mapping[tuple[DomainState, MarkerPhase | None], Do]

PAUSE: _Table = {
    (DomainState.RUNNING, None): Do.MARK,
    (DomainState.RUNNING, MarkerPhase.BEGUN): Do.SUSPEND,
    (DomainState.PAUSED, MarkerPhase.BEGUN): Do.MARK,
    (DomainState.PAUSED, MarkerPhase.PAUSED): Do.RESUME,
    (DomainState.RUNNING, MarkerPhase.PAUSED): Do.SYNC_TIME,
    (DomainState.RUNNING, MarkerPhase.DONE): Do.DONE,
}
"""Freeze. A run that finds it paused by us resumes it; one that finds it running after that only
reports so: the mark `paused` is written while it is paused, so it stands for a pause that has
happened."""

REBOOT: _Table = {
    (DomainState.RUNNING, None): Do.MARK,
    (DomainState.CRASHED, None): Do.MARK,
    (DomainState.RUNNING, MarkerPhase.BEGUN): Do.PRESS,
    (DomainState.PAUSED, MarkerPhase.BEGUN): Do.PRESS,
    (DomainState.CRASHED, MarkerPhase.BEGUN): Do.POWER_OFF,
    (DomainState.OFF, MarkerPhase.RESTARTED): Do.START,
    (DomainState.PAUSED, MarkerPhase.RESTARTED): Do.RESUME,
    (DomainState.RUNNING, MarkerPhase.RESTARTED): Do.DONE,
}
"""Reboot. Its marker is `begun` in the live domain and `restarted` in the definition: the boot
itself commits it, no matter who starts the domain."""

UNFORESEEN: _Table = {
    (DomainState.OFF, None): Do.MARK,
    (DomainState.CRASHED, None): Do.MARK,
    (DomainState.CRASHED, MarkerPhase.BEGUN): Do.POWER_OFF,
    (DomainState.OFF, MarkerPhase.RESTARTED): Do.START,
    (DomainState.PAUSED, MarkerPhase.RESTARTED): Do.RESUME,
    (DomainState.RUNNING, MarkerPhase.RESTARTED): Do.DONE,
    (DomainState.RUNNING, None): Do.DONE,
}
"""Reboot of a machine that has failed: one that came up again by itself is left as it is."""

TABLES: Mapping[Act, _Table] = {Act.PAUSE: PAUSE, Act.REBOOT: REBOOT}


def _by_table(order: Order, host: HostSight, domain: DomainSight, past: Past) -> Step:
    marker = domain.marker if order.owns(domain.marker) else None
    phase = marker.phase if marker is not None else None
    table = UNFORESEEN if order.unforeseen and order.act is Act.REBOOT else TABLES[order.act]
    do = table.get((domain.state, phase))
    if do is Do.DONE:
        return Step(do=Do.DONE, message="; ".join(past.notes))
    stopping = past.stopping and domain.state is DomainState.RUNNING and do is not Do.SYNC_TIME
    why = "" if marker is not None else _unfit(order, domain)
    if do is Do.MARK and domain.state is DomainState.RUNNING and past.pressed_first is not None:
        return Step(do=Do.DONE, message=f"somebody has started it on {host.name}")
    if do is None:
        why = _unexpected(domain, phase)
    elif stopping:
        why = f"reached its time limit; it runs on {host.name}"
    if do is None or why:
        return Step(do=Do.FAIL, message=why)
    if marker is not None and (unmarked := _given_up(past, Do.MARK, host.name)):
        # The disk is full, perhaps. What this operation took down comes up all the same.
        back = {DomainState.PAUSED: Do.RESUME, DomainState.OFF: Do.START}.get(domain.state)
        if back is None:
            return Step(do=Do.FAIL, message=unmarked)
        do = back
    elif do is not Do.MARK and marker is not None and marker.attempt != order.attempt:
        return _mark(order, host, replace(marker, attempt=order.attempt))
    return _timed(order, host, do, phase, past)


def _timed(order: Order, host: HostSight, do: Do, phase: MarkerPhase | None, past: Past) -> Step:
    """Return the step that a table names, or one that has to come before it."""
    match do:
        case Do.MARK:
            phase = MarkerPhase.PAUSED if phase is MarkerPhase.BEGUN else MarkerPhase.BEGUN
            return _mark(order, host, order.marker(phase, host.name))
        case Do.PRESS:
            return _shut_down(order, host.name, past)
        case Do.START if order.host_boot_id and not past.stopping:
            if host.boot_id in {"", order.host_boot_id}:
                return Step(do=Do.WAIT, seconds=RETRY_EVERY_SECONDS, message="waits for its host")
        case Do.RESUME if order.act is Act.PAUSE:
            return _resume_in_time(order, host, past)
        case Do.SYNC_TIME if past.time_set or past.stopping:
            return _mark(order, host, order.marker(MarkerPhase.DONE, host.name))
    return Step(do=do, host=host.name)


def _unexpected(domain: DomainSight, phase: MarkerPhase | None) -> str:
    if phase is None:
        return f"is {domain.state}; it was not touched"
    return f"is {domain.state}, though this task has {phase} it; it was left so"


def _unfit(order: Order, domain: DomainSight) -> str:
    if order.act is not Act.REBOOT:
        return ""
    if not domain.persistent:
        return "is transient: it would be gone once it is off"
    if domain.restarts_on_poweroff and domain.state is DomainState.RUNNING:
        return "has on_poweroff = restart: its power button cannot turn it off"
    return ""


def _mark(order: Order, host: HostSight, live: Marker) -> Step:
    config = live
    if order.act is Act.REBOOT:
        config = replace(live, phase=MarkerPhase.RESTARTED)
    seen = host.domain.marker if host.domain is not None else None
    return Step(do=Do.MARK, host=host.name, live=live, config=config, seen=seen)


def _resume_in_time(order: Order, host: HostSight, past: Past) -> Step:
    """Resume once the pause was long enough; at once where an earlier run paused it."""
    if past.paused_at is not None and not past.stopping:
        left = past.paused_at + order.pause_seconds - past.now
        if left > 0:
            return Step(do=Do.WAIT, seconds=left, message="paused")
    return Step(do=Do.RESUME, host=host.name)


def _shut_down(order: Order, host: str, past: Past) -> Step:
    if past.pressed_first is None or past.pressed_last is None:
        return Step(do=Do.PRESS, host=host)
    if past.now - past.pressed_first >= order.shutdown_seconds:
        if order.force:
            return Step(do=Do.POWER_OFF, host=host)
        failure = past.failed(Do.PRESS)
        why = f": {failure.message}" if failure is not None else ""
        message = f"did not shut down in {order.shutdown_seconds:g} s{why}; it runs on {host}"
        return Step(do=Do.FAIL, message=message)
    if past.now - past.pressed_last >= PRESS_EVERY_SECONDS:
        return Step(do=Do.PRESS, host=host)
    return Step(do=Do.WAIT, seconds=LOOK_AGAIN_SECONDS, message="waiting until it is off")


# Deletion: nothing of it is left on any host.


def _delete(order: Order, hosts: tuple[HostSight, ...], past: Past) -> Step:
    host, domain = max(_found(hosts), key=lambda each: each[1].active)
    if past.stopping:
        where = f"{domain.state} on {host.name}"
        return Step(do=Do.FAIL, message=f"reached its time limit; it is {where}")
    marker = domain.marker
    if marker is None or not order.owns(marker) or marker.attempt != order.attempt:
        return _mark(order, host, order.marker(MarkerPhase.BEGUN, host.name))
    if order.delete_disks and not domain.persistent:
        return Step(do=Do.DEFINE, host=host.name)
    if domain.active:
        return Step(do=Do.POWER_OFF, host=host.name)
    if order.delete_disks and not past.disks_deleted:
        return Step(do=Do.DELETE_DISKS, host=host.name)
    return Step(do=Do.UNDEFINE, host=host.name)


# Moves: from the source, which the marker remembers, to a host that is fit for the machine.


def obstacle(order: Order, host: HostSight, source: HostSight, domain: DomainSight) -> str:
    """Return the reason why a host cannot take a machine in; "" if it can."""
    if not host.answers:
        return f"does not answer: {host.why}"
    if host.name == source.name or (host.host_id and host.host_id == source.host_id):
        return "is the current host of the machine"
    if host.name in order.closed_hosts:
        return "is closed for machines"
    if not host.target:
        return "has targets = false in the settings"
    if host.domain is not None:
        return "has a definition of this machine already"
    if host.name_taken:
        return f"has another machine named {domain.name}"
    if host.free_memory_mib < domain.memory_mib:
        return f"has {host.free_memory_mib} MiB free of {domain.memory_mib}"
    return ""


def _target(
    order: Order,
    hosts: tuple[HostSight, ...],
    source: HostSight,
    domain: DomainSight,
    preferred: str,
) -> tuple[str, str]:
    """Return the host to move to; or "", and why there is none."""
    if domain.saved:
        # libvirt would leave the file behind, and restore that memory over newer disks when the
        # machine is back one day.
        return (
            "",
            "no host to move to: its saved state would stay behind (virsh managedsave-remove)",
        )
    if order.to_host:
        known = next((host for host in hosts if host.name == order.to_host), None)
        why = "is not in the settings" if known is None else obstacle(order, known, source, domain)
        return ("", f"cannot move to {order.to_host}: it {why}") if why else (order.to_host, "")
    whys = {host.name: obstacle(order, host, source, domain) for host in hosts}
    fit = [host for host in hosts if not whys[host.name]]
    if not fit:
        said = "; ".join(f"{name} {why}" for name, why in whys.items() if name != source.name)
        return "", f"no host to move to: {said or 'there is no other host'}"
    best = max(fit, key=lambda host: (host.name == preferred, host.free_memory_mib))
    return best.name, ""


def _move(order: Order, hosts: tuple[HostSight, ...], past: Past) -> Step:
    found = _found(hosts)
    markers = [(host, domain.marker) for host, domain in found]
    marked = [(host, m) for host, m in markers if m is not None and order.owns(m)]
    active = [(host, domain) for host, domain in found if domain.active]
    if not marked:
        if len(active) > 1:  # handed over by a migration that is not ours
            return _patient(order, past, _doubled(active))
        return _begin_move(order, hosts, past)
    source = next((m.source for _, m in marked if m.source), marked[0][0].name)
    if len(active) > 1:
        return _handed_over(order, active, source, past)
    if not active:
        step = _move_off(order, hosts, source, past)
    elif active[0][0].name != source:
        step = _arrived(order, hosts, active[0], source, past)
    else:
        step = _at_source(order, hosts, active[0], past)
    return _autostarting(step, *marked[0], past) if len(marked) == 1 else step


def _autostarting(step: Step, host: HostSight, marker: Marker, past: Past) -> Step:
    """Make the only copy start with its host before the end, if it did so before the move."""
    domain = host.domain
    assert domain is not None
    lost = marker.autostart and domain.persistent and not domain.autostart
    if step.do not in {Do.DONE, Do.FAIL} or not lost:
        return step
    if why := _given_up(past, Do.AUTOSTART, host.name):
        return replace(step, message=f"{step.message}; {why}")
    return Step(do=Do.AUTOSTART, host=host.name)


def _begin_move(order: Order, hosts: tuple[HostSight, ...], past: Past) -> Step:
    found = _found(hosts)
    active = [each for each in found if each[1].active]
    known = active or found
    if len(known) > 1:
        return Step(do=Do.FAIL, message=_ambiguous(known))
    host, domain = known[0]
    if order.to_host == host.name:
        return Step(do=Do.DONE, message=f"it is on {host.name} already")
    if domain.state in {DomainState.PAUSED, DomainState.CRASHED}:
        return Step(do=Do.FAIL, message=_unexpected(domain, None))
    if not domain.persistent and order.way is MoveBy.COLD:
        return Step(do=Do.FAIL, message="is transient: it would be gone once it is off")
    if past.stopping:
        return Step(do=Do.FAIL, message="reached its time limit before it began; it is untouched")
    target, why = _target(order, hosts, host, domain, "")
    if not target:
        state = "runs" if domain.active else "is off"
        return Step(do=Do.FAIL, message=f"{why}; it {state} on {host.name}")
    phase = MarkerPhase.BEGUN if domain.active else MarkerPhase.OFFLINE
    if domain.active and order.way is MoveBy.COLD:
        phase = MarkerPhase.COLD
    marker = order.marker(phase, host.name, target, autostart=domain.autostart)
    return _mark(order, host, marker)


def _handed_over(order: Order, active: Found, source: str, past: Past) -> Step:
    """Judge two active copies; a migration left one or both of them paused."""
    left = next((each for each in active if each[0].name == source), None)
    there = next((each for each in active if each[0].name != source), None)
    if left is not None and there is not None:
        moved = there[1].state is DomainState.RUNNING and left[1].handed_over
        if moved and order.owns(there[1].marker) and order.owns(left[1].marker):
            # libvirt asks its caller to confirm, and the caller was killed: this is its last step.
            return Step(do=Do.POWER_OFF, host=source)
    return _patient(order, past, _doubled(active))


def _arrived(
    order: Order,
    hosts: tuple[HostSight, ...],
    there: tuple[HostSight, DomainSight],
    source: str,
    past: Past,
) -> Step:
    host, domain = there
    if domain.state is DomainState.CRASHED:
        return Step(do=Do.FAIL, message=f"moved to {host.name} and crashed there")
    dark = _dark(tuple(each for each in hosts if each.name == source))
    if dark and not past.moved and (domain.state is not DomainState.PAUSED or domain.handed_over):
        # Its other copy may run, or a definition that was left there start with its host.
        return _patient(order, past, f"is on {host.name}, and may be at its source too: {dark}")
    if domain.state is DomainState.PAUSED:
        return Step(do=Do.RESUME, host=host.name)
    for other, left in _found(hosts):
        if other.name != host.name and order.owns(left.marker):
            return Step(do=Do.UNDEFINE, host=other.name)
    notes = (f"moved to {host.name}", *past.notes)
    return Step(do=Do.DONE, message="; ".join(notes))


def _at_source(
    order: Order, hosts: tuple[HostSight, ...], here: tuple[HostSight, DomainSight], past: Past
) -> Step:
    host, domain = here
    marker = domain.marker
    assert marker is not None
    if domain.state is DomainState.CRASHED:
        return Step(do=Do.FAIL, message=f"crashed on {host.name} before it had moved")
    if domain.state is DomainState.PAUSED:
        dark = tuple(each for each in hosts if each.name == marker.target and not each.answers)
        if domain.handed_over and dark:
            return _patient(order, past, f"is paused by its move, and {_dark(dark)}")
        return Step(do=Do.RESUME, host=host.name)
    cold = marker.phase is MarkerPhase.COLD or past.failed(Do.MIGRATE) is not None
    target, why = _target(order, hosts, host, domain, marker.target)
    for other, left in _found(hosts):
        if other.name != host.name and not left.active and order.owns(left.marker):
            return Step(do=Do.UNDEFINE, host=other.name)  # of a cold move whose answer was lost
    if why := _stays(order, domain, marker, past) or why:
        return Step(do=Do.FAIL, message=f"{why}; it runs on {host.name}")
    phase = MarkerPhase.COLD if cold else MarkerPhase.BEGUN
    wanted = order.marker(phase, host.name, target, autostart=marker.autostart)
    if marker != wanted:
        return _mark(order, host, wanted)
    if cold:
        return _shut_down(order, host.name, past)
    return Step(do=Do.MIGRATE, host=host.name, target=target)


def _stays(order: Order, domain: DomainSight, marker: Marker, past: Past) -> str:
    """Return the reason for giving up a machine that runs at its source; "" to go on."""
    if past.stopping:
        return "reached its time limit"
    if why := _given_up(past, Do.MARK, marker.source):
        return why
    if (failure := past.failed(Do.MOVE_DEFINITION) or past.failed(Do.START)) is not None:
        return f"could not move: {failure.message}"
    if past.started_on:
        return "could not move: no host could take it any more while it was off"
    failure = past.failed(Do.MIGRATE)
    if failure is None or marker.phase is MarkerPhase.COLD:
        return ""
    if order.way is MoveBy.LIVE:
        return f"could not migrate: {failure.message}"
    if not domain.persistent:
        return f"could not migrate: {failure.message}; is transient: it cannot move while it is off"
    return ""


def _may_have_started(
    order: Order, marker: Marker, source: str, past: Past, *, is_at_source: bool
) -> set[str]:
    """Return the hosts on which a machine that is off here may run, if they do not answer.

    A move whose answer was lost may leave a definition on both hosts. So the host counts on which
    this run has started the machine, and any that an earlier run was to move it to.
    """
    started = {past.started_on, *(each.host for each in past.failures if each.do is Do.START)}
    if is_at_source:
        return started - {source} | ({marker.target} if order.again else set())
    return {source} if source in started or not past.moved else set()


def _move_off(order: Order, hosts: tuple[HostSight, ...], source: str, past: Past) -> Step:
    """Go on with a machine that is off and has our marker."""
    found = _found(hosts)
    at_source = next((each for each in found if each[0].name == source), None)
    others = [each for each in found if each[0].name != source and order.owns(each[1].marker)]
    marker = next(d.marker for _, d in found if d.marker is not None and order.owns(d.marker))
    starts = marker.phase is MarkerPhase.COLD
    migrates = marker.phase is MarkerPhase.BEGUN
    if others and at_source is not None and not migrates:
        return Step(do=Do.UNDEFINE, host=source)
    suspects = {source, marker.target}  # the migration may be over, with a definition left behind
    if not migrates:
        suspects = _may_have_started(
            order, marker, source, past, is_at_source=at_source is not None
        )
    where = ", ".join(host.name for host, _ in found)
    if dark := _dark(tuple(each for each in hosts if each.name in suspects)):
        return _patient(order, past, f"is off on {where}, and may run elsewhere: {dark}")
    if migrates:
        return Step(do=Do.FAIL, message=f"went off by itself while it moved; it is on {where}")
    if others:
        host = others[0][0]
        if not starts:
            return Step(do=Do.DONE, message=f"moved to {host.name}; it is off, as it was")
        back = next((each for each in hosts if each.name == source and each.answers), None)
        refused = [each for each in past.failures if (each.do, each.host) == (Do.START, host.name)]
        if len(refused) >= TRIES[Do.START] // 2 and back is not None:
            return Step(do=Do.MOVE_DEFINITION, host=host.name, target=source)
        return Step(do=Do.START, host=host.name)
    assert at_source is not None
    host, domain = at_source
    refused_move = past.failed(Do.MOVE_DEFINITION)
    target, why = _target(order, hosts, host, domain, marker.target)
    why = _given_up(past, Do.MARK, source) or why
    tried = refused_move is not None or past.failed(Do.START) is not None
    if target and not (why or tried or past.stopping):
        if marker.attempt != order.attempt:
            return _mark(order, host, replace(marker, attempt=order.attempt))
        return Step(do=Do.MOVE_DEFINITION, host=host.name, target=target)
    if starts:
        return Step(do=Do.START, host=host.name)
    why = refused_move.message if refused_move is not None else why or "reached its time limit"
    return Step(do=Do.FAIL, message=f"could not move: {why}; it is off on {host.name}, as it was")

"""The check of a maintenance: it has to pass after a unit has ended, before a further one goes.

A check only looks: a program or a URL of the service's settings. `due` says that it has to pass;
`begun`, `ended` and `released` return the maintenance after a run. One run is under way at a time:
it has a number, so that a stale result is dropped, and a lease, so that another replica runs the
check again when the first one is lost. A lost run is not a failed try.

The tries are spread over the policy's `check_within_seconds`: each begins when its turn has come
and may take until the next one's. When all have failed, the maintenance halts; an operator who
resumes it starts the check again.
"""

from datetime import datetime, timedelta

import msgspec

from forewarn.maintenance.model import Maintenance
from forewarn.maintenance.units import CheckProgress

replace = msgspec.structs.replace


class CheckRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a maintenance's check, to be carried out by the replica that noted it."""

    maintenance: int
    number: int
    name: str
    wave: int
    """The maintenance's wave, from 1."""
    began_at: datetime
    seconds: float
    """The longest that it may take, in the service's time."""


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run."""

    passed: bool
    message: str = ""


def interval(maintenance: Maintenance) -> timedelta:
    """Return the time from the beginning of one try to that of the next."""
    policy = maintenance.policy
    return timedelta(seconds=policy.check_within_seconds / policy.check_tries)


def needed(maintenance: Maintenance) -> Maintenance:
    """Return the maintenance after a unit has ended: its check has to pass, if it has one."""
    if not maintenance.policy.check:
        return maintenance
    return _put(maintenance, due=True)


def needed_after_pause(maintenance: Maintenance) -> Maintenance:
    """Return the maintenance after a pause between two waves: what passed before it is old."""
    passed_at, wave_at = maintenance.check.passed_at, maintenance.wave_at
    pause = maintenance.policy.pause_seconds
    if pause <= 0 or maintenance.confirmed or wave_at is None:
        return maintenance
    over_at = wave_at + timedelta(seconds=pause)
    return maintenance if passed_at is not None and passed_at >= over_at else needed(maintenance)


def blocks(maintenance: Maintenance) -> bool:
    """Return True if no unit may go before the check has passed."""
    return maintenance.check.due or maintenance.check.lease_until is not None


def waits_until(maintenance: Maintenance, now: datetime) -> datetime | None:
    """Return the time to look at the check again; None where the next run is to begin now."""
    progress = maintenance.check
    if progress.lease_until is not None and progress.lease_until > now:
        return progress.lease_until
    if progress.failed and progress.lease_until is None and progress.began_at is not None:
        at = progress.began_at + interval(maintenance)
        return at if at > now else None
    return None


def next_run(maintenance: Maintenance, now: datetime) -> CheckRun:
    """Return the run that is to begin now."""
    return CheckRun(
        maintenance=maintenance.number,
        number=maintenance.check.run + 1,
        name=maintenance.policy.check,
        wave=maintenance.wave + 1,
        began_at=now,
        seconds=interval(maintenance).total_seconds(),
    )


def begun(maintenance: Maintenance, run: CheckRun, replica: str, margin: timedelta) -> Maintenance:
    """Return the maintenance once a replica is to carry out a run.

    `margin` is the time for which its result is awaited beyond the longest run.
    """
    lease_until = run.began_at + timedelta(seconds=run.seconds) + margin
    return _put(
        maintenance,
        due=False,
        run=run.number,
        replica=replica,
        began_at=run.began_at,
        lease_until=lease_until,
    )


def ended(maintenance: Maintenance, number: int, result: CheckResult) -> Maintenance:
    """Return the maintenance after a run; unchanged if that run is no longer under way."""
    progress = maintenance.check
    if number != progress.run or progress.lease_until is None:
        return maintenance
    if result.passed:
        return _put(maintenance, failed=0, reason="", lease_until=None, passed_at=progress.began_at)
    failed = progress.failed + 1
    return _put(maintenance, due=True, failed=failed, reason=result.message, lease_until=None)


def released(maintenance: Maintenance) -> Maintenance:
    """Return the maintenance after the replica that ran its check was lost: it has to run again."""
    if maintenance.check.lease_until is None:
        return maintenance
    return _put(maintenance, due=True, lease_until=None)


def begin_again(maintenance: Maintenance) -> Maintenance:
    """Return the maintenance with all tries before it, if its check has not passed yet."""
    return _put(maintenance, failed=0, reason="")


def _put(maintenance: Maintenance, **fields: object) -> Maintenance:
    progress: CheckProgress = replace(maintenance.check, **fields)
    return maintenance if progress == maintenance.check else replace(maintenance, check=progress)

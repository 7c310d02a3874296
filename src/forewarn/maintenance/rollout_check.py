"""The check of a rollout: what has to pass after a unit has ended, before a further one goes.

A check only looks: a program or a URL of the service's settings. `due` says what follows for it;
`begun`, `ended` and `released` return the rollout after a run. One run is under way at a time: it
has a number, so that a stale result is dropped, and a lease, so that another replica runs the check
again when whoever ran it is lost. A lost run is no failed try.

The tries are spread over the policy's `check_within_seconds`: each begins when its turn has come
and may take until the next one's. When all have failed, the rollout halts; an operator who resumes
it has the check run again.
"""

from datetime import datetime, timedelta

import msgspec

from forewarn.maintenance.rollout_model import CheckProgress, Rollout

replace = msgspec.structs.replace


class CheckRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a rollout's check, to be carried out by whoever noted it."""

    rollout: int
    number: int
    """Of this run, among those of the rollout."""
    name: str
    """Of the check in the settings."""
    wave: int
    """The rollout's wave, from 1."""
    began_at: datetime
    seconds: float
    """How long it may take, in the service's time."""


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended."""

    passed: bool
    message: str = ""
    """Why it failed."""


def interval(rollout: Rollout) -> timedelta:
    """Return the time from the beginning of one try to that of the next."""
    policy = rollout.policy
    return timedelta(seconds=policy.check_within_seconds / policy.check_tries)


def needed(rollout: Rollout) -> Rollout:
    """Return the rollout after a unit has ended: its check has to pass, if it has one."""
    if not rollout.policy.check:
        return rollout
    return _put(rollout, due=True)


def needed_after_pause(rollout: Rollout) -> Rollout:
    """Return the rollout once a pause between two waves is over: what passed before it is old."""
    passed_at, wave_at = rollout.check.passed_at, rollout.wave_at
    pause = rollout.policy.pause_seconds
    if pause <= 0 or rollout.confirmed or wave_at is None:
        return rollout
    over_at = wave_at + timedelta(seconds=pause)
    return rollout if passed_at is not None and passed_at >= over_at else needed(rollout)


def blocks(rollout: Rollout) -> bool:
    """Return whether no unit may go before the check has passed."""
    return rollout.check.due or rollout.check.lease_until is not None


def waits_until(rollout: Rollout, now: datetime) -> datetime | None:
    """Return when to look at the check again; None where the next run is to begin now."""
    progress = rollout.check
    if progress.lease_until is not None and progress.lease_until > now:
        return progress.lease_until
    if progress.failed and progress.lease_until is None and progress.began_at is not None:
        at = progress.began_at + interval(rollout)
        return at if at > now else None
    return None


def next_run(rollout: Rollout, now: datetime) -> CheckRun:
    """Return the run that is to begin now."""
    return CheckRun(
        rollout=rollout.number,
        number=rollout.check.run + 1,
        name=rollout.policy.check,
        wave=rollout.wave + 1,
        began_at=now,
        seconds=interval(rollout).total_seconds(),
    )


def begun(rollout: Rollout, run: CheckRun, replica: str, margin: timedelta) -> Rollout:
    """Return the rollout once a replica is to carry out a run.

    `margin` is how much longer than the run may take its result is waited for.
    """
    lease_until = run.began_at + timedelta(seconds=run.seconds) + margin
    return _put(
        rollout,
        due=False,
        run=run.number,
        replica=replica,
        began_at=run.began_at,
        lease_until=lease_until,
    )


def ended(rollout: Rollout, number: int, result: CheckResult) -> Rollout:
    """Return the rollout after a run; the same if that run is not under way any more."""
    progress = rollout.check
    if number != progress.run or progress.lease_until is None:
        return rollout
    if result.passed:
        return _put(rollout, failed=0, reason="", lease_until=None, passed_at=progress.began_at)
    failed = progress.failed + 1
    return _put(rollout, due=True, failed=failed, reason=result.message, lease_until=None)


def released(rollout: Rollout) -> Rollout:
    """Return the rollout after whoever ran its check was lost: it has to run again."""
    if rollout.check.lease_until is None:
        return rollout
    return _put(rollout, due=True, lease_until=None)


def begin_again(rollout: Rollout) -> Rollout:
    """Return the rollout with all tries before it, if its check has not passed yet."""
    return _put(rollout, failed=0, reason="")


def _put(rollout: Rollout, **fields: object) -> Rollout:
    progress: CheckProgress = replace(rollout.check, **fields)
    return rollout if progress == rollout.check else replace(rollout, check=progress)

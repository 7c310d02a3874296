"""The service, broken on purpose.

    python -m kills.served CONFIG    serves until it is killed

Each break is what a plausible mistake would do, so that the judge can be seen to see it:
`--break NAME` runs the rounds with one.
"""

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

VARIABLE: Final = "FOREWARN_KILLS_BREAK"


def instead(owner: Any, name: str, broken: Any) -> Any:
    """Put a broken one in the place of what there is; return the whole one."""
    whole = getattr(owner, name)  # one that is not there any more breaks nothing
    setattr(owner, name, broken)
    return whole


def answer_before_commit() -> None:
    """Answer each job, and tell the guests, when it is decided; the commit follows."""
    from forewarn.control.changefeed import Reached
    from forewarn.control.unit_of_work import UnitOfWork
    from forewarn.control.writer import Waiting, Writer
    from forewarn.maintenance.model import Refused

    def hasty(self: Writer, batch: Sequence[Waiting]) -> None:
        follower = self._follower
        with follower._lock, self._store.write() as transaction:
            for job, future in batch:
                unit = UnitOfWork(transaction, follower._world, self._clock.now())
                try:
                    result = unit.answer(job)
                    unit.save()
                except Exception as error:  # noqa: BLE001 - as the whole one does
                    future.set_exception(error)
                    continue
                if isinstance(result, Refused):
                    future.set_exception(result)
                    continue
                follower.feed.publish(unit.saved, Reached(follower.applied.sequence))
                future.set_result(result)
        follower._world.settle()

    instead(Writer, "commit", hasty)


def skip_check() -> None:
    """Carry a task out without a look at what earlier attempts have done."""
    from forewarn.connectors import command
    from forewarn.connectors.port import Found, Task

    async def check(_: command.CommandConnector, __: Task) -> Found:
        return Found.NOT_DONE

    def of(_: command.TaskRuns, __: Task) -> list[command.TaskRun]:
        return []

    instead(command.CommandConnector, "check", check)
    instead(command.TaskRuns, "of", of)


def forget_fencing() -> None:
    """Let a task be claimed while another holds it, and take the result of any attempt."""
    import msgspec

    from forewarn.connectors import command
    from forewarn.maintenance import commands, model, transitions, world

    def claimable(self: world.World, now: datetime, limit: int) -> list[str]:
        assert now.tzinfo
        return [*self.started][:limit]

    def claim(on: transitions.Transitions, operations: Iterable[str], *more: Any) -> Iterable[str]:
        for name in operations:
            on.put(msgspec.structs.replace(on.named(name), lease_until=None))
        return whole_claim(on, operations, *more)

    def claimed(self: transitions.Transitions, operation_id: str, attempt: int) -> model.Operation:
        assert attempt
        return self.named(operation_id)

    def make(
        self: command.TaskRuns, task: Any, subject: str, *, check: bool
    ) -> tuple[command.TaskRun, int]:
        self._latest.clear()
        return whole_make(self, task, subject, check=check)

    whole_claim = instead(commands, "claim_tasks", claim)
    whole_make = instead(command.TaskRuns, "_make", make)
    instead(world.World, "claimable", claimable)
    instead(transitions.Transitions, "claimed", claimed)


def forget_holds() -> None:
    """Let go of whatever was held, at each start: as if holds were kept in memory alone."""
    from forewarn.control import plane
    from forewarn.control.unit_of_work import UnitOfWork
    from forewarn.maintenance import commands

    def release_claims(self: plane.Plane, *executor: str, alone: bool = True) -> "Future[int]":
        def job(unit: UnitOfWork) -> None:
            for hold in unit.world.holds_in_order():
                self._decide(unit, commands.release_hold, hold)

        self.writer.submit(job).result()
        return whole(self, *executor, alone=alone)

    whole = instead(plane.Plane, "release_claims", release_claims)


def forget(verb: str, only: str = "") -> None:
    """Answer what the plane is asked by this verb, and write it down nowhere.

    Args:
        verb: The method's name.
        only: The named argument that must be true; `""` for any call.
    """
    from forewarn.control import plane, writer
    from forewarn.control.unit_of_work import UnitOfWork

    class Forgetful:
        def __init__(self, inner: writer.Writer) -> None:
            self._inner = inner

        def submit(self, job: writer.Job, *needs: Any) -> "Future[Any]":
            def forget(unit: UnitOfWork) -> Any:
                with unit.world.supposing():
                    return job(unit)

            return self._inner.submit(forget, *needs)

    def forgetful(self: plane.Plane, *args: Any, **kwargs: Any) -> Any:
        if only and not kwargs.get(only):
            return whole(self, *args, **kwargs)
        inner = self.writer
        self.writer = Forgetful(inner)  # type: ignore[assignment]  # the break
        try:
            return whole(self, *args, **kwargs)
        finally:
            self.writer = inner

    whole = instead(plane.Plane, verb, forgetful)


def forget_domains() -> None:
    """Let all update domains of a scope be announced, and be down, at once."""
    from forewarn.maintenance import invariants, transitions

    instead(transitions.Transitions, "_elsewhere", staticmethod(lambda *_: []))
    instead(invariants, "_check_domains", lambda *_: None)


def forget_queue() -> None:
    """Announce what takes an update domain while another is announced."""
    from forewarn.maintenance import transitions

    instead(transitions.Transitions, "_ahead", lambda *_: None)


BREAKS: Final[Mapping[str, Callable[[], None]]] = MappingProxyType(
    {
        "answer-before-commit": answer_before_commit,
        "skip-check": skip_check,
        "forget-fencing": forget_fencing,
        "forget-hold": forget_holds,
        "forget-cancel": partial(forget, "cancel"),
        "forget-postpone": partial(forget, "postpone"),
        "forget-approval": partial(forget, "approve_for_guests"),
        "forget-fleet": partial(forget, "apply_fleet", only="again"),
        "forget-domains": forget_domains,
        "forget-queue": forget_queue,
    }
)


def serve(config: Path) -> int:
    """Serve as the command line does, with the break that is asked for."""
    from forewarn.server import run, settings

    BREAKS[os.environ[VARIABLE]]()
    return run.serve(settings.load(config, os.environ))


if __name__ == "__main__":
    sys.exit(serve(Path(sys.argv[1])))

"""The service broken on purpose, so that the judge can be seen to see it.

Each break is what a plausible mistake would do; `make kill BREAK=NAME` runs the rounds with one.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

VARIABLE: Final = "FOREWARN_KILLS_BREAK"


def apply(name: str) -> None:
    """Break the service in this process; `""` leaves it whole."""
    if name:
        BREAKS[name]()


def answer_before_commit() -> None:
    """Answer each job, and tell the guests, when it is decided; the commit follows."""
    from forewarn.control import writer

    class Hasty(writer._Committer):
        def commit(self, batch: Sequence[tuple[writer.Job, "Future[Any]"]]) -> None:
            with self._store.write() as transaction:
                now = self._clock.now()
                for job, future in batch:
                    try:
                        work = job(transaction, now)
                    except Exception as error:  # noqa: BLE001 - as the whole one does
                        future.set_exception(error)
                        continue
                    if work.changes:
                        transaction.save(work.changes)
                        self._feed.publish(work.changes)
                    future.set_result(work.result)

    writer._Committer = Hasty  # type: ignore[misc]  # that is the break


def skip_check() -> None:
    """Carry an act out without a look at what earlier attempts have done."""
    from forewarn.connectors import command, runs
    from forewarn.connectors.port import Act, Found

    async def check(_: command.Command, __: Act) -> Found:
        return Found.NOT_DONE

    def of(_: runs.Runs, __: Act) -> list[runs.Run]:
        return []

    command.Command.check = check  # type: ignore[assignment]  # that is the break
    runs.Runs.of = of  # type: ignore[method-assign]  # that is the break


def forget_fencing() -> None:
    """Let an act be claimed while another holds it, and take the result of any attempt."""
    import msgspec
    from sqlalchemy import select

    from forewarn.connectors import runs
    from forewarn.maintenance import bench, carrying, causes, model
    from forewarn.store import reading, tables

    def claimable(
        self: reading.SqlReading, now: datetime, limit: int
    ) -> dict[str, model.Operation]:
        assert now.tzinfo
        statement = select(tables.operations).where(reading._to_carry_out).limit(limit)
        return self._operations_of(statement)

    def claim(on: bench.Bench, cause: causes.Claimed) -> list[str]:
        for name in cause.operations:
            on.put(msgspec.structs.replace(on.named(name), lease_until=None))
        return whole_claim(on, cause)

    def claimed(self: bench.Bench, operation_id: str, attempt: int) -> model.Operation:
        assert attempt
        return self.named(operation_id)

    def make(self: runs.Runs, act: Any, subject: str, *, check: bool) -> tuple[runs.Run, int]:
        self._latest.clear()
        return whole_make(self, act, subject, check=check)

    whole_claim, carrying._claim = carrying._claim, claim
    whole_make, runs.Runs._make = runs.Runs._make, make  # type: ignore[method-assign]
    reading.SqlReading.claimable = claimable  # type: ignore[method-assign]
    bench.Bench.claimed = claimed  # type: ignore[method-assign]


BREAKS: Final[Mapping[str, Callable[[], None]]] = MappingProxyType(
    {
        "answer-before-commit": answer_before_commit,
        "skip-check": skip_check,
        "forget-fencing": forget_fencing,
    }
)

"""A writer over a store in memory that answers at once, and can die just before the commit."""

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

from forewarn.clock import ManualClock
from forewarn.control.changefeed import Changefeed, Reached
from forewarn.control.outbox import Follower, state_of
from forewarn.control.unit_of_work import Job, UnitOfWork
from forewarn.maintenance.model import Changes, Refused
from forewarn.maintenance.world import World
from forewarn.store.sqlite import InMemoryStore
from simulation.turn_judge import Wrong
from store.model import Model
from store.values import misfiled


class Answered:
    """A future that has its answer already: a real one costs more than the decision."""

    __slots__ = ("_answer", "error")

    def __init__(self, answer: Any, error: Exception | None) -> None:
        self._answer = answer
        self.error = error

    def result(self) -> Any:
        if self.error is not None:
            raise self.error
        return self._answer

    def exception(self) -> Exception | None:
        return self.error

    def add_done_callback(self, tell: Callable[["Answered"], object]) -> None:
        tell(self)


class Crashed(Exception):  # noqa: N818 - what happened, not a mistake
    """The process died just before the commit: no answer, and nothing is changed."""


class Defect(Exception):  # noqa: N818 - what happened
    """A job raised: nothing of it is kept, and the process goes on."""


class JudgedUnit(UnitOfWork):
    """Has each change judged before it is saved; a job may make several."""

    def __init__(
        self, model: Model, judge: Callable[[Changes, datetime], None], *given: Any
    ) -> None:
        super().__init__(*given)
        self._model = model
        self._judge = judge

    def _tell(self, before: Any, changes: Changes) -> None:
        self._judge(changes, self.now)
        super()._tell(before, changes)
        self.save()
        self._model.save(changes)  # the next one is judged against it


class JudgedWriter:
    """Runs each job at once over a store in memory, `store`.

    Args:
        model: Has what is committed.
        clock: Tells the one `now` of a job.
        judge: Sees every change just before it is committed.
    """

    def __init__(
        self,
        model: Model,
        clock: Callable[[], datetime],
        judge: Callable[[Changes, datetime], None],
    ) -> None:
        self.store = InMemoryStore()
        self._model = model
        self._clock = clock
        self._judge = judge
        self.hear: Callable[[bytes], None] = lambda _: None
        """Is told the news of each change."""
        self._start()

    def _start(self) -> None:
        self.dying = self.raising = False
        self._reached: list[Reached] = []
        feed = Changefeed()
        feed.tell(self._reached.append)
        self._follower = Follower(
            self.store,
            feed,
            ManualClock(self._clock()),
            unit=partial(JudgedUnit, self._model, self._see),
        )
        with self.store.read() as reading:
            self._follower.begin(reading)

    @property
    def next_wakeup(self) -> datetime | None:
        """The follower's."""
        return self._follower.next_wakeup

    def restart(self) -> None:
        """Forget what the process had in memory, which was what the store has."""
        self.compare()
        self._start()

    def compare(self) -> None:
        """Compare what the process has in memory with what the store has.

        Raises:
            Wrong: They differ.
        """
        self._follower.transact([_compare], lambda _: self._clock())

    def submit(self, job: Job) -> Answered:
        now = self._clock()
        try:
            with self._model.transaction():
                (answer,) = self._follower.transact([job], lambda _: now)
                while self._reached:
                    self.hear(self._reached.pop().news or b"")
        except Exception as error:  # noqa: BLE001 - whoever asked reads it
            return Answered(None, error)
        return Answered(None, answer) if isinstance(answer, Refused) else Answered(answer, None)

    def _see(self, changes: Changes, now: datetime) -> None:
        if self.dying:
            raise Crashed  # what was written is undone
        if self.raising:
            self.raising = False
            raise Defect
        self._judge(changes, now)

    def close(self) -> None:
        """Do nothing: nothing waits."""


def _compare(unit: UnitOfWork) -> None:
    stored = World(state_of(unit.store))
    for name, table in vars(stored).items():
        if isinstance(table, dict) and getattr(unit.world, name) != table:
            raise Wrong(f"in memory, {name} is not what the store has")
    if rows := misfiled(unit.store):
        raise Wrong(f"rows that no question finds: {rows}")

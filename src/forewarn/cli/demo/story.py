"""What happens in the demo: acts that are played side by side, and what must have come of them.

An act is a generator: it asks the service for something and yields until the stage shows what it
waits for. The stage is looked at anew between two turns.
"""

from collections.abc import Callable, Generator
from datetime import datetime, timedelta
from itertools import combinations, pairwise
from typing import Final

from forewarn.cli.demo import cast
from forewarn.cli.demo.stage import Stage
from forewarn.server.operator import schemas
from forewarn.vocabulary import EventStatus, EventType

Act = Generator[None, None, None]

LONGEST: Final = timedelta(minutes=60)
"""The longest that an act waits for one thing, in the service's time: notice and act twice over,
and 40 real seconds."""

PREEMPT_AHEAD: Final = timedelta(minutes=12)
"""A preemption's least notice is 30 s, which last a third of a second here: too short to be seen,
and for its guest on a busy machine. A later NotBefore may always be given."""

SECOND_THOUGHTS: Final = timedelta(minutes=5)
"""How long after the announcement the redeploy is called off."""

REASON: Final = "the new host is not ready"


class DemoFailed(Exception):  # noqa: N818 - the demo's end, told in one line
    """Something did not happen as it should."""


class Story:
    """The acts, and the maintenance that each asked for.

    Args:
        stage: Where they are played.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.walk = 0
        self.freeze = 0
        self.preemption = 0
        self.redeploy = 0

    def play(self) -> Act:
        """Play it all."""
        stage = self._stage
        yield from self._pause(timedelta(minutes=2))
        stage.tell("> Reboot of the availability set 'web': one request, domain after domain")
        self.walk = stage.schedule(EventType.REBOOT, scope="web")
        yield from together(self._until_over(self.walk), self._beside_the_last_step())
        yield from self._pause(timedelta(minutes=1))

    def _beside_the_last_step(self) -> Act:
        """Play the rest while nobody approves the last domain: its notice has room for it."""
        last = len(cast.WEB_DOMAINS)
        yield from self._until(
            lambda: len(self._stage.of(self.walk)) == last, "the walk did not come to its end"
        )
        yield from together(self._freeze(), self._preempt(), self._call_off())

    def _freeze(self) -> Act:
        yield from self._pause(timedelta(minutes=1))
        self._stage.tell(f"> Freeze of the host {cast.HOST}: one request, machines of three scopes")
        self.freeze = self._stage.schedule(EventType.FREEZE, host=cast.HOST, duration_seconds=5)
        yield from self._until_over(self.freeze)

    def _preempt(self) -> Act:
        stage = self._stage
        yield from self._pause(timedelta(minutes=2))
        stage.tell(f"> Preemption of the low-priority machine {cast.PREEMPTED}")
        at = (stage.now + PREEMPT_AHEAD).isoformat()
        self.preemption = stage.schedule(
            EventType.PREEMPT, machines=[cast.PREEMPTED], not_before=at
        )
        yield from self._until_over(self.preemption)
        stage.delete(cast.PREEMPTED)
        stage.tell(f"  {cast.PREEMPTED}: is gone")

    def _call_off(self) -> Act:
        stage = self._stage
        yield from self._pause(timedelta(minutes=3))
        stage.tell(f"> Redeploy of {cast.CANCELLED}, on second thoughts called off")
        self.redeploy = stage.schedule(EventType.REDEPLOY, machines=[cast.CANCELLED], source="User")
        yield from self._pause(SECOND_THOUGHTS)
        stage.cancel(self.redeploy, REASON)
        yield from self._until_over(self.redeploy)

    def _until_over(self, number: int) -> Act:
        stage = self._stage
        yield from self._until(lambda: stage.over(number), f"maintenance {number} was not over")

    def _pause(self, span: timedelta) -> Act:
        until = self._stage.now + span
        yield from self._until(lambda: self._stage.now >= until, "the service's clock stood still")

    def _until(self, true: Callable[[], bool], otherwise: str) -> Act:
        deadline = self._stage.now + LONGEST
        while not true():
            if self._stage.now > deadline:
                minutes = LONGEST // timedelta(minutes=1)
                raise DemoFailed(f"{otherwise} after {minutes} minutes of the service's time")
            yield

    def verdicts(self) -> list[str]:
        """Return what was checked and held.

        Raises:
            DemoFailed: Something did not.
        """
        operations = list(self._stage.operations.values())
        walked = self._stage.of(self.walk)
        return [
            judge_nothing_early(operations),
            judge_one_domain_at_a_time([*walked, *self._stage.of(self.freeze)]),
            judge_walk(walked),
            *self._approvals(),
            self._ends(),
        ]

    def _approvals(self) -> list[str]:
        """Check who let what start; a guest that was stopped by hand lets nothing start."""
        leaders = ("web-0", "web-1", "")
        steps = sorted(self._stage.of(self.walk), key=lambda o: o.announced_at)
        for operation, leader in zip(steps, leaders, strict=True):
            self._judge_approval(operation, operation.events[0], leader)
        for operation in self._stage.of(self.preemption):
            self._judge_approval(operation, operation.events[0], cast.PREEMPTED)
        (freeze,) = self._stage.of(self.freeze)
        named = {machine: event for event in freeze.events for machine in event.machines}
        if set(named) != set(cast.HOST_LEADERS):
            raise DemoFailed(f"the freeze of {cast.HOST} was one of {', '.join(named)}")
        for leader, event in named.items():
            self._judge_approval(freeze, event, leader)
        if self._stage.stopped_at:
            stopped = ", ".join(self._stage.stopped_at)
            return [f"events were approved by their guests, but for those stopped: {stopped}"]
        leaders_of_host = ", ".join(cast.HOST_LEADERS)
        return [
            "web-0 approved at once, web-1 once drained; for web-2 the whole notice was waited",
            f"{cast.PREEMPTED} approved its preemption",
            f"the freeze of {cast.HOST} began when all of {leaders_of_host} had approved",
        ]

    def _judge_approval(
        self, operation: schemas.Operation, event: schemas.Event, leader: str
    ) -> None:
        approval = event.approval
        by = approval.by if approval else ""
        if by == leader or (not by and leader in self._stage.stopped_at):
            return
        raise DemoFailed(
            f"{operation.event_type} {operation.id} was approved by {by or 'nobody'}, "
            f"not by {leader or 'nobody'}"
        )

    def _ends(self) -> str:
        for number in (self.walk, self.freeze, self.preemption):
            for operation in self._stage.of(number):
                if operation.status is not EventStatus.COMPLETED:
                    raise DemoFailed(f"operation {operation.id} is {operation.status}")
        for operation in self._stage.of(self.redeploy):
            if operation.status is not EventStatus.CANCELED or operation.started_at is not None:
                raise DemoFailed(f"the cancelled redeploy {operation.id} is {operation.status}")
        return "the cancelled redeploy never started; everything else was carried out"


def together(*acts: Act) -> Act:
    """Play acts side by side until all are over."""
    playing = list(acts)
    while playing:
        playing = [act for act in playing if next(act, playing) is not playing]
        yield


def judge_nothing_early(operations: list[schemas.Operation]) -> str:
    """Return that nothing started without approval before its NotBefore.

    Raises:
        DemoFailed: Something did.
    """
    for operation in operations:
        started = operation.started_at
        if started is None or started >= operation.not_before:
            continue
        words = [event.approval.at if event.approval else None for event in operation.events]
        if any(word is None or word > started for word in words):
            raise DemoFailed(f"operation {operation.id} started before its time, unapproved")
    return "nothing started before its NotBefore without its guests' approval"


def judge_one_domain_at_a_time(operations: list[schemas.Operation]) -> str:
    """Return that these operations, each in another update domain of 'web', never overlapped.

    Two may be in one domain: then they may overlap.

    Raises:
        DemoFailed: Two of them did.
    """
    spans: list[tuple[datetime, datetime, str, int]] = sorted(
        (o.started_at, o.ended_at, o.id, event.update_domain)
        for o in operations
        for event in o.events
        if o.started_at and o.ended_at and event.scope == "web"
    )
    for (_, ended, one, domain), (began, _, other, another) in combinations(spans, 2):
        if began < ended and domain != another:
            raise DemoFailed(f"operations {one} and {other} were down at once")
    return "no two update domains of 'web' were down at once"


def judge_walk(steps: list[schemas.Operation]) -> str:
    """Return that each step was announced when the one before it had ended well.

    Raises:
        DemoFailed: One was announced sooner, or after one that did not end well.
    """
    in_turn = sorted(steps, key=lambda step: step.announced_at)
    for before, step in pairwise(in_turn):
        well = before.status is EventStatus.COMPLETED and before.ended_at is not None
        if not well or (before.ended_at and step.announced_at < before.ended_at):
            raise DemoFailed(f"operation {step.id} was announced before {before.id} had ended well")
    return "each domain of the walk was announced when the one before it had ended well"

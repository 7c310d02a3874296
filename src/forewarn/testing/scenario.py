"""A scenario, played over the real rules, store and documents."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, assert_never

from forewarn.connectors.port import Outcome
from forewarn.control.plane import Plane
from forewarn.maintenance.model import Refused
from forewarn.maintenance.planner import Request
from forewarn.protocol import codec, document, versions
from forewarn.testing import judge
from forewarn.testing.script import Line, Scenario
from forewarn.testing.statements import (
    Applies,
    Approves,
    Asks,
    Attention,
    Ends,
    Fleets,
    Holds,
    Incarnation,
    Is,
    Jumps,
    Killed,
    OperatorSays,
    Removes,
    Schedules,
    Sees,
    Starts,
    Statement,
    Trusts,
    Walks,
)
from forewarn.testing.timeline import Entry, Sight
from forewarn.testing.world import BEGINNING, ServerDown, ServerKilled, World

EXPECTATIONS = (Sees, Is, Incarnation, Walks, Attention, Fleets)

TIME_PASSES = "time passes"
"""What the timeline says where nobody spoke: the ticker did what was due."""


class Broken(Exception):  # noqa: N818 - what was expected is broken, that is the error
    """A line of a scenario does not hold.

    Args:
        name: The file's name.
        line: The line.
        message: What is so instead.
    """

    def __init__(self, name: str, line: Line, message: str) -> None:
        super().__init__(f"{name}:{line.number}: {line.text}\n    but {message}")
        self.line = line.number
        self.message = message


def play(scenario: Scenario) -> Iterator[Entry]:
    """Play a scenario line by line; yield what happened, as it happens.

    Raises:
        Broken: A line does not hold; what came before it has been yielded.
    """
    yield from _Play(scenario).run()


class _Play:
    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._world = World(scenario.wanted, scenario.policy)
        self._seen: dict[str, document.Document] = {}

    def run(self) -> Iterator[Entry]:
        self._look()
        for line in self._scenario.lines:
            try:
                for _ in self._world.run_until(line.at, inclusive=not line.before_ticker):
                    yield self._entry(None, TIME_PASSES)
                self._say(line)
            except ServerDown as error:
                raise Broken(self._scenario.name, line, str(error)) from error
            yield self._entry(line.number, line.text)

    def _say(self, line: Line) -> None:
        """Let a line happen, or hold what it expects.

        Raises:
            Broken: It does not hold.
            ServerDown: It asks a server that is down.
        """
        if isinstance(line.statement, EXPECTATIONS):
            complaint = judge.complaint(self._world, line.statement)
            if complaint:
                raise Broken(self._scenario.name, line, complaint)
            return
        try:
            self._do(line.statement)
        except Refused as refusal:
            if refusal.code is not line.refused:
                message = f"it was refused as {refusal.code}: {refusal.message}"
                raise Broken(self._scenario.name, line, message) from refusal
        except ServerKilled:
            return  # the line before asked for it: nobody gets an answer, and nothing has changed
        except _Impossible as error:
            raise Broken(self._scenario.name, line, str(error)) from error
        else:
            if line.refused is not None:
                raise Broken(self._scenario.name, line, "it was not refused")

    def _do(self, statement: Statement) -> None:
        world = self._world
        match statement:
            case Killed(in_commit=True):
                world.doom()
            case Killed():
                world.kill()
            case Starts():
                world.start()
            case Jumps():
                world.jump(statement.by)
            case Trusts():
                world.believe()
            case Approves():
                self._approve(statement)
            case Ends():
                self._end(statement)
            case Asks():
                scope = self._scope_of(statement.machine)
                world.ask(lambda plane: plane.asked([scope]))
            case Schedules() | OperatorSays() | Holds() | Removes() | Applies():
                world.ask(_asked_by_operator(statement))
            case Sees() | Is() | Incarnation() | Walks() | Attention() | Fleets():
                message = "an expectation does nothing"
                raise AssertionError(message)
            case _:
                assert_never(statement)

    def _approve(self, statement: Approves) -> None:
        """Approve as a client does: by the ids of the document, in a body that is read again."""
        scope = self._scope_of(statement.machine)
        ids: list[str] = []
        for operation_id in statement.operations:
            operation = self._world.operation(operation_id)
            if operation is None:
                message = f"there is no operation {operation_id} to approve"
                raise _Impossible(message)
            own = [event.id for event in operation.events if event.scope == scope]
            ids.extend(own or [event.id for event in operation.events])
        if not statement.operations:
            read = self._world.reads(scope, versions.NEWEST)
            ids = [event.event_id for event in read.events]
            if not ids:
                message = f"{statement.machine} sees nothing that it could approve"
                raise _Impossible(message)
        body = codec.encode_start_requests(ids)
        self._world.ask(
            lambda plane: plane.approve(
                scope, codec.decode_start_requests(body), by=statement.machine, address=""
            )
        )

    def _end(self, statement: Ends) -> None:
        act = self._world.attempts.get(statement.operation)
        if act is None:
            message = f"the connector was never asked for {statement.operation}"
            raise _Impossible(message)
        attempt = act.attempt if statement.attempt is None else statement.attempt
        outcome = Outcome(succeeded=statement.succeeded, message=statement.message)
        self._world.ask(lambda plane: plane.finish(statement.operation, attempt, outcome))

    def _scope_of(self, name: str) -> str:
        machine = self._world.machine(name)
        if machine is None:
            message = f"the fleet has no machine {name}"
            raise _Impossible(message)
        return machine.scope

    def _entry(self, line: int | None, said: str) -> Entry:
        return Entry(
            elapsed_seconds=self._world.elapsed.total_seconds(),
            time=self._world.clock.now(),
            line=line,
            said=said,
            sights=self._look(),
        )

    def _look(self) -> tuple[Sight, ...]:
        """Return what reads otherwise than at the last look; nothing while the server is down."""
        if not self._world.up:
            return ()
        members: dict[str, list[str]] = {}
        for machine in self._world.machines().values():
            members.setdefault(machine.scope, []).append(machine.name)
        sights: list[Sight] = []
        for key, scope in self._world.scopes().items():
            read = self._world.reads(key, versions.NEWEST)
            before = self._seen.get(key, document.Document(incarnation=0))
            self._seen[key] = read
            if read != before:
                sight = Sight(
                    scope=scope.name,
                    machines=tuple(sorted(members.get(key, ()))),
                    incarnation=read.incarnation,
                    events=read.events,
                )
                sights.append(sight)
        return tuple(sights)


class _Impossible(Exception):  # noqa: N818 - what the line asks cannot be
    """A line speaks of what is not there."""


def _asked_by_operator(
    statement: Schedules | OperatorSays | Holds | Removes | Applies,
) -> Callable[[Plane], "Future[Any]"]:
    match statement:
        case Schedules():
            request = Request(
                event_type=statement.event_type,
                machines=statement.machines,
                scope=statement.scope,
                host=statement.host,
                source=statement.source,
                not_before=None
                if statement.not_before is None
                else BEGINNING + statement.not_before,
                duration_seconds=statement.duration_seconds,
                no_notice=statement.no_notice,
                without_notice=statement.without_notice,
                requested_by=statement.by,
            )
            return lambda plane: plane.request(request)
        case Holds(release=True):
            return lambda plane: plane.release(statement.kind, statement.name, by=statement.by)
        case Holds():
            return lambda plane: plane.hold(
                statement.kind, statement.name, reason=statement.reason, by=statement.by
            )
        case Removes():
            return lambda plane: plane.remove_machines(statement.machines)
        case Applies():
            return lambda plane: plane.apply_fleet(statement.wanted, prune=statement.prune)
        case OperatorSays():
            return _said(statement)


def _said(statement: OperatorSays) -> Callable[[Plane], "Future[Any]"]:
    reference = statement.reference
    match statement.verb:
        case "cancels":
            return lambda plane: plane.cancel(reference, reason=statement.reason)
        case "approves":
            return lambda plane: plane.approve_for_guests([reference], by=statement.by)
        case "notes":
            return lambda plane: plane.note([reference], statement.by)
        case "resumes":
            return lambda plane: plane.resume(int(reference), by=statement.by)
        case _:
            until = BEGINNING + statement.to
            return lambda plane: plane.postpone(reference, until, by=statement.by)

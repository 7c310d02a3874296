"""A connector as bad as they come, which remembers what it did: nothing may be done twice unasked.

It fails, names new hosts, speaks of machines that are none of the act's, and loses whoever was at
it. What it is asked is decided by the real executor (`Executor.outcome`).
"""

from collections.abc import Collection, Coroutine
from random import Random
from typing import Any, Literal, TypeVar

from forewarn.connectors import port
from forewarn.connectors.port import AsItIs, Found, Outcome, Task, unchanged
from forewarn.control.executor import OnUnknown
from forewarn.maintenance.model import Machine
from forewarn.vocabulary import EventType
from simulation.judge import Wrong

T = TypeVar("T")


class Connector(port.Connector):
    """Carries acts out at once.

    Args:
        chance: Where its fortune comes from.
        hosts: Where machines may go.
        on_unknown: What the settings say of what nobody knows.
    """

    def __init__(self, chance: Random, hosts: list[str], on_unknown: OnUnknown) -> None:
        self._chance = chance
        self._hosts = hosts
        self._on_unknown = on_unknown
        self._outcomes: dict[str, Outcome] = {}
        self._lost: dict[str, int] = {}
        """The attempts that nobody knows the result of, by operation."""
        self._where: dict[str, str] = {}
        """Where machines have gone, by GUID, whether or not that was reported."""
        self.wrong = ""
        """What was asked of it that must not be: an exception would count as a failed act."""

    async def perform(
        self, act: Task, as_it_is: AsItIs = unchanged
    ) -> Outcome | Literal[Found.UNKNOWN]:
        act = await as_it_is(act)
        lost = self._lost.get(act.operation)
        if act.operation in self._outcomes:
            self.wrong = f"{act.operation} was carried out, and is again"
        if lost is not None and self._on_unknown != "repeat" and act.repeat_after < lost:
            self.wrong = f"{act.operation} is repeated, and nobody said so"
        if self._chance.random() < 0.05:
            self._lost[act.operation] = act.attempt
            return Found.UNKNOWN
        outcome = self._outcomes[act.operation] = self._end(act)
        return outcome

    async def check(self, act: Task) -> Outcome | Found:
        known = self._outcomes.get(act.operation)
        if known is not None:
            return known
        lost = self._lost.get(act.operation)
        return Found.NOT_DONE if lost is None or act.repeat_after >= lost else Found.UNKNOWN

    async def forget(self, act: Task) -> None:
        self._outcomes.pop(act.operation, None)

    async def sweep(self, live: Collection[str]) -> None:
        self._outcomes = {o: outcome for o, outcome in self._outcomes.items() if o in live}

    def place(self, machine: Machine) -> str:
        """Return the host where a machine really is."""
        return self._where.get(machine.vm_id, machine.host)

    def move(self, machine: Machine, host: str) -> None:
        """Somebody moves a machine."""
        self._where[machine.vm_id] = host

    def settle_at(self, machine: Machine) -> None:
        """Somebody has put a machine where the fleet says that it is."""
        self._where.pop(machine.vm_id, None)

    def succeed(self, act: Task) -> Outcome:
        """Carry an act out as it should be; the town's end has no other."""
        self._outcomes.pop(act.operation, None)
        hosts = dict.fromkeys(act.machines, act.to_host) if act.to_host else {}
        self._move(act, hosts)
        return Outcome(succeeded=True, hosts=hosts)

    def _move(self, act: Task, hosts: dict[str, str]) -> None:
        self._where |= {
            vm_id: hosts[name]
            for name, vm_id in zip(act.machines, act.vm_ids, strict=True)
            if name in hosts and vm_id
        }

    def _end(self, act: Task) -> Outcome:
        chance = self._chance
        succeeded = chance.random() < 0.93
        hosts: dict[str, str] = {}
        if act.to_host and succeeded and chance.random() < 0.95:
            hosts = dict.fromkeys(act.machines, act.to_host)
        elif self._hosts and chance.random() < (
            0.6 if act.event_type is EventType.REDEPLOY else 0.1
        ):
            named = chance.sample(act.machines, chance.randint(1, len(act.machines)))
            hosts = {name: chance.choice(self._hosts) for name in named}
        self._move(act, hosts)
        if chance.random() < 0.02:
            hosts["nobody's"] = "h0"
        return Outcome(succeeded=succeeded, message="" if succeeded else "no power", hosts=hosts)


def at_once(asked: Coroutine[Any, Any, T]) -> T:
    """Return what a coroutine that never waits comes to, without an event loop."""
    try:
        asked.send(None)
    except StopIteration as over:
        answer: T = over.value
        return answer
    raise Wrong("a connector waits, and there is nobody to wake it")

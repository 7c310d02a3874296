"""The interface of connectors: the executor's questions, and the answers."""

from collections.abc import Awaitable, Callable, Collection, Iterable
from datetime import datetime
from enum import StrEnum
from typing import Literal, Protocol, TypeAlias

import msgspec

from forewarn.maintenance.fleet_import import Domain
from forewarn.maintenance.model import HostFacts, Impact

AsItIs: TypeAlias = "Callable[[Task], Awaitable[Task]]"
"""Returns a task as it is by now, however long the store is away; cancelled where the claim of this
attempt is lost."""


async def unchanged(task: "Task") -> "Task":
    """Return a task as it was claimed."""
    return task


class Task(Impact, frozen=True, kw_only=True, gc=False):
    """One operation to carry out, by one attempt."""

    operation: str
    attempt: int
    """The fencing number; above 1 an earlier attempt may have acted."""
    machines: tuple[str, ...]
    hosts: tuple[str, ...]
    """The machines' hosts, in the same order; `""` where unknown."""
    vm_ids: tuple[str, ...]
    """The machines' GUIDs, in the same order; `""` for one that has left the fleet."""
    started_at: datetime
    unforeseen: bool = False
    """The machines failed without notice: a Reboot starts one that is off, and leaves one that came
    up again by itself as it is."""
    to_host: str = ""
    """The host that the machines are to move to; `""`: the connector chooses."""
    closed_hosts: tuple[str, ...] = ()
    """Hosts that no machine may move to, because they are drained."""
    host_boot_id: str = ""
    """Set for a Reboot that lasts as long as its host's own: shut the machine down, and start it
    when its host has another boot id than this. It is over too when somebody has started it. A
    machine that was shut down is started again whatever fails."""
    repeat_after: int = 0
    """Up to this attempt an operator has allowed runs whose result is unknown to be repeated."""
    claimed_elsewhere: tuple[str, ...] = ()
    """The other replicas that claimed it after that attempt. Their runs leave no files here, so a
    folder without runs does not prove that nothing was begun."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The outcome of a task."""

    succeeded: bool
    message: str = ""
    """For the operator: the fault, or a remark."""
    hosts: dict[str, str] = {}
    """The new hosts of machines, by the machine's name; only those that are known."""


class Found(StrEnum):
    """The results of `check` without an outcome."""

    NOT_DONE = "not-done"
    """At least a part of it was never begun: it is safe to perform."""
    UNKNOWN = "unknown"
    """It was begun, and its result is unknown."""


class Connector(Protocol):
    """Carries tasks out. Every verb may be called for many tasks at once, on one event loop.

    A call that is cancelled leaves the task as it is: another process asks `check` about it. A
    connector that keeps nothing of a task, or knows no hosts, leaves these verbs as they are here.
    """

    async def perform(
        self, task: Task, as_it_is: AsItIs = unchanged
    ) -> Outcome | Literal[Found.UNKNOWN]:
        """Carry it out and return when it is over.

        What an earlier attempt has finished is not repeated; a run whose result is unknown is.
        After an exception its outcome is unknown. A connector in which a task may wait for its turn
        asks for it `as_it_is` then, before it begins anything: the claim may have been lost, or a
        host closed.

        Returns:
            The outcome; UNKNOWN if the process that carried it out was lost.
        """

    async def check(self, task: Task) -> Outcome | Found:
        """Return the outcome of earlier attempts of this task, after waiting for any under way.

        Asked once before `perform` when the attempt is above 1.
        """

    async def forget(self, task: Task) -> None:
        """Delete the files of this task: its outcome is recorded."""
        del task

    async def sweep(self, live: Collection[str]) -> None:
        """Delete the files of any operation but these; called once, before any task.

        Args:
            live: The ids of the operations that are Started.
        """
        del live

    async def survey(self) -> dict[str, HostFacts]:
        """Ask all hosts for their state, and return it by their names.

        A host that does not answer is in it and says why. Empty for a connector without hosts.
        """
        return {}

    async def reboot_host(self, host: str) -> Outcome:
        """Run the host's own reboot command.

        Only a new boot id in a later survey proves that it has rebooted: the reboot may cut the
        command off.
        """
        return Outcome(succeeded=False, message=f"no command reboots host {host}")


class Unanswered(Exception):  # noqa: N818 - a host's silence
    """A host does not answer; the text says why."""


class DomainSurveys(Protocol):
    """Asks hosts for their domains, by the names that the fleet has for the hosts."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names of the hosts."""

    async def survey(self, host: str, tags_of: Iterable[str] = ()) -> tuple[Domain, ...]:
        """Ask a host for all its domains; one survey of a host at a time.

        Args:
            host: Its name.
            tags_of: The UUIDs of domains whose tags are read.

        Raises:
            Unanswered: It did not answer, or not in time.
        """

    async def close(self) -> None:
        """End all surveys that are under way."""

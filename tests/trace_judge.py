"""The judge of what must hold over time: simulation, scenarios, kills and labs share it.

It knows no store and no service: whoever watches one (the simulation before each commit, scenarios
after it, clients of a service that is killed again and again) says what was seen, in its order.
What must hold of a single state is in `maintenance.invariants`.
"""

from collections.abc import Collection, Hashable
from datetime import datetime

from forewarn.maintenance import host_drain
from forewarn.maintenance.model import Drain, HostState, Operation
from forewarn.vocabulary import EventStatus


class Trace:
    """What was seen so far, and what was wrong with it: `complaints`, a sentence each."""

    def __init__(self) -> None:
        self.complaints: list[str] = []
        self._contents: dict[tuple[str, int], tuple[str, object]] = {}
        self.latest: dict[tuple[str, str], int] = {}
        """The highest incarnation that each reader has read of each scope."""
        self._ends: dict[str, Hashable] = {}
        self._ended_at: dict[str, datetime] = {}
        self._down: dict[str, list[tuple[datetime, datetime, str, int]]] = {}
        self._rebooted: set[str] = set()
        """The hosts that their drains have rebooted, until an operator has one tried again."""
        self._told: set[Hashable] = set()
        """What was complained of and may be read again."""

    def read(self, reader: str, scope: str, incarnation: int, events: object) -> None:
        """A guest read its scope's document: numbers only go up, and one never has two contents.

        Each reader reads in order; `events` can be compared.
        """
        before = self.latest.get((reader, scope), 0)
        if incarnation < before:
            self.complain(f"{reader} read incarnation {incarnation} of {scope} after {before}")
        self.latest[reader, scope] = incarnation
        other, content = self._contents.setdefault((scope, incarnation), (reader, events))
        if content != events:
            self.complain(
                f"{reader} read incarnation {incarnation} of {scope} with {events}, and {other} "
                f"read it before with {content}"
            )

    def changed(self, before: Operation | None, after: Operation) -> None:
        """An operation has changed: it never starts early, and what has ended stays as it is."""
        scheduled = before is not None and before.status is EventStatus.SCHEDULED
        if before is not None and scheduled and after.started_at is not None:
            approved = after.approved
            self.started(after.id, after.started_at, before.not_before, approved=approved)
        if after.ended_at is not None:
            self.ended(after.id, (after.status.value, after.outcome))
            # A clock that was set back makes it earlier; a second end would be later.
            if after.ended_at > self._ended_at.setdefault(after.id, after.ended_at):
                self.complain(f"{after.id} has ended twice, last at {after.ended_at}")
            self._ended_at[after.id] = after.ended_at
        elif after.id in self._ends:
            self.complain(f"{after.id} has ended and is {after.status}")

    def drained(self, before: Drain | None, after: Drain, *, ordered: bool) -> None:
        """The drain of a host has changed: it follows the table, and repeats nothing unasked.

        `ordered` is whether an operator's order changed it: who gives the orders knows that.
        """
        host = after.host
        if (after.state is HostState.STUCK) != bool(after.stuck_in and after.reason):
            self.complain(f"host {host} is {after.state} in {after.stuck_in}: {after.reason!r}")
        state = before.state if before is not None else HostState.UP
        following = {then for (first, _), then in host_drain.TRANSITIONS.items() if first is state}
        if after.state is not state and after.state not in following:
            self.complain(f"host {host} went from {state} to {after.state}")
        goes_on = state is HostState.STUCK is not after.state
        if goes_on and not ordered:
            self.complain(f"the drain of host {host} was stuck, and goes on without an order")
        if goes_on or after.state is HostState.UP:
            self._rebooted.discard(host)
        if after.state is HostState.REBOOTING is not state:
            if host in self._rebooted:
                self.complain(f"the drain of host {host} reboots it again")
            self._rebooted.add(host)
        if ordered or before is None or before.requested_at != after.requested_at:
            return
        if state is HostState.UP:
            return  # another drain, asked for in the same instant
        asked = {guest.vm_id: (guest.leaves_by, guest.returns_by) for guest in before.guests}
        for guest in after.guests:
            numbers = zip(
                asked.get(guest.vm_id, (0, 0)), (guest.leaves_by, guest.returns_by), strict=True
            )
            if any(number not in {0, later} for number, later in numbers):
                self.complain(f"the drain of host {host} asks for {guest.name} again")

    def started(self, what: str, at: datetime, not_before: datetime, *, approved: bool) -> None:
        """An operation started, or a program for it: never early (protocol.md section 6).

        It started at `at` at the latest; `not_before` is the latest that guests had read,
        `approved` whether everybody who had to had approved it, by then.
        """
        if not approved and at < not_before:
            self.complain(f"{what} started at {at}, before its NotBefore {not_before}, unapproved")

    def down(
        self, operation: str, scope: str, domain: int, began: datetime, ended: datetime
    ) -> None:
        """An operation had an update domain down: no other of its scope was down meanwhile.

        A domain is down from the start until its machines have recovered (protocol.md section 6).
        Preemptions, deletions and failures are not bound to this rule: leave them out.
        """
        spans = self._down.setdefault(scope, [])
        for other_began, other_ended, other, other_domain in spans:
            if domain != other_domain and began < other_ended and other_began < ended:
                self.complain(f"{operation} and {other} had two update domains of {scope} down")
        spans.append((began, ended, operation, domain))

    def shown(self, reader: str, scope: str, taken: Collection[tuple[str, int]]) -> None:
        """A guest read of these operations, each with its update domain: of one domain at a time.

        Preemptions, deletions and failures are not bound to this rule, nor is a scope whose
        maintenance is announced while another domain is down: leave them out.
        """
        if len({domain for _, domain in taken}) > 1 and (scope, *sorted(taken)) not in self._told:
            self._told.add((scope, *sorted(taken)))
            told = " and ".join(f"{operation} of domain {domain}" for operation, domain in taken)
            self.complain(f"{reader} read of two update domains of {scope}: {told}")

    def ended(self, operation: str, end: Hashable) -> None:
        """Somebody saw how an operation ended: its outcome never changes."""
        known = self._ends.setdefault(operation, end)
        if known != end:
            self.complain(f"{operation} has 2 outcomes: {known} and {end}")

    def complain(self, sentence: str) -> None:
        """Record a complaint."""
        self.complaints.append(sentence)

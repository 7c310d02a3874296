"""What an operator who changes the fleet is warned of: what was done and may not be meant."""

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from forewarn.maintenance import fleet
from forewarn.maintenance.model import Hold, Machine

MOST_NAMED: Final = 5
"""The most machines that one warning names; of more, the number is told."""


def of_change(applied: fleet.Applied, listeners: Collection[str]) -> tuple[str, ...]:
    """Return the warnings, each a line.

    Args:
        applied: What changes, or would.
        listeners: The names of the service's listeners; `""` is that of those without one.
    """
    return (*_unheard(applied.placed, listeners), *map(_held, applied.held))


def _unheard(placed: Collection[Machine], listeners: Collection[str]) -> Iterator[str]:
    """Yield a warning for each listener that machines name and the service does not have."""
    unheard: dict[str, list[str]] = {}
    for machine in placed:
        if machine.listener not in listeners and (machine.listener or machine.address):
            unheard.setdefault(machine.listener, []).append(machine.name)
    known = ", ".join(repr(name) for name in sorted(listeners) if name)
    for listener, names in sorted(unheard.items()):
        if not listeners:
            why = "the service has no listener for guests"
        elif listener:
            there = f"it has {known}" if known else "its listeners have no names"
            why = f"the service has no listener {listener!r} ({there})"
        else:
            why = (
                f"each of the service's listeners has a name ({known}), and some machines name none"
            )
        answered = "is answered 403" if listeners else "gets no answer"
        yield f"{why}: what asks from the address of {_named(names)} {answered}"


def _held(hold: Hold) -> str:
    because = f" ({hold.reason})" if hold.reason else ""
    return (
        f"{hold.kind} {hold.name} stays held, by {hold.by or 'somebody'}{because}: what is added "
        f"again by that name is held too; 'forewarn release {hold.kind} {hold.name}' ends it"
    )


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more

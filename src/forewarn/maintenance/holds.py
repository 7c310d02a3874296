"""What a hold keeps from starting."""

from forewarn.maintenance.model import Hold, HoldKind, Operation, key


def covers(hold: Hold, operation: Operation) -> bool:
    """Tell whether a hold keeps this operation from starting."""
    match hold.kind:
        case HoldKind.EVERYTHING:
            return True
        case HoldKind.SCOPE:
            return any(event.scope == hold.name for event in operation.events)
        case HoldKind.HOST:
            return hold.name in operation.hosts
        case HoldKind.MACHINE:
            return any(key(name) == hold.name for name in operation.machines)

"""What tests of units say of a bench, and do to it."""

from builders import Bench
from forewarn.maintenance.units import UnitState


def states(bench: Bench, number: int = 1) -> dict[str, UnitState]:
    return {unit.name: unit.state for unit in bench.maintenance(number).units}


def shown(bench: Bench) -> dict[str, tuple[str, ...]]:
    """The machines of every operation, event by event."""
    return {o.id: o.machines for o in bench.snapshot.operations.values()}


def carry_out(bench: Bench, operation_id: str, *, succeeded: bool = True) -> None:
    bench.approve(*(event.id for event in bench.operation(operation_id).events))
    bench.finish(operation_id, succeeded=succeeded, message="" if succeeded else "no power")

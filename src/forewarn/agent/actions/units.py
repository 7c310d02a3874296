"""What systemd says of a unit, and what it is told."""

from forewarn.agent.actions import program
from forewarn.agent.actions.work import Failed, Work

SYSTEMCTL = "systemctl"
RUNNING = frozenset({"active", "activating", "reloading", "refreshing"})


def state(unit: str, work: Work) -> dict[str, str]:
    """Return a unit's properties that matter: ActiveState and MainPID among them.

    Raises:
        Failed: systemd cannot tell, or has no such unit.
    """
    status, said = program.run(
        [SYSTEMCTL, "show", "--property=LoadState,ActiveState,MainPID", "--", unit], work
    )
    known = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
    if status or "ActiveState" not in known:
        message = f"systemctl show {unit} ended with {status}: {said}"
        raise Failed(message)
    if known.get("LoadState") == "not-found":
        message = f"systemd has no unit {unit}"
        raise Failed(message)
    return known


def runs(unit: str, work: Work) -> bool:
    """Tell whether a unit runs, or is on the way to it."""
    return state(unit, work)["ActiveState"] in RUNNING


def tell(verb: str, unit: str, work: Work) -> None:
    """Have systemd start or stop a unit, and wait until it has.

    Raises:
        Failed: It could not.
    """
    status, said = program.run([SYSTEMCTL, verb, "--", unit], work)
    if status:
        message = f"systemctl {verb} {unit} ended with {status}: {said}"
        raise Failed(message)

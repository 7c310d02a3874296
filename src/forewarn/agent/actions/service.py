"""A systemd unit that is stopped or started; afterwards it is as it was."""

from forewarn.agent.actions import units
from forewarn.agent.actions.work import Work
from forewarn.agent.steps import Service as Terms


class Service:
    """Stops or starts a unit.

    Args:
        terms: What the rule gives.
    """

    def __init__(self, terms: Terms) -> None:
        self._terms = terms

    def prepare(self, work: Work) -> str:
        """Note whether the unit runs, then have it as the rule wants it."""
        unit, wanted = self._terms.unit, bool(self._terms.start)
        ran = units.runs(unit, work)
        work.note({"ran": ran})
        if ran is wanted:
            return f"{unit} {'runs' if ran else 'does not run'} already"
        units.tell("start" if wanted else "stop", unit, work)
        return ""

    def recover(self, work: Work) -> str:
        """Have the unit as it was; where nothing was noted nothing was changed."""
        unit, changed_to = self._terms.unit, bool(self._terms.start)
        if work.facts is None or work.facts["ran"] is changed_to:
            return f"{unit} was as the rule wanted it, and is left so"
        units.tell("stop" if changed_to else "start", unit, work)
        return ""

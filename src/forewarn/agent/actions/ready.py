"""Waiting while the balancer's probe takes the machine out.

The answer of `/readyz` is not given here: it follows from what the journal says stands, so it is
503 from the moment at which this action is recorded as begun until it is being undone, over every
kill and boot between.
"""

from forewarn.agent.actions.work import Work
from forewarn.agent.steps import Ready as Terms


class Ready:
    """Waits for the balancer and for what is under way.

    Args:
        terms: What the rule gives.
    """

    def __init__(self, terms: Terms) -> None:
        self._terms = terms

    def prepare(self, work: Work) -> str:
        """Wait."""
        work.wait(self._terms.wait_seconds)
        return ""

    def recover(self, work: Work) -> str:
        """Nothing: `/readyz` says 200 again by now."""
        del work
        return ""

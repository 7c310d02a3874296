"""A program of the user's: the event is JSON on its standard input, and in variables."""

from forewarn.agent.actions import program
from forewarn.agent.actions.work import Failed, Work
from forewarn.agent.steps import Command as Terms


class Command:
    """Runs one program to prepare, and another to undo it.

    Args:
        terms: What the rule gives.
    """

    def __init__(self, terms: Terms) -> None:
        self._terms = terms

    def prepare(self, work: Work) -> str:
        """Run `run`."""
        return _run(self._terms.run, work)

    def recover(self, work: Work) -> str:
        """Run `undo`, if there is one."""
        return _run(self._terms.undo, work) if self._terms.undo else ""


def _run(argv: tuple[str, ...], work: Work) -> str:
    status, said = program.run(argv, work, told=work.document(), environment=work.environment())
    if status:
        how = f"ended with {status}" if status > 0 else f"was ended by signal {-status}"
        message = f"{argv[0]} {how}{': ' if said else ''}{said}"
        raise Failed(message)
    return said

"""From a step to what does it; a kind's module is loaded when a step of it is done first."""

import importlib
from typing import Final

from forewarn.agent.actions.work import Action
from forewarn.agent.steps import KINDS, Step

CLASSES: Final = {kind: kind.capitalize() for kind in KINDS}
"""By kind: the class in the module of that name."""


def action(step: Step) -> Action:
    """Return what does a step."""
    module = importlib.import_module(f"forewarn.agent.actions.{step.kind}")
    made: Action = getattr(module, CLASSES[step.kind])(step.terms)
    return made

"""`forewarn simulate`: plays a scenario file."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from forewarn.cli import output
from forewarn.cli.exits import ExitStatus, Failed, read_text, server_is_installed
from forewarn.cli.options import JsonOption, argument

if TYPE_CHECKING:
    from forewarn.testing.parser import Scenario

MAX_FILE: Final = 4 * 1024 * 1024
"""The most bytes of a scenario file: more than its lines can need."""


def simulate(
    file: Annotated[Path, argument("FILE", "The scenario.")],
    *,
    as_json: JsonOption = False,
) -> None:
    """Play a scenario and show what each guest sees, and when.

    It changes nothing and asks no service: time, store and connector are the scenario's own.
    """
    with server_is_installed("forewarn simulate"):
        import structlog

        from forewarn.testing import scenario
    # The log of the service would stand between the lines of the timeline.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    parsed = _scenario(file)
    entries: list[scenario.TimelineEntry] = []
    broken: scenario.ScenarioBroken | None = None
    try:
        for entry in scenario.play(parsed):
            entries.append(entry)
            if not as_json:
                for line in scenario.shown(entry):
                    output.say(line)
    except scenario.ScenarioBroken as error:
        broken = error
    if as_json:
        import msgspec

        output.document(
            {
                "scenario": parsed.name,
                "holds": broken is None,
                "broken_line": broken.line if broken else None,
                "instead": broken.message if broken else None,
                "timeline": msgspec.to_builtins(entries),
            }
        )
    if broken is not None:
        raise Failed(ExitStatus.SCENARIO_BROKEN, f"the scenario does not hold: {broken}")


def _scenario(file: Path) -> "Scenario":
    from forewarn.testing import parser

    try:
        return parser.parse(read_text(str(file), MAX_FILE), str(file))
    except parser.ScriptError as error:
        raise Failed(ExitStatus.USAGE, str(error)) from error

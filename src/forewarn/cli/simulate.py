"""`forewarn simulate`: plays a scenario file."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from forewarn.cli import output
from forewarn.cli.exits import ExitStatus, Failed
from forewarn.cli.operator import JsonOption

if TYPE_CHECKING:
    from forewarn.testing.parser import Scenario

MAX_FILE: Final = 4 * 1024 * 1024
"""The most bytes of a scenario file: more than its lines can need."""


def simulate(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The scenario.")],
    *,
    as_json: JsonOption = False,
) -> None:
    """Play a scenario and show what each guest sees, and when.

    It changes nothing and asks no service: time, store and connector are the scenario's own.
    """
    try:
        import structlog

        from forewarn.testing import scenario
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "forewarn":
            raise
        message = (
            f"'forewarn simulate' needs the package {error.name}: pip install 'forewarn[server]'"
        )
        raise Failed(ExitStatus.MISSING_EXTRA, message) from error
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
        with file.open("rb") as opened:
            raw = opened.read(MAX_FILE + 1)
        if len(raw) > MAX_FILE:
            message = f"{file} has more than {MAX_FILE} bytes: no scenario is so long"
            raise Failed(ExitStatus.USAGE, message)
        return parser.parse(raw.decode("utf-8"), str(file))
    except OSError as error:
        raise Failed(ExitStatus.USAGE, f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        message = f"{file} is not UTF-8 text, at byte {error.start}"
        raise Failed(ExitStatus.USAGE, message) from error
    except parser.ScriptError as error:
        raise Failed(ExitStatus.USAGE, str(error)) from error

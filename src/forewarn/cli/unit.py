"""`forewarn unit`: prints the systemd units and sample settings that are shipped.

They are in the wheel, in the folder `forewarn/packaging`; in a checkout they are in `packaging`.
"""

import re
import sysconfig
from pathlib import Path
from typing import Final

import forewarn
from forewarn.cli import output
from forewarn.cli.command import command
from forewarn.cli.exits import ExitStatus, Failed
from forewarn.cli.options import Choice, argument, flag

UNIT: Final = {"service": "forewarn", "agent": "forewarn-agent", "relay": "forewarn-relay"}
SETTINGS: Final = {"service": "forewarn.toml", "agent": "agent.toml", "relay": "relay.toml"}


ANSWER_SECONDS: Final = 5.0
"""The time limit of systemd's answer, which comes at once."""


@command(
    argument("component COMPONENT", "service, agent or relay.", Choice(UNIT)),
    flag("--socket", "The socket unit, which stays open while the service restarts."),
    flag("--settings", "The sample settings: the defaults, as comments."),
)
def unit(component: str, *, socket: bool, settings: bool) -> None:
    """Print the systemd unit of service, agent or relay."""
    if socket and settings:
        raise Failed(ExitStatus.USAGE, "--socket and --settings cannot be given together")
    if socket and component == "agent":
        raise Failed(ExitStatus.USAGE, "the agent has no socket unit")
    if settings:
        output.say(shipped(SETTINGS[component]).rstrip("\n"))
        return
    text = shipped(f"{UNIT[component]}.{'socket' if socket else 'service'}")
    output.say(_running_this(text).rstrip("\n"))


def unit_state(unit: str) -> dict[str, str]:
    """Return LoadState and ActiveState of a unit of this machine; {} where systemd cannot tell."""
    import shutil
    import subprocess

    from forewarn.agent.actions.program import SYSTEMCTL

    program = shutil.which(SYSTEMCTL)
    if program is None:
        return {}
    try:
        shown = subprocess.run(  # noqa: S603 - it only asks
            [program, "show", "--property=LoadState,ActiveState", "--", unit],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return dict(line.split("=", 1) for line in shown.stdout.splitlines() if "=" in line)


def shipped(name: str) -> str:
    """Return the text of a file that is shipped with the package."""
    from importlib import resources

    packaged = resources.files(forewarn) / "packaging" / name
    checkout = Path(__file__).parents[3] / "packaging" / name
    return (packaged if packaged.is_file() else checkout).read_text(encoding="utf-8")


def _running_this(text: str) -> str:
    """Return a unit with the path of this environment's program.

    A `%` is systemd's sign for a specifier, and a blank ends a word: systemd.service(5).
    """
    program = str(Path(sysconfig.get_path("scripts"), "forewarn")).replace("%", "%%")
    quoted = f'"{program}"' if " " in program else program
    return re.sub(r"(?m)^ExecStart=\S+", lambda _: f"ExecStart={quoted}", text)

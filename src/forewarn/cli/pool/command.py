"""`forewarn demo-pool`: a rolling reboot under load, with agents and without."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from forewarn.cli import output
from forewarn.cli.demo import ground
from forewarn.cli.exits import ExitStatus, Failed
from forewarn.cli.operator import JsonOption

if TYPE_CHECKING:
    from forewarn.cli.pool.results import Round

MISSING: Final = (
    "'forewarn demo-pool' needs haproxy, which is not installed: on Debian and Ubuntu "
    "'sudo apt-get install haproxy'"
)

MOST_ROUNDS: Final = 1000
"""More than a day's."""


def demo_pool(
    *,
    repeat: Annotated[
        int,
        typer.Option(
            "--repeat", metavar="N", min=1, max=MOST_ROUNDS, help="So many rounds with agents."
        ),
    ] = 1,
    svg: Annotated[
        Path | None,
        typer.Option("--svg", metavar="FILE", show_default=False, help="Draw it there, too."),
    ] = None,
    logs: Annotated[
        Path | None,
        typer.Option(
            "--logs", metavar="FOLDER", show_default=False, help="Keep every log in this folder."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """See a pool lose no request while its machines are rebooted.

    HAProxy before six machines, 250 requests a second from a client that never retries, and a
    reboot of all of them, two at a time: with agents, then without. It needs haproxy, and takes
    about 80 seconds.
    """
    from forewarn.cli.pool import picture, world

    if shutil.which(world.BALANCER) is None:
        raise Failed(ExitStatus.MISSING_EXTRA, MISSING)
    rounds: list[Round] = []
    for number in range(1, repeat + 2):
        agents = number <= repeat
        title = "With agents" if agents else "Without agents"
        title += f", round {number} of {repeat}" if agents and repeat > 1 else ""
        kept = logs / f"{number}-{'with' if agents else 'without'}-agents" if logs else None
        rounds.append(_play(title, agents=agents, kept=kept, quiet=as_json))
    shown = _telling(rounds)
    if as_json:
        output.document({"rounds": [played.tree() for played in rounds]})
    else:
        for played in shown:
            output.say("")
            output.say("With agents" if played.agents else "Without agents")
            for line in picture.text(played):
                output.say(line)
        output.say("")
        output.table(HEADINGS, [_row(played) for played in rounds], empty="")
        output.say("")
    if svg is not None:
        svg.write_text(picture.svg(shown), encoding="utf-8")
    _judge(rounds, quiet=as_json)


def _play(title: str, *, agents: bool, kept: Path | None, quiet: bool) -> "Round":
    """Play one round in a folder of its own, and leave nothing of it but what is to be kept."""
    from forewarn.cli.pool import display
    from forewarn.cli.pool.rolling import Rolling

    with ground.signals_interrupt(), ground.folder() as folder:
        shown = display.chosen(title, quiet=quiet)
        try:
            rolling = Rolling(Path(folder), agents=agents, shown=shown)
            try:
                return rolling.play()
            finally:
                with ground.signals_wait():
                    rolling.close()
                    if kept is not None:
                        _keep(Path(folder), kept)
        finally:
            shown.close()


def _keep(folder: Path, kept: Path) -> None:
    kept.mkdir(parents=True, exist_ok=True)
    for log in folder.glob("*.log"):
        shutil.copy(log, kept)


def _telling(rounds: "list[Round]") -> "list[Round]":
    """Return the rounds that are drawn: the worst with agents, and the one without."""
    *guarded, bare = rounds
    return [max(guarded, key=lambda played: len(played.failures)), bare]


HEADINGS: Final = (
    *("ROUND", "REQUESTS", "FAILED", "SHARE", "REQUESTS/S"),
    *("SLOWEST QUICK ONE", "SLOWEST OF 2 S", "SECONDS"),
)


def _row(played: "Round") -> tuple[str, ...]:
    return (
        "with agents" if played.agents else "without agents",
        f"{played.requests:,}",
        f"{len(played.failures):,}",
        f"{played.share:.2%}",
        f"{played.rate:.0f}",
        f"{played.slowest_of('quick') * 1000:.0f} ms",
        f"{played.slowest_of('slow'):.2f} s",
        f"{played.seconds:.0f}",
    )


def _judge(rounds: "list[Round]", *, quiet: bool) -> None:
    from forewarn.cli.demo.story import DemoFailed
    from forewarn.cli.pool import results

    for played in rounds:
        which = "with agents" if played.agents else "without agents"
        try:
            verdicts = results.judge(played)
        except DemoFailed as failed:
            message = f"the demo went wrong, {which}: {failed}"
            raise Failed(ExitStatus.DEMO_FAILED, message) from failed
        for verdict in verdicts:
            (output.note if quiet else output.say)(f"ok  {which}: {verdict}")

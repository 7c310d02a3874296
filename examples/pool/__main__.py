"""See a pool lose no request while its machines are rebooted.

HAProxy before six machines, 250 requests per second from clients that never retry, and a reboot of
all of them, two at a time: with agents, then without. It needs haproxy, and takes about 80 seconds.
"""

import argparse
import contextlib
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path
from types import FrameType
from typing import TextIO

from pool import picture, results
from pool.results import DemoFailed, Round
from pool.round import Rolling

Handler = Callable[[int, FrameType | None], None] | signal.Handlers

LONGEST_FOLDER = 70
"""The path of a unix socket has room for 103 characters, with the folder of the demo in it."""

HEADINGS = (
    *("ROUND", "REQUESTS", "FAILED", "SHARE", "REQUESTS/S"),
    *("SLOWEST QUICK ONE", "SLOWEST OF 2 S", "SECONDS"),
)


def main() -> None:
    """Play all rounds, show them, and judge them."""
    parser = argparse.ArgumentParser(prog="make demo-pool", description=__doc__)
    parser.add_argument("--repeat", metavar="N", type=int, default=1, help="rounds with agents")
    parser.add_argument("--svg", metavar="FILE", type=Path, help="write the timelines as a picture")
    parser.add_argument("--logs", metavar="FOLDER", type=Path, help="keep every log in this folder")
    parser.add_argument("--json", action="store_true", help="print the rounds as JSON at the end")
    given = parser.parse_args()
    if shutil.which("haproxy") is None:
        sys.exit(
            "the pool needs haproxy, which is not installed: on Debian and Ubuntu "
            "'sudo apt-get install haproxy'"
        )
    story = sys.stderr if given.json else sys.stdout
    rounds: list[Round] = []
    try:
        for number in range(1, max(1, given.repeat) + 2):
            agents = number <= max(1, given.repeat)
            of = f", round {number} of {given.repeat}" if agents and given.repeat > 1 else ""
            print(f"{_name(agents=agents).capitalize()}{of}", file=story, flush=True)
            name = f"{number}-{'with' if agents else 'without'}-agents"
            logs = None if given.logs is None else given.logs / name
            rounds.append(_play(story, agents=agents, logs=logs))
    except KeyboardInterrupt:
        sys.exit(130)
    except DemoFailed as failed:
        sys.exit(f"the demo went wrong: {failed}")
    _show(rounds, as_json=given.json, svg=given.svg)
    for played in rounds:
        which = _name(agents=played.agents)
        try:
            for verdict in results.judge(played):
                print(f"ok  {which}: {verdict}", file=story)
        except DemoFailed as failed:
            sys.exit(f"the demo went wrong, {which}: {failed}")


def _play(story: TextIO, *, agents: bool, logs: Path | None) -> Round:
    """Play one round in a folder of its own, and keep nothing of it but the logs."""
    place = tempfile.gettempdir()
    place = place if len(place) <= LONGEST_FOLDER else "/tmp"
    with (
        _signals(_interrupt),
        tempfile.TemporaryDirectory(prefix="forewarn-demo-", dir=place) as folder,
    ):
        rolling = Rolling(Path(folder), agents=agents, story=story)
        try:
            return rolling.play()
        finally:
            with _signals(signal.SIG_IGN):
                rolling.close()
                if logs is not None:
                    logs.mkdir(parents=True, exist_ok=True)
                    for log in Path(folder).glob("*.log"):
                        shutil.copy(log, logs)


def _show(rounds: list[Round], *, as_json: bool, svg: Path | None) -> None:
    """Show the worst round with agents, the one without, and all numbers."""
    *guarded, bare = rounds
    drawn = [max(guarded, key=lambda played: len(played.failures)), bare]
    if as_json:
        print(json.dumps({"rounds": [played.tree() for played in rounds]}, indent=2))
    else:
        for played in drawn:
            print("", _name(agents=played.agents).capitalize(), *picture.text(played), sep="\n")
        rows = [HEADINGS, *map(_row, rounds)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        print()
        for row in rows:
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            print("  ".join(cells).rstrip())
        print()
    if svg is not None:
        svg.write_text(picture.svg(drawn), encoding="utf-8")


def _row(played: Round) -> tuple[str, ...]:
    return (
        _name(agents=played.agents),
        f"{played.requests:,}",
        f"{len(played.failures):,}",
        f"{played.share:.2%}",
        f"{played.rate:.0f}",
        f"{played.slowest_of('quick') * 1000:.0f} ms",
        f"{played.slowest_of('slow'):.2f} s",
        f"{played.seconds:.0f}",
    )


def _name(*, agents: bool) -> str:
    return "with agents" if agents else "without agents"


@contextlib.contextmanager
def _signals(handler: Handler) -> Generator[None]:
    """Handle Ctrl-C, SIGTERM and a closed terminal alike, so that nothing is left behind."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()

"""The story of patch-all-hosts.md, from its fleet file to a finished rollout with a failure in it.

The page's own blocks are run, in their order. Only the window is another one: the weekend may be
days away, so it is open from a quarter of an hour from now, and a minute passes in a second.
"""

import re
import shlex
import subprocess
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from end_to_end.running import Running
from forewarn.cli.exits import ExitStatus
from recipes import pages

PAGE = "patch-all-hosts"
WINDOW = "Sat,Sun 22:00-04:00"
PATIENCE_SECONDS = 60.0
SCALE = 300
"""How many seconds pass in one: the notice of a quarter of an hour is over in three."""

HOSTS = tuple(f"h{n}" for n in range(1, 7))


def commands(words: str = "") -> list[list[str]]:
    """The command lines of the page that have some words in them, in their order."""
    lines = [line for block in pages.blocks(PAGE, "console") for line in block.splitlines()]
    found = [shlex.split(line.removeprefix("$ forewarn ")) for line in lines]
    return [line for line in found if words in shlex.join(line)]


def test_the_page_names_only_commands_that_are_run_here() -> None:
    assert {line[0] for line in commands()} == {"fleet", "rollout", "alerts", "history"}
    assert {line[1] for line in commands("rollout")} == {
        *("plan", "start", "watch", "show", "retry", "resume"),
    }


class Story:
    """A service in a folder, the page's program and fleet beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        program, mending = pages.blocks(PAGE, "sh")
        self.mending = mending
        self.run_shell(program)
        connector, fleet_file, check = pages.blocks(PAGE, "toml")
        (folder / "fleet.toml").write_text(fleet_file)
        self.service = Running(folder, clock=f"scale = {SCALE}")
        text = self.service.settings.read_text().split("[connector.simulated]")[0]
        placed = pages.placed(connector, {"/srv/weekend": str(folder)})
        self.service.settings.write_text(f"{text}{placed}\n{check}\n[clock]\nscale = {SCALE}\n")

    def run_shell(self, text: str) -> None:
        subprocess.run(["sh", "-e", "-c", text], cwd=self.folder, check=True)

    def window(self) -> str:
        """A window that opens when the first notice is over."""
        now = datetime.fromisoformat(self.service.operator.get("/v1/clock")["now"])
        opens, closes = now + timedelta(minutes=20), now + timedelta(hours=20)
        return f"daily {opens:%H:%M}-{closes:%H:%M}"

    def call(self, line: list[str], window: str, status: int = ExitStatus.OK) -> str:
        given = [window if word == WINDOW else word for word in line]
        given = ["UTC" if word == "Europe/Berlin" else word for word in given]
        given = [str(self.folder / word) if word == "fleet.toml" else word for word in given]
        called = self.service.call(*given)
        assert called.returncode == status, (given, called.stdout, called.stderr)
        return called.stdout

    def rollout(self) -> Any:
        return self.service.operator.get("/v1/rollouts/1")

    def until(self, *states: str) -> Any:
        end = time.monotonic() + PATIENCE_SECONDS
        while (found := self.rollout())["rollout"]["state"] not in states:
            assert time.monotonic() < end, found
            time.sleep(0.1)
        return found


def test_the_weekend_goes_from_the_fleet_file_to_the_end_with_a_failure_in_it(
    tmp_path: Path,
) -> None:
    story = Story(tmp_path)
    story.service.start()
    try:
        (apply,) = commands("fleet apply")
        (plan,), (start,) = commands("rollout plan"), commands("rollout start")
        watch, again = commands("rollout watch")
        show, *_ = commands("rollout show")
        (alerts,), (retry,), (resume,) = (
            commands(words) for words in ("alerts", "rollout retry", "rollout resume")
        )
        (history,) = commands("history")
        story.call(apply, "")
        window = story.window()
        planned = story.call(plan, window)
        assert len(planned.splitlines()) == 3  # the heading and two waves
        story.call(start, window)
        story.until("halted")
        story.call(watch, window, ExitStatus.ALERTS)
        assert re.search(r"h3 +host +\d +failed", story.call(show, window))
        assert "rollout-halted" in story.call(alerts, window, ExitStatus.ALERTS)
        story.run_shell(story.mending)
        story.call(retry, window)
        story.call(resume, window)
        story.call(again, window)
        assert "6 done" in story.call(show, window)
        assert "Failed" in story.call(history, window)
        operations = story.service.operator.get("/v1/history")["operations"]
        started = [one for one in operations if one["started_at"]]
        assert len(started) >= len(HOSTS)
        assert all(
            one["opens_at"] is None or one["opens_at"] <= one["started_at"] for one in started
        )
        assert started[-1]["opens_at"], "the first was asked for before the window opened"
        patched = (tmp_path / "patched.txt").read_text()
        assert set(HOSTS) <= set(re.findall(r"h\d", patched))
    finally:
        assert story.service.stop() == 0

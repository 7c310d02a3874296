"""The story of patch-all-hosts.md, from its fleet file to the end, with a failure in it.

The page's own blocks are run, in their order. But the maintenance has a window, which the page
leaves out for its reader's sake: it is open from a quarter of an hour from now. And time passes
faster.
"""

import os
import re
import shlex
import subprocess
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import patience
from end_to_end.running import Running
from forewarn.cli.exits import ExitStatus
from recipes import pages

PAGE = "patch-all-hosts"
SCALE = 300
"""How many seconds pass in one: the notice of a quarter of an hour is over in three."""

HOSTS = tuple(f"h{n}" for n in range(1, 7))


def commands(words: str = "") -> list[list[str]]:
    """The command lines of the page that have some words in them, in their order."""
    lines = [line for block in pages.blocks(PAGE, "console") for line in block.splitlines()]
    found = [shlex.split(line.removeprefix("$ forewarn ")) for line in lines]
    return [line for line in found if words in shlex.join(line)]


def test_the_page_names_only_commands_that_are_run_here() -> None:
    assert {line[0] for line in commands()} == {
        *("fleet", "rollout", "maintenance", "alerts", "history"),
    }
    assert {line[1] for line in commands("rollout ")} == {"plan", "start"}
    assert {line[1] for line in commands("maintenance ")} == {"watch", "show", "retry", "resume"}


class Story:
    """A service in a folder, the page's program and fleet beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "weekend"
        making, *_, self.mending = pages.blocks(PAGE, "sh")
        self.run_shell(making, folder)
        (check,) = pages.blocks(PAGE, "toml")
        self.service = Running(folder)
        text = self.service.settings.read_text().split("[connector.simulated]")[0]
        made = (self.folder / "forewarn.toml").read_text()
        quicker = pages.placed(made, {"scale = 60": f"scale = {SCALE}"})
        self.service.settings.write_text(f"{text}{quicker}\n{check}")

    def run_shell(self, text: str, home: Path) -> None:
        """Run commands of the page, as a user whose home is this folder."""
        variables = {**os.environ, "HOME": str(home)}
        folder = self.folder if self.folder.exists() else home
        subprocess.run(["sh", "-e", "-c", text], cwd=folder, env=variables, check=True)

    def opens(self) -> datetime:
        """When a window opens that comes soon after the first notice is over."""
        now = datetime.fromisoformat(self.service.operator.get("/v1/clock")["now"])
        return (now + timedelta(minutes=30)).replace(second=0, microsecond=0)

    def call(self, line: list[str], status: int = ExitStatus.OK) -> str:
        given = [str(self.folder / word) if word == "fleet.toml" else word for word in line]
        called = self.service.call(*given)
        assert called.returncode == status, (given, called.stdout, called.stderr)
        return called.stdout

    def maintenance(self) -> Any:
        return self.service.operator.get("/v1/maintenances/1")

    def until(self, *states: str) -> None:
        patience.until(
            lambda: self.maintenance()["maintenance"]["status"] in states, self.maintenance
        )


@pytest.mark.soak
def test_the_weekend_goes_from_the_fleet_file_to_the_end_with_a_failure_in_it(
    tmp_path: Path,
) -> None:
    story = Story(tmp_path)
    with story.service:
        (apply,) = commands("fleet apply")
        (plan,), (start,) = commands("rollout plan"), commands("rollout start")
        watch, again = commands("maintenance watch")
        show, *_ = commands("maintenance show")
        (alerts,), (retry,), (resume,) = (
            commands(words) for words in ("alerts", "maintenance retry", "maintenance resume")
        )
        (history,) = commands("history")
        story.call(apply)
        planned = story.call(plan)
        assert len(planned.splitlines()) == 3  # the heading and two waves
        opens = story.opens()
        window = f"daily {opens:%H:%M}-{opens + timedelta(hours=20):%H:%M}"
        story.call([*start, "--window", window])
        story.until("halted")
        story.call(watch, ExitStatus.ALERTS)
        assert re.search(r"(?m)^h1 +failed ", story.call(show))
        assert "halted" in story.call(alerts, ExitStatus.ALERTS)
        story.run_shell(story.mending, tmp_path)
        assert "h1 is waiting" in story.call(retry)
        story.call(resume)
        story.call(again)
        assert "6 done" in story.call(show)
        assert "Failed" in story.call(history)
        operations = story.service.operator.get("/v1/history")["operations"]
        started = [one for one in operations if one["started_at"]]
        assert len(started) >= len(HOSTS)
        windows = [(one["opens_at"], one["started_at"]) for one in started if one["opens_at"]]
        for opens_at, started_at in windows:
            assert datetime.fromisoformat(opens_at) <= datetime.fromisoformat(started_at)
        asked_at = datetime.fromisoformat(started[-1]["announced_at"])
        assert bool(started[-1]["opens_at"]) is (asked_at < opens)
        patched = (story.folder / "patched.txt").read_text()
        assert set(HOSTS) <= set(re.findall(r"h\d", patched))

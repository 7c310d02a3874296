"""Commands about the fleet in stories, in this process, against a service that is in it too."""

import json
import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

import stories
from forewarn.cli import main
from forewarn.clock import ManualClock
from forewarn.store.sqlite import InMemoryStore
from server.exchange import Exchanges
from server.running import NOON, Running, settings_in

PYTHON = """#!{python}
import json, sys, threading
told = json.load(open({folder!r} + "/told.json"))
with open({folder!r} + "/asked.json", "w") as asked:
    json.dump([sys.argv[3:], sys.stdin.read()], asked)
threading.Event().wait(told.pop("sleep", 0))
print(json.dumps(told))
sys.exit(told.get("status", 1 if "error" in told else 0))
"""
"""A Python that reads what hosts have from a file, instead of running our program."""


class Commands(Exchanges):
    """A story so far, with the files of its commands."""

    def __init__(self, folder: Path, service: Running, capsys: pytest.CaptureFixture[str]) -> None:
        super().__init__(service, ManualClock(NOON), self.command)
        self.folder, self.capsys = folder, capsys
        python = folder / "python"
        python.write_text(PYTHON.format(python=sys.executable, folder=str(folder)))
        python.chmod(0o755)
        self.bound["python"] = str(python)

    def carry_out(self, row: str) -> None:
        verb, _, rest = row.partition(" ")
        if verb == "hosts":
            (self.folder / "told.json").write_text(rest)
        elif verb == "asked":
            what, _, document = rest.partition(" ")
            asked, given = json.loads((self.folder / "asked.json").read_text())
            assert (asked, json.loads(given)) == ([what], json.loads(document))
        else:
            super().carry_out(row)

    def command(self, *argv: str) -> tuple[int, str, str]:
        self.capsys.readouterr()
        status = main.execute(list(argv))
        self.printed = self.capsys.readouterr()
        return status, self.printed.out, self.printed.err

    def file(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text.replace(" ; ", "\n"))
        self.bound[name] = str(self.folder / name)

    def save(self, name: str) -> None:
        """Keep what the last command printed in a file."""
        self.file(name, self.printed.out)

    def cursor(self) -> None:
        (self.bound["cursor"],) = re.findall(r"--cursor (\S+),", self.printed.err)


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    # What the service logs in this process would stand between the lines of a command.
    quiet = structlog.make_filtering_bound_logger(logging.CRITICAL)
    structlog.configure(wrapper_class=quiet)
    with Running(settings_in(tmp_path), InMemoryStore(), ManualClock(NOON)) as running:
        monkeypatch.setenv("FOREWARN_OPERATOR", running.settings.operator.socket)
        yield running


@pytest.mark.parametrize("rows", stories.stories_beside(__file__, "commands.txt"))
def test_the_story_holds(
    tmp_path: Path, service: Running, capsys: pytest.CaptureFixture[str], rows: stories.Rows
) -> None:
    assert Commands(tmp_path, service, capsys).play("commands.txt", rows)

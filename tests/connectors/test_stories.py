"""The connectors that run a program, in stories: texts of one verb a line, and their verbs.

What comes of a line stands behind an arrow: `failed`, then its message (or a part of it, `~part`),
then the new hosts of machines; or what is found, `not-done` or `unknown`.
"""

import asyncio
import json
import os
import resource
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import forked
import patience
import stories
from connectors.workshop import SLOW, Workshop, task, tell, told
from forewarn.connectors.command import CommandConnector, CommandConnectorSettings
from forewarn.connectors.libvirt.connector import FAILED, UNKNOWN
from forewarn.connectors.port import Found, Outcome, Task

TESTS = str(Path(__file__).parents[1])
FOUND = {Found.NOT_DONE: "not-done", Found.UNKNOWN: "unknown"}

SERVICE = """
import asyncio, os, sys
from pathlib import Path

state, program, tests = sys.argv[1:]
sys.path.append(tests)
from connectors.workshop import task
from forewarn.connectors.command import CommandConnector, CommandConnectorSettings

connector = CommandConnector(CommandConnectorSettings(program=(program,)), Path(state), os.environ)
asyncio.run(connector.perform(task()))
"""
"""A service that does nothing but carry one task out."""


class Story:
    """A story so far: the replicas' folders, and the connector of the last program."""

    def __init__(self, shop: Workshop, runner: asyncio.Runner) -> None:
        self.shops = {"shop": shop}
        self.shop = shop
        self.runner = runner
        self.connector: CommandConnector
        self.environment: dict[str, str] = {}
        self.under_way: dict[str, asyncio.Task[Any]] = {}
        self.certain = asyncio.Event()

    def wait(self, coroutine: Any) -> Any:
        return self.runner.run(asyncio.wait_for(coroutine, patience.SECONDS))

    def carry_out(self, row: str) -> None:
        """Carry a line out, and compare what comes of it."""
        line, _, follows = row.partition(" -> ")
        verb, words, options = stories.split(line)
        if verb:
            said = getattr(self, verb.replace("-", "_"))(*words, **options)
            expected = shlex.split(follows, comments=True)
            if isinstance(said, list):
                assert said == expected
            elif said is not None:
                compare(said, *expected)

    def replica(self, name: str) -> None:
        """Go on in a replica's folder, which is its own."""
        if name not in self.shops:
            folder = self.shop.folder / name
            folder.mkdir()
            self.shops[name] = Workshop(folder)
        self.shop = self.shops[name]

    def given(self, *variables: str) -> None:
        """Have variables in the service's environment."""
        self.environment = dict(each.split("=", 1) for each in variables)

    def program(self, body: str, check: str = "", check_command: str = "", **terms: str) -> None:
        """Have the connector run this program, and perhaps a check command."""
        given = numbers(terms)
        body = SLOW if body == "slow" else body
        if check or check_command:
            given["check_command"] = (check_command or self.shop.program(check, "check"),)
        self.connector = self.shop.connector(body, environment=self.environment, **given)

    def checked(self, body: str) -> None:
        """Have another connector, whose check command is this."""
        self.program("echo again >> log", f'test "$FOREWARN_MACHINE" = web-0 || exit 9\n{body}')

    def command(self, program: str) -> None:
        """Have the connector run the program of this name."""
        settings = CommandConnectorSettings(
            program=(program.replace("FOLDER", str(self.shop.folder)),)
        )
        self.connector = CommandConnector(settings, self.shop.state, os.environ)

    def libvirt(self, body: str, **terms: str) -> None:
        """Have the connector for libvirt's hosts, whose Python is this program."""
        spelled = body.replace("FAILED", str(FAILED)).replace("UNKNOWN", str(UNKNOWN))
        self.connector = self.shop.libvirt(spelled, **numbers(terms))

    def task(self, *machines: str, **terms: str) -> Task:
        given = numbers(terms)
        machines = tuple(name for word in machines for name in many(word))
        for name in {"hosts", "claimed_elsewhere"} & given.keys():
            given[name] = tuple(each.strip("-") for each in terms[name].split(","))
        if "live_migration" in terms:
            given["live_migration"] = terms["live_migration"] == "yes"
        if "started_at" in terms:
            given["started_at"] = datetime.fromisoformat(terms["started_at"])
        return task(*machines, **given)

    def perform(self, *machines: str, **terms: str) -> Outcome | Found:
        found: Outcome | Found = self.wait(self.connector.perform(self.task(*machines, **terms)))
        return found

    def check(self, *machines: str, **terms: str) -> Outcome | Found:
        found: Outcome | Found = self.wait(self.connector.check(self.task(*machines, **terms)))
        return found

    def forget(self, *machines: str, **terms: str) -> None:
        self.wait(self.connector.forget(self.task(*machines, **terms)))

    def begin(
        self, name: str, *machines: str, verb: str = "perform", held: str = "", **terms: str
    ) -> None:
        """Perform or check, without waiting for the end."""
        more = [self.once_certain] if held == "later" else []
        act = getattr(self.connector, verb)(self.task(*machines, **terms), *more)
        self.under_way[name] = self.runner.get_loop().create_task(act)

    def ended(self, name: str) -> Outcome | Found:
        """Wait for the end of what was begun."""
        found: Outcome | Found = self.wait(self.under_way.pop(name))
        return found

    async def once_certain(self, claimed: Task) -> Task:
        await self.certain.wait()
        return claimed

    def is_certain(self) -> None:
        """All claims are."""
        self.certain.set()

    def lose(self) -> None:
        """Kill the runner of attempt 1 while its program runs."""
        self.pipes("began", "go")
        self.program(SLOW)
        self.begin("lost")
        self.told("began")
        self.runner_is_lost()
        assert self.ended("lost") is Found.UNKNOWN
        self.tell("go")
        patience.until(lambda: "done" in self.shop.lines("log"))
        assert not (self.shop.run_folder() / "result").exists()

    def runner_is_lost(self) -> None:
        os.kill(self.shop.runner(), signal.SIGKILL)

    def runner_ends(self, pipe: str) -> None:
        """Let the program go on, and wait for the end of its runner, of which nobody is told."""
        # Opened while the runner still holds it: afterwards opening would wait for ever.
        alive = os.open(self.shop.run_folder() / "alive", os.O_RDONLY | os.O_NONBLOCK)
        os.set_blocking(alive, True)
        self.tell(pipe)
        assert os.read(alive, 1) == b""
        os.close(alive)

    def service(self) -> None:
        """Have a service that is a process of its own carry the slow program out."""
        self.served = forked.Forked(
            ["-c", SERVICE, str(self.shop.state), self.shop.program(SLOW), TESTS],
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def service_ends(self, by: str) -> None:
        os.killpg(self.served.pid, signal.Signals[f"SIG{by}"])
        self.served.wait()

    def runner_lacks(self, *what: str) -> None:
        """Give the runner no `room`, as a full disk does, with EFBIG for ENOSPC; or no `files`."""
        for name, limit in {"room": resource.RLIMIT_FSIZE, "files": resource.RLIMIT_NOFILE}.items():
            _, hard = resource.prlimit(self.shop.runner(), limit)
            few = {"room": 0, "files": 3}[name]  # to poll three it must be allowed three
            resource.prlimit(self.shop.runner(), limit, (few if name in what else hard, hard))

    def runner_waits(self) -> None:
        """Wait until the runner has reaped the program, and sleeps."""
        runner = Path(f"/proc/{self.shop.runner()}")
        children = runner / "task" / runner.name / "children"
        patience.until(
            lambda: not children.read_text() and "sleeping" in (runner / "status").read_text()
        )

    def exists(self, name: str) -> None:
        """Wait for a file of the run."""
        patience.until((self.shop.run_folder() / name).exists)

    def reaches(self, name: str, count: str) -> None:
        """Wait until so many lines are there."""
        self.wait(patience.reached(lambda: len(self.lines(name)) >= int(count)))

    def pipes(self, *names: str) -> None:
        for name in names:
            self.shop.pipe(name)

    def told(self, pipe: str) -> None:
        self.wait(told(self.shop.folder / pipe))

    def tell(self, pipe: str) -> None:
        self.wait(tell(self.shop.folder / pipe))

    def waits_for_its_turn(self) -> None:
        self.wait(patience.reached(lambda: self.connector._slots._waiters))

    def lines(self, name: str) -> list[str]:
        return self.shop.lines(name)

    def reads(self, name: str, variables: str) -> None:
        """What the program has read is what it has in its variables, lists with blanks between."""

        def told(fact: Any) -> str:
            if isinstance(fact, list):
                return " ".join(fact)
            return fact if isinstance(fact, str) else json.dumps(fact)

        task = json.loads("".join(self.lines(name)))
        found = dict(line.split("=", 1) for line in self.lines(variables))
        assert found == {f"FOREWARN_{field.upper()}": told(fact) for field, fact in task.items()}

    def file(self, name: str, text: str, mode: str = "644") -> None:
        (self.shop.folder / name).write_text(f"{text}\n", encoding="utf-8")
        (self.shop.folder / name).chmod(int(mode, 8))

    def state_is_a_file(self) -> None:
        self.shop.state.touch()

    def left(self, run: str, *names: str) -> None:
        """Leave a run's folder behind, with these files."""
        folder = self.shop.run_folder(run=run)
        folder.mkdir(parents=True)
        if "alive" in names:
            os.mkfifo(folder / "alive")
        if "begun" in names:
            (folder / "begun").write_text(f"{os.getpid()}\n", encoding="ascii")

    def left_file(self, name: str) -> None:
        (self.shop.state / name).touch()

    def result(self, text: str) -> None:
        """Have the run's result be this."""
        written = text.replace("\\n", "\n")
        (self.shop.run_folder() / "result").write_text(written, encoding="ascii")

    def runs(self, *names: str) -> None:
        """Compare whose runs are in the state's folder."""
        assert {place.name.split("@")[0] for place in self.shop.runs()} == set(names)

    def wipe(self) -> None:
        shutil.rmtree(self.shop.state)

    def sweep(self, *operations: str) -> None:
        """Begin again, with these operations open."""
        settings = CommandConnectorSettings(program=("true",))
        restarted = CommandConnector(settings, self.shop.state, os.environ)
        self.wait(restarted.sweep(set(operations)))


def numbers(terms: dict[str, str]) -> dict[str, Any]:
    """Return the terms, with whole numbers and seconds as what they are."""
    found: dict[str, Any] = dict(terms)
    found |= {name: int(text) for name, text in terms.items() if text.isdecimal()}
    found |= {name: float(text) for name, text in terms.items() if name.endswith("_seconds")}
    return found


def many(word: str) -> list[str]:
    """Return the machines that a word names: `web-*3` is web-0, web-1 and web-2."""
    name, _, count = word.partition("*")
    return [f"{name}{n}" for n in range(int(count))] if count else [name]


def compare(found: Outcome | Found, word: str, message: str = "", *hosts: str) -> None:
    """Compare an outcome, or what was found."""
    if isinstance(found, Found):
        assert FOUND[found] == word
        return
    assert word == ("succeeded" if found.succeeded else "failed"), found
    assert len(found.message) < 2000
    if message.startswith("~"):
        assert message[1:] in found.message
    else:
        assert found.message == message.replace("\\n", "\n").replace("\\ufffd", "\ufffd")
    assert found.hosts == dict(each.split(":") for each in hosts)


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as made:
        yield made


@pytest.mark.parametrize("rows", stories.stories_beside(__file__, "stories.txt"))
def test_the_story_holds(tmp_path: Path, runner: asyncio.Runner, rows: stories.Rows) -> None:
    shop = Workshop(tmp_path)
    assert stories.play("stories.txt", rows, Story(shop, runner).carry_out)

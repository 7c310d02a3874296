"""Real things for actions to work upon: programs, units, a web server."""

import json
import stat
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

import patience
from agent.bench import begin, event
from forewarn.agent.actions import runner
from forewarn.agent.actions.action import ActionFailed, ActionRun, ActionStopped
from forewarn.agent.daemon import Daemon
from forewarn.agent.decider import FactsFound, Input
from forewarn.agent.journal import Journal
from forewarn.agent.rules import Rule, RuleAction
from forewarn.agent.settings import AgentSettings, ClientSettings, StatusSettings
from forewarn.client.event import Event
from forewarn.settings import OFF
from leftovers import alive

SYSTEMCTL = """#!{python}
# What the agent asks of systemctl, for units that are files of one word: active or inactive.
import sys
from pathlib import Path

units = Path({units!r})
verb, unit = sys.argv[1], sys.argv[-1]
with (units / "asked").open("a") as asked:
    asked.write(" ".join(sys.argv[1:]) + "\\n")
path = units / unit
found = path.is_file()
if verb == "show":
    word, _, pid = (path.read_text() if found else "inactive").partition(" ")
    word, _, job = word.partition("+")
    print("LoadState=" + ("loaded" if found else "not-found"))
    print("ActiveState=" + word)
    print("MainPID=" + (pid or "0"))
    print("Job=" + job)
elif path.with_suffix(".broken").exists():
    sys.exit("Job for " + unit + " failed.")
else:
    path.write_text("active" if verb == "start" else "inactive")
"""


class Units:
    """Units that a program named `systemctl` on the PATH tells of, starts and stops."""

    def __init__(self, folder: Path) -> None:
        self._units = folder / "units"
        self._units.mkdir()
        self.bin = folder / "bin"
        self.bin.mkdir()
        program = self.bin / "systemctl"
        program.write_text(SYSTEMCTL.format(python=sys.executable, units=str(self._units)))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)

    def put(self, unit: str, word: str) -> None:
        written = self._units / f".{unit}"
        written.write_text(word)
        written.rename(self._units / unit)  # systemctl may read it at any time

    def word(self, unit: str) -> str:
        return (self._units / unit).read_text()

    def break_(self, unit: str) -> None:
        (self._units / unit).with_suffix(".broken").touch()

    @property
    def asked(self) -> list[str]:
        asked = self._units / "asked"
        return asked.read_text().splitlines() if asked.exists() else []


class Done:
    """One action on its own, with its notes kept: on the disk, unless it is not `durable`."""

    def __init__(self, of: Event | None = None, *, durable: bool = True, **step: Any) -> None:
        self.event = of or event(description="It's so.")
        self.rule_action = msgspec.convert(step, RuleAction)
        self.facts: dict[str, Any] | None = None
        self.noted = threading.Event()
        self._durable = durable
        self.run = self._run_of(undo=False)
        self.action = runner.action_of(self.run)

    def _run_of(self, *, undo: bool) -> ActionRun:
        begun = begin(self.rule_action, self.event, undo=undo, until=30.0, facts=self.facts)
        return ActionRun(begun, "web-0", 0.0, self._tell)

    def _tell(self, told: Input) -> None:
        assert isinstance(told, FactsFound)
        self.facts = told.facts
        self.noted.set()
        if self._durable:
            self.run.proceed()

    def prepare(self) -> str:
        return self.action.act()

    def recover(self) -> str:
        self.turn()
        return self.action.act()

    def begin(self, *, undo: bool = False) -> "Begun":
        if undo:
            self.turn()
        return Begun(self.run, self.action.act)

    def turn(self) -> None:
        """Go on with a run that undoes it, with what was noted."""
        self.run = self._run_of(undo=True)
        self.action = runner.action_of(self.run)


class Begun:
    """An action under way in a thread of its own."""

    def __init__(self, run: ActionRun, act: Callable[[], str]) -> None:
        self.run = run
        self.outcome = ""
        self.final = False
        self._thread = threading.Thread(target=self._run, args=(act,))
        self._thread.start()

    def _run(self, act: Callable[[], str]) -> None:
        try:
            self.outcome = f"done {act()}"
        except ActionFailed as failed:
            self.outcome, self.final = f"failed {failed}", failed.final
        except ActionStopped as cut:
            self.outcome, self.final = f"cut {cut}".strip(), cut.final

    def end(self) -> str:
        self._thread.join(patience.SECONDS)
        assert not self._thread.is_alive()
        return self.outcome

    def stop(self) -> str:
        self.run.stop()
        return self.end()


def daemon(
    journal: Journal | None,
    *rules: Rule,
    endpoint: str = "http://127.0.0.1:1",
    machine: str = "web-0",
    listen: str = OFF,
) -> Daemon:
    """Return an agent's daemon, by default without an endpoint that answers, and without a port."""
    settings = AgentSettings(
        client=ClientSettings(endpoint=endpoint, machine=machine),
        status=StatusSettings(listen=listen),
        rule=rules,
    )
    return Daemon(settings, journal, tuple)


def check_ended(pid: int) -> None:
    """Wait until a process has ended: a kill takes a moment."""
    patience.until(lambda: not alive(pid))


def python(folder: Path, name: str, text: str) -> str:
    """Write a program and return its path."""
    path = folder / name
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(0o755)
    return str(path)


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())

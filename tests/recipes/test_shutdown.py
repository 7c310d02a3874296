"""docs/guides/draining.md: a web server that ends in good order before its machine.

A program named `systemctl` stands for systemd: it stops and starts real processes.
It does what systemd does for a simple unit: SIGTERM, waiting for the end, SIGKILL after the time
that the unit gives. A real manager is none that a test could start: it takes over the control
groups of the machine that it runs on.
"""

import json
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent import workplace
from end_to_end.agents import Agent, Endpoint, event, started, until
from recipes import pages
from recipes.web import Long, Web, asked

SYSTEMCTL = """#!{python}
import json, os, pathlib, select, signal, subprocess, sys

verb, unit = sys.argv[1], sys.argv[-1]
told = pathlib.Path({units!r}) / (unit + ".json")
if verb == "show" and not told.exists():
    sys.exit(print("LoadState=not-found\\nActiveState=inactive\\nMainPID=0"))
known = json.loads(told.read_text())


def holding():
    try:
        pid = int(pathlib.Path(known["pid_file"]).read_text())
        descriptor = os.pidfd_open(pid)
    except (OSError, ValueError):
        return 0, None
    ended = select.select([descriptor], [], [], 0)[0]
    return (0, None) if ended else (pid, descriptor)


pid, descriptor = holding()
if verb == "show":
    state = "active" if pid else "inactive"
    print(f"LoadState=loaded\\nActiveState={{state}}\\nMainPID={{pid}}")
elif verb == "stop" and pid:
    os.kill(pid, signal.SIGTERM)
    if not select.select([descriptor], [], [], known["timeout"])[0]:
        os.kill(pid, signal.SIGKILL)
        select.select([descriptor], [], [])
elif verb == "start" and not pid:
    null = subprocess.DEVNULL
    subprocess.Popen(known["argv"], start_new_session=True, stdout=null, stderr=null)
"""


class Units:
    """Units of processes with pid files.

    Args:
        folder: A folder of its own.
    """

    def __init__(self, folder: Path) -> None:
        self._units = folder / "units"
        self._units.mkdir(parents=True)
        program = folder / "systemctl"
        program.write_text(SYSTEMCTL.format(python=sys.executable, units=str(self._units)))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        self.path = f"{folder}{os.pathsep}{os.environ['PATH']}"
        """The PATH that finds it."""

    def put(self, unit: str, argv: list[str], pid_file: Path, timeout: float) -> None:
        """Have a unit.

        Args:
            unit: Its name.
            argv: What starts it; it writes its number into `pid_file`.
            pid_file: Where.
            timeout: Its TimeoutStopSec, in seconds.
        """
        known = {"argv": argv, "pid_file": str(pid_file), "timeout": timeout}
        (self._units / f"{unit}.json").write_text(json.dumps(known))


UNIT = pages.block("draining", "ini")
SERVICE = pages.block("draining", "toml", "web.service")
SIGNAL = pages.block("draining", "toml", "pid_file")
QUICK = {"wait_seconds = 20": "wait_seconds = 0.2", "wait_seconds = 5 ": "wait_seconds = 0.2 "}
STARTER = """
# Does nothing where the worker runs already, as the page wants it.
import os, pathlib, select, subprocess
try:
    descriptor = os.pidfd_open(int(pathlib.Path({pid_file!r}).read_text()))
    runs = not select.select([descriptor], [], [], 0)[0]
except OSError:
    runs = False
null = subprocess.DEVNULL
if not runs:
    subprocess.Popen({argv}, start_new_session=True, stdin=null, stdout=null, stderr=null)
"""
WORDS = {"service": SERVICE, "signal": SIGNAL}
(STOP_SECONDS,) = [float(word) for word in re.findall(r"(?m)^TimeoutStopSec=(\d+)$", UNIT)]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pidfds are Linux' own")


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    made = Web(tmp_path / "web", "web-0")
    yield made
    made.close()


@pytest.fixture
def agents(
    tmp_path: Path, cloud: Endpoint, web: Web, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Agent]]:
    made: list[Agent] = []
    units = Units(tmp_path / "systemd")
    monkeypatch.setenv("PATH", units.path)

    def make(way: str) -> Agent:
        units.put("web.service", web.argv, web.pid_file, STOP_SECONDS)
        starter = workplace.python(
            tmp_path, "start-worker", STARTER.format(argv=web.argv, pid_file=str(web.pid_file))
        )
        here = {"/usr/local/bin/start-worker": starter, "/run/worker.pid": str(web.pid_file)}
        text = pages.placed(WORDS[way], QUICK if way == "service" else here)
        made.append(Agent(tmp_path / "agent", cloud.url, text))
        made[-1].start()
        made[-1].until(lambda: made[-1].page("/readyz")[0] == 200)
        return made[-1]

    yield make
    for agent in made:
        agent.close()


@pytest.mark.parametrize(
    ("way", "kind", "notice"),
    [
        ("service", "Terminate", 300),
        ("signal", "Preempt", 30),
        pytest.param("signal", "Terminate", 300, marks=pytest.mark.soak),
        pytest.param("service", "Preempt", 30, marks=pytest.mark.soak),
    ],
)
def test_a_request_under_way_ends_whole_and_then_the_event_is_approved(
    way: str, kind: str, notice: int, cloud: Endpoint, web: Web, agents: Callable[..., Agent]
) -> None:
    web.start().hold()
    request = Long(web.port)
    agent = agents(way)
    cloud.show(event(EventType=kind, notice=notice))
    until(lambda: asked(web.port) == "")  # nobody new is let in
    seen = agent.looks
    until(lambda: agent.looks > seen + 1)  # who does not wait had approved by then
    assert (cloud.approved, request.whole, web.status) == ([], None, None)
    web.release()
    assert request.end()
    agent.until(lambda: agent.phase() == "Approved")
    assert (cloud.approved, web.status) == (["E1"], 0)
    cloud.show(started(EventType=kind))
    agent.until(lambda: agent.shows("Started"))
    assert asked(web.port) == ""
    cloud.show()
    until(lambda: asked(web.port) == "web-0")  # it was started again
    agent.until(lambda: not agent.status()["standing"])


def test_every_time_of_the_page_fits_into_the_next() -> None:
    limits = [float(word) for word in re.findall(r"stop = .* time_limit_seconds = (\d+)", SERVICE)]
    waits = [float(word) for word in re.findall(r"wait_seconds = (\d+)", SERVICE)]
    assert limits[0] > STOP_SECONDS
    assert waits[0] + limits[0] < 300 - 5
    assert waits[1] + limits[1] <= 30 - 5

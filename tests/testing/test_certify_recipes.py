"""Every recipe of the agent and every example of the docs is certified, as its page shows it.

What a recipe drains is a stand-in that leaves the marks. Faults of the endpoint are the agent's to
bear, whatever its rules are: one page plays them all, and the others only the other scenarios.
"""

import re
import sys
from pathlib import Path

import pytest

import patience
from client.scripted import Keeping
from forewarn.testing import certify
from forewarn.testing.certify import Handler, HandlerVerdict
from house.tree import ROOT
from recipes import pages

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(sys.platform != "linux", reason="the recipes are for Linux"),
]
SOAK = pytest.mark.soak
FEW = {"drain-fails", "two-events"}
"""What examples do by `make test`; all scenarios, and the recipes, are the soak's."""

EXAMPLES = ROOT / "docs" / "examples"
NAMES = {scenario.name for scenario in certify.SCENARIOS}

QUICK = {"wait_seconds = 20": "wait_seconds = 0.1", "wait_seconds = 5 ": "wait_seconds = 0.1 "}
ALONE = {"two-machines"}
"""Nobody answers for the other machine, and without that the agent approves nothing for it."""
BEARS_ALL = "agent"
"""The page whose rules are put to all scenarios."""
BY_THE_AGENT = ALONE | {name for name in NAMES if name.startswith("fault-")}
"""What a recipe leaves out."""
NOT_REPEATED = {"restarted"}
"""A signal is not sent again after a restart unless it is `repeatable`: the event is held."""
MARKS = '{ command = { run = ["@FOLDER@/drain"], undo = ["@FOLDER@/undrain"], repeatable = true } }'
"""What stands for the balancer, which sees `/readyz` and takes the machine out."""


def by_the_agent(folder: Path, settings: str) -> str:
    """Return the command of an agent; `@FOLDER@` in its settings is the scenario's own folder."""
    (folder / "agent.toml").write_text(settings, encoding="utf-8")
    return (
        f"sed s,@FOLDER@,{{folder}},g {folder}/agent.toml >{{folder}}/agent.toml; "
        "export FOREWARN_AGENT_SET_STATE__FOLDER={folder}/state "
        "FOREWARN_AGENT_SET_STATUS__LISTEN=off; "
        f"exec {sys.executable} -m forewarn.agent --config {{folder}}/agent.toml"
    )


def judged(command: str, *but: str, undrains: bool = True) -> list[tuple[str, str, str]]:
    """Return what is wrong with it in the scenarios, but those that are left out."""
    assert set(but) <= NAMES
    handler = Handler(("sh", "-c", command), patience_seconds=patience.SECONDS, undrains=undrains)
    chosen = [each for each in certify.SCENARIOS if each.name not in but]
    return [
        (each.name, each.message, each.output)
        for each in certify.run(handler, chosen)
        if each.verdict is HandlerVerdict.FAILED
    ]


def place(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}", encoding="utf-8")
    path.chmod(0o755)
    return path


# Rules that run a program, stop a unit, or send a signal.


PLACE = "/usr/local/lib/forewarn"
STAND_INS = Path(__file__).with_name("stand_ins")
PROGRAMS = {
    **{
        name: (STAND_INS / name).read_text(encoding="utf-8")
        for name in ("systemctl", "switchover.sh", "crm_standby", "kubectl")
    },
    "crm_resource": "",
    "node.sh": pages.placed(
        pages.block("kubernetes", "sh"), {"/var/lib/forewarn-agent/": "$FOREWARN_FOLDER/"}
    ),
}
RECIPES = {
    "failover": pages.block("failover", "toml"),
    "kubernetes": pages.block("kubernetes", "toml"),
    "pacemaker": pages.block("pacemaker", "toml"),
    "draining": pages.placed(pages.block("draining", "toml", "web.service"), QUICK),
    "agent": pages.placed(pages.blocks("agent", "toml")[0], {"= 20": "= 0.1"}),
}
"""The rules of each page, for programs of that place or of the PATH."""


@SOAK
@pytest.mark.parametrize("page", RECIPES)
def test_a_recipe_passes(tmp_path: Path, page: str) -> None:
    for name, text in PROGRAMS.items():
        place(tmp_path, name, text)
    command = by_the_agent(tmp_path, RECIPES[page].replace(PLACE, str(tmp_path)))
    but, fails = (set(), ALONE) if page == BEARS_ALL else (BY_THE_AGENT, set())
    wrong = judged(f"PATH={tmp_path}:$PATH; {command}", *but)
    assert {name for name, *_ in wrong} == fails, wrong


def started(folder: Path, trap: str) -> Path:
    """Return what starts a worker, which does at its signal what the page says."""
    texts = [(STAND_INS / name).read_text("utf-8") for name in ("worker", trap, "start-worker")]
    worker = place(folder, "worker", texts[0].replace("TRAP", texts[1]))
    return place(folder, "start-worker", texts[2].replace("{worker}", str(worker)))


@SOAK
def test_a_process_with_a_pid_file_is_ended(tmp_path: Path) -> None:
    starter = started(tmp_path, "leaves")
    rules = pages.block("draining", "toml", "pid_file")
    here = {"/usr/local/bin/start-worker": str(starter), "/run/": "@FOLDER@/"}
    command = by_the_agent(tmp_path, pages.placed(rules, here))
    assert not judged(f"{starter}; {command}", *BY_THE_AGENT, *NOT_REPEATED)


@SOAK
def test_a_checkpoint_is_written(tmp_path: Path) -> None:
    place(tmp_path, "systemctl", PROGRAMS["systemctl"])
    starter = started(tmp_path, "saves")
    places = {"/srv/computation": "@FOLDER@"}
    command = by_the_agent(tmp_path, pages.placed(pages.block("checkpoint", "toml"), places))
    path = f"PATH={tmp_path}:$PATH"
    assert not judged(f"{path}; {starter}; {command}", *BY_THE_AGENT, *NOT_REPEATED, undrains=False)


@SOAK
def test_a_pool_is_left(tmp_path: Path) -> None:
    rules = pages.block("draining", "toml", "/room")
    with Keeping() as room:
        places = {
            "http://10.0.0.5:8405": room.url,
            "{ ready = { wait_seconds = 7 } }": f"{{ ready = {{ wait_seconds = 0.1 }} }}, {MARKS}",
        }
        assert not judged(by_the_agent(tmp_path, pages.placed(rules, places)), *BY_THE_AGENT)


@SOAK
def test_events_are_written_down_and_prepared_for_when_ten_minutes_are_left(
    tmp_path: Path,
) -> None:
    quick = f"{{ ready = {{ wait_seconds = 0.1 }} }}, {MARKS}"
    places = {"{ ready = { wait_seconds = 20 } }": quick}
    settings = pages.placed(pages.block("event-log", "toml"), places)
    # The clock of the others stands more than ten minutes before the start.
    applies = {"preempt", "terminate", "stops", "idle", "preview"}
    assert not judged(by_the_agent(tmp_path, settings), *(NAMES - applies))


# The examples of handlers.

RUN = f"""
import os, subprocess, sys
sys.path.insert(0, {str(EXAMPLES)!r})

def run(name):
    return subprocess.run([os.environ[name]], check=False).returncode == 0
"""
IN_MEMORY = """
if os.path.exists(os.environ["FOREWARN_DRAIN_LOG"]):
    run("FOREWARN_UNDRAIN")  # the drain ended with the process before
"""
WORKER_EXAMPLE = """
import worker

class Marked(worker.Worker):
    def drain(self, seconds):
        return run("FOREWARN_DRAIN") and super().drain(seconds)

    def resume(self):
        super().resume()
        run("FOREWARN_UNDRAIN")

worker.Worker = Marked
worker.main()
"""
WEB_EXAMPLE = """
import web_server

class Marked(set):
    def add(self, event_id):
        super().add(event_id)
        run("FOREWARN_DRAIN")

    def discard(self, event_id):
        if self == {event_id}:
            run("FOREWARN_UNDRAIN")
        super().discard(event_id)

web_server.going_down = Marked()
web_server.main()
"""
ECHO_EXAMPLE = """
import asyncio
import echo_server

class Marked(echo_server.Echo):
    is_back = False

    async def start(self):
        await super().start()
        if self.is_back:
            await asyncio.to_thread(run, "FOREWARN_UNDRAIN")
        self.is_back = True

    async def drain(self, seconds):
        await super().drain(seconds)
        await asyncio.to_thread(run, "FOREWARN_DRAIN")

echo_server.Echo = Marked
asyncio.run(echo_server.main())
"""
TESTED_EXAMPLE = """
import forewarn, test_handler

class Service:
    def drain(self):
        return run("FOREWARN_DRAIN")

    def undrain(self):
        run("FOREWARN_UNDRAIN")

test_handler.handle(forewarn.Client(), Service())
"""
CANNOT_FAIL = {"drain-fails"}
"""Its drain has no result: it only stops taking work, and waits."""
PYTHON = {
    "worker": (IN_MEMORY + WORKER_EXAMPLE, set()),
    "web_server": (IN_MEMORY + WEB_EXAMPLE, CANNOT_FAIL),
    "echo_server": (IN_MEMORY + ECHO_EXAMPLE, CANNOT_FAIL),
    "test_handler": (TESTED_EXAMPLE, set()),
}


@pytest.mark.parametrize(
    "scenarios", [pytest.param(FEW, id="few"), pytest.param(NAMES, marks=SOAK, id="all")]
)
@pytest.mark.parametrize("example", PYTHON)
def test_an_example_in_python_passes(tmp_path: Path, example: str, scenarios: set[str]) -> None:
    text, but = PYTHON[example]
    but = but | (NAMES - scenarios)
    (tmp_path / "marked.py").write_text(RUN + text, encoding="utf-8")
    quick = "export WEB_PORT=0 WEB_NOTICED_SECONDS=0.1 ECHO_PORT=0"
    assert not judged(f"{quick}; exec {sys.executable} {tmp_path}/marked.py", *but)


@SOAK
def test_a_program_for_each_change_of_a_watch_passes(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    (approve,) = re.findall(r"(?m)^    (curl (?:.*\\\n)+.*)$", page)
    watched = (STAND_INS / "watched").read_text("utf-8")
    program = place(tmp_path, "handle", watched.replace("APPROVE", approve))
    bin_ = Path(sys.executable).parent
    assert not judged(
        f"PATH={bin_}:$PATH; exec forewarn watch --mine --since state --exec {program}"
    )


def test_every_recipe_of_the_agent_is_certified_here() -> None:
    """A page with rules that no test above names is red."""
    pages_with_rules = {
        path.stem for path in pages.GUIDES.glob("*.md") if "[[rule]]" in path.read_text("utf-8")
    }
    assert pages_with_rules == {"checkpoint", "event-log", *RECIPES}

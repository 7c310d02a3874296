"""The handlers of the guides, each played from notice to recovery against a real service.

Each story has a machine and a folder of its own. A handler mostly waits for its next poll, so all
stories that were selected are played at the same time.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import patience
from end_to_end.agents import Endpoint, event
from end_to_end.running import Running, lasting
from forewarn.testing import Emulator
from house import tree
from ports import free_port

EXAMPLES = tree.ROOT / "docs" / "examples"
PAGES = sorted((tree.ROOT / "docs" / "guides").glob("*.md"))
JSON_DLL = Path("/usr/lib/cli/Newtonsoft.Json-5.0/Newtonsoft.Json.dll")


class Playing:
    """One handler, on a machine of its own."""

    def __init__(
        self, service: Running, machine: str, folder: Path, endpoint: str, command: tuple[str, ...]
    ) -> None:
        self.service = service
        self.machine = machine
        self._said = folder / "said"
        given = {
            **os.environ,
            "FOREWARN_ENDPOINT": f"{endpoint}/vm/{machine}",
            "ECHO_PORT": str(free_port()),
            "WEB_PORT": str(free_port()),
            "WEB_NOTICED_SECONDS": "0.2",
            "MONO_PATH": str(JSON_DLL.parent),
        }
        with self._said.open("wb") as said:
            self.process = subprocess.Popen(
                command, stdout=said, stderr=said, cwd=folder, env=given, start_new_session=True
            )
        self.environment = given

    @property
    def said(self) -> str:
        return self._said.read_text()

    def until(self, condition: Callable[[], object]) -> None:
        def holds() -> object:
            assert self.process.poll() is None, self.said
            return condition()

        patience.until(holds, lambda: self.said)

    def reboot(self) -> str:
        """Ask for a reboot, which starts at once where the handler approves; return its id."""
        asked = self.service.document("schedule", "reboot", self.machine)
        event_id: str = asked["operations"][0]["events"][0]["id"]
        return event_id

    def cancel(self, event_id: str) -> None:
        assert self.service.call("cancel", event_id).returncode == 0

    def approved(self) -> bool:
        plane = self.service.operator
        kept = plane.get(f"/v1/history?machine={self.machine}")["operations"]
        return bool(kept) and kept[0]["start_cause"] == "approved"

    def stop(self) -> int:
        """End it as a service manager does."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
        return self.process.wait(patience.SECONDS)


@dataclass
class Stage:
    """Where a story is played."""

    service: Running
    machine: str
    folder: Path
    made: list[Playing] = field(default_factory=list)

    def play(self, *command: str, endpoint: str = "") -> Playing:
        """Start the story's handler, against the service or another endpoint."""
        endpoint = endpoint or f"http://127.0.0.1:{self.service.guest_port}"
        self.made.append(Playing(self.service, self.machine, self.folder, endpoint, command))
        return self.made[-1]


def scripts(folder: Path, **names: str) -> None:
    """Programs that write down that they ran; with a file `fails` in their folder they fail."""
    for name, says in names.items():
        (folder / name).write_text(f"#!/bin/sh\necho {says} $1\n[ ! -e fails ]\n")
        (folder / name).chmod(0o755)


needs_curl = pytest.mark.skipif(
    not all(map(shutil.which, ("curl", "jq"))), reason="the shell's handler needs curl and jq"
)
needs_mono = pytest.mark.skipif(
    not (shutil.which("mcs") and shutil.which("mono") and JSON_DLL.exists()),
    reason="C# needs mono-mcs, mono and libnewtonsoft-json5.0-cil",
)


Handler = Callable[[Path], tuple[str, ...]]
"""Returns what starts it."""

Story = Callable[[Stage], None]


def in_python(_: Path) -> tuple[str, ...]:
    return (sys.executable, "-u", str(EXAMPLES / "handler.py"))


def in_shell(_: Path) -> tuple[str, ...]:
    return ("sh", str(EXAMPLES / "handle.sh"), "./drain", "./undrain")


def in_c_sharp(folder: Path) -> tuple[str, ...]:
    compiled = subprocess.run(
        [
            *("mcs", "-warnaserror", f"-r:{JSON_DLL}", f"-out:{folder}/Handle.exe"),
            str(EXAMPLES / "Handle.cs"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert compiled.returncode == 0, compiled.stdout + compiled.stderr
    return ("mono", "Handle.exe", "./drain", "./undrain")


def a_failed_drain_is_told_and_the_next_event_taken(
    stage: Stage, handler: Handler, *, missing: bool = False
) -> None:
    drains = {} if missing else {"drain": "drained"}
    scripts(stage.folder, undrain="undrained", **drains)
    (stage.folder / "fails").touch()
    playing = stage.play(*handler(stage.folder))
    event_id = playing.reboot()
    playing.until(lambda: re.search("not approved|Reboot: ", playing.said))
    assert not playing.approved()
    playing.cancel(event_id)
    playing.until(lambda: "undrained" in playing.said)  # which fails too
    (stage.folder / "fails").unlink()
    scripts(stage.folder, drain="drained", undrain="came back")
    playing.reboot()
    playing.until(lambda: "came back" in playing.said)
    assert playing.approved()


def of_two_events_the_last_one_over_brings_it_back(stage: Stage, handler: Handler) -> None:
    scripts(stage.folder, drain="drained", undrain="undrained")
    with Endpoint() as cloud:
        here = [stage.machine]
        cloud.show(event("E1", Resources=here), event("E2", Resources=here))
        playing = stage.play(*handler(stage.folder), endpoint=cloud.url)
        playing.until(lambda: sorted(cloud.approved) == ["E1", "E2"])
        cloud.show(event("E2", Resources=here))
        seen = cloud.asked
        playing.until(lambda: cloud.asked > seen + 2)  # the handler has seen that E1 is over
        assert "undrained" not in playing.said
        cloud.show()
        playing.until(lambda: "undrained" in playing.said)
        seen = cloud.asked
        playing.until(lambda: cloud.asked > seen + 2)
        assert playing.said.count("undrained") == 1


def a_few_lines_drain_approve_and_go_back_to_work(stage: Stage) -> None:
    scripts(stage.folder, drain="drained", undrain="undrained")
    handler = stage.play(*in_python(stage.folder))
    handler.reboot()
    handler.until(lambda: "undrained" in handler.said)
    assert handler.said.split() == ["drained", "undrained"]
    assert handler.approved()
    lines = (EXAMPLES / "handler.py").read_text().splitlines()
    assert len([line for line in lines if line]) < 20


def the_worker_waits_for_its_job_and_goes_back_to_work(stage: Stage) -> None:
    worker = stage.play(sys.executable, str(EXAMPLES / "worker.py"))
    worker.reboot()
    worker.until(lambda: "back at work" in worker.said)
    assert re.findall(r"(?m)^(Reboot in|approved|back at work)", worker.said) == [
        *("Reboot in", "approved", "back at work")
    ]
    assert worker.approved()
    assert worker.stop() == 0


BUSY = """
import logging, sys
sys.path.insert(0, sys.argv[1])
import worker

class Busy(worker.Worker):
    def __init__(self):
        super().__init__()
        self._working.acquire()  # as a job does that never ends

worker.Worker = Busy
logging.basicConfig(level=logging.INFO, format="%(message)s")
worker.main()
"""


def the_worker_waits_no_longer_than_the_notice_even_if_that_is_over(stage: Stage) -> None:
    """An event whose NotBefore has passed may start at any moment: no time is left at all."""
    with Endpoint() as cloud:
        cloud.show(event(notice=-60, Resources=[stage.machine]))
        worker = stage.play(sys.executable, "-c", BUSY, str(EXAMPLES), endpoint=cloud.url)
        worker.until(lambda: "not approved, for the job did not end" in worker.said)
        assert worker.said.startswith("Reboot in 0:00:00\n")
        assert cloud.approved == []
        assert worker.stop() == 0


def the_asyncio_server_closes_its_door_and_opens_it_again(stage: Stage) -> None:
    echo = stage.play(sys.executable, str(EXAMPLES / "echo_server.py"))
    echo.reboot()
    echo.until(lambda: "listening again" in echo.said)
    assert echo.said.splitlines() == ["approved", "listening again"]
    assert echo.approved()
    assert echo.stop() == 0
    assert echo.said.splitlines()[-1] == "stopped"


def the_web_server_leaves_rotation_and_comes_back(stage: Stage) -> None:
    web = stage.play(sys.executable, str(EXAMPLES / "web_server.py"))
    health = f"http://127.0.0.1:{web.environment['WEB_PORT']}/healthz"

    def status() -> str:
        asked = ["curl", "-s", "-o", os.devnull, "-w", "%{http_code}", health]
        return subprocess.run(asked, capture_output=True, text=True, check=False).stdout

    web.until(lambda: status() == "200")
    act = web.service.folder / "act"
    act.touch()
    web.reboot()
    web.until(lambda: status() == "503")
    act.unlink()
    web.until(lambda: status() == "200")
    web.until(lambda: "in service" in web.said)
    assert web.said.splitlines() == ["out of service for a Reboot", "approved", "in service"]
    assert web.approved()
    assert web.stop() == 0


def the_shells_handler_drains_approves_and_recovers(stage: Stage) -> None:
    scripts(stage.folder, drain="drained", undrain="recovered")
    handler = stage.play(*in_shell(stage.folder))
    first = handler.reboot()
    handler.until(lambda: "recovered" in handler.said)
    assert handler.said.splitlines() == [f"drained {first}", f"recovered {first}"]
    assert handler.approved()
    second = handler.reboot()
    handler.until(lambda: handler.said.count("recovered") == 2)
    assert handler.said.splitlines()[2:] == [f"drained {second}", f"recovered {second}"]


def the_handler_in_c_sharp_drains_approves_and_recovers(stage: Stage) -> None:
    scripts(stage.folder, drain="drained", undrain="recovered")
    handler = stage.play(*in_c_sharp(stage.folder))
    event_id = handler.reboot()
    handler.until(lambda: "recovered" in handler.said)
    assert handler.said.splitlines() == [f"drained {event_id}", f"recovered {event_id}"]
    assert handler.approved()


def one_document_without_the_event_brings_it_not_back(stage: Stage, handler: Handler) -> None:
    scripts(stage.folder, drain="drained", undrain="undrained")
    with Emulator() as cloud:
        cloud.machine(stage.machine)
        event = cloud.schedule("Reboot", stage.machine)
        playing = stage.play(*handler(stage.folder), endpoint=cloud.endpoint)
        playing.until(lambda: event.status == "Started")
        cloud.faults("vanished", after=1)

        def asked_on() -> bool:
            cloud.end_waits()
            return "vanished" in [each.fault for each in cloud.requests[:-3]]

        playing.until(asked_on)
        assert "undrained" not in playing.said
        cloud.finish()
        playing.until(lambda: "undrained" in playing.said)
        playing.stop()
    assert playing.said.count("undrained") == 1


def by(handler: Handler, story: Callable[..., None], *marks: Any, **more: Any) -> Any:
    """Return a story of one handler as a parameter."""

    def play(stage: Stage) -> None:
        story(stage, handler, **more)

    named = "-".join([story.__name__, handler.__name__, *(name for name in more if more[name])])
    return pytest.param(play, id=named, marks=[*NEEDS.get(handler, ()), *marks])


NEEDS = {in_shell: [needs_curl], in_c_sharp: [needs_mono]}
SOAK = pytest.mark.soak
STORIES = [
    by(in_python, a_failed_drain_is_told_and_the_next_event_taken),
    by(in_shell, a_failed_drain_is_told_and_the_next_event_taken, missing=True),
    by(in_python, a_failed_drain_is_told_and_the_next_event_taken, SOAK, missing=True),
    by(in_shell, a_failed_drain_is_told_and_the_next_event_taken, SOAK),
    by(in_c_sharp, a_failed_drain_is_told_and_the_next_event_taken, SOAK),
    by(in_c_sharp, a_failed_drain_is_told_and_the_next_event_taken, SOAK, missing=True),
    by(in_python, of_two_events_the_last_one_over_brings_it_back),
    by(in_shell, of_two_events_the_last_one_over_brings_it_back, SOAK),
    by(in_c_sharp, of_two_events_the_last_one_over_brings_it_back, SOAK),
    by(in_python, one_document_without_the_event_brings_it_not_back),
    by(in_shell, one_document_without_the_event_brings_it_not_back),
    by(in_c_sharp, one_document_without_the_event_brings_it_not_back, SOAK),
    a_few_lines_drain_approve_and_go_back_to_work,
    the_worker_waits_for_its_job_and_goes_back_to_work,
    the_worker_waits_no_longer_than_the_notice_even_if_that_is_over,
    the_asyncio_server_closes_its_door_and_opens_it_again,
    the_web_server_leaves_rotation_and_comes_back,
    pytest.param(the_shells_handler_drains_approves_and_recovers, marks=needs_curl),
    pytest.param(the_handler_in_c_sharp_drains_approves_and_recovers, marks=needs_mono),
]


@pytest.fixture(scope="module")
def played(
    request: pytest.FixtureRequest, shared_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Generator[dict[Story, "Future[None]"]]:
    """Begin every story that was selected."""
    stories = [
        item.callspec.params["story"]
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.module is request.module
        and hasattr(item, "callspec")
    ]
    service = Running(shared_folder, connector=lasting(shared_folder, seconds=1))
    service.start()
    stages = {
        story: Stage(service, f"m{number}", tmp_path_factory.mktemp("story"))
        for number, story in enumerate(stories)
    }
    service.apply("".join(f'[[machine]]\nname = "{each.machine}"\n' for each in stages.values()))
    try:
        with ThreadPoolExecutor(len(stages)) as pool:
            yield {story: pool.submit(story, stage) for story, stage in stages.items()}
    finally:
        for stage in stages.values():
            for playing in stage.made:
                playing.stop()
        assert service.stop() == 0


@pytest.mark.parametrize("story", STORIES)
def test_each_story_of_a_handler_ends_well(
    played: dict[Story, "Future[None]"], story: Story
) -> None:
    played[story].result()  # raises what the story complains of
    assert played[story].done()


def test_the_guides_and_the_readme_show_the_examples_as_they_are_run() -> None:
    """The long ones are only linked; the tests of their recipes run them."""
    pages = [tree.ROOT / "README.md", *PAGES]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    blocks = {block.strip() for block in re.findall(r"```\w+\n(.*?)```", text, re.DOTALL)}
    linked = set(re.findall(r"\]\(\.\./examples/([\w.]+)\)", text))
    examples = [path for path in EXAMPLES.iterdir() if path.is_file()]  # and no cache beside them
    shown = {path.name for path in examples if path.read_text().strip() in blocks}
    assert shown | linked == {path.name for path in examples}

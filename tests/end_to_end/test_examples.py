"""The handlers of the guides, each played from notice to recovery against a real service."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from client.scripted import Asked, document, message, serving
from client.world import listed
from end_to_end.agents import Endpoint, event
from end_to_end.running import Running, lasting
from house import tree
from ports import free_port

EXAMPLES = tree.ROOT / "docs" / "examples"
PAGES = sorted((tree.ROOT / "docs" / "guides").glob("*.md"))
WAIT_SECONDS = 60.0
JSON_DLL = Path("/usr/lib/cli/Newtonsoft.Json-5.0/Newtonsoft.Json.dll")
HANDLERS = ("in-python", "in-shell", "in-c-sharp")


@pytest.fixture(scope="module")
def service(shared_folder: Path) -> Generator[Running]:
    running = Running(shared_folder, connector=lasting(shared_folder, seconds=3))
    running.start()
    names = [f"m{number}" for number in range(6)]
    names += [f"{each}-{how}" for each in HANDLERS for how in ("missing", "failing")]
    machines = "".join(f'[[machine]]\nname = "{name}"\n' for name in names)
    running.apply(machines)
    yield running
    assert running.stop() == 0


class Playing:
    """One handler, on a machine of its own."""

    def __init__(
        self, service: Running, machine: str, folder: Path, *command: str, endpoint: str = ""
    ) -> None:
        self.service = service
        self.machine = machine
        self._said = folder / "said"
        endpoint = endpoint or f"http://127.0.0.1:{service.guest_port}"
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
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition():
            assert self.process.poll() is None, self.said
            assert time.monotonic() < deadline, self.said
            time.sleep(0.05)

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
        return self.process.wait(WAIT_SECONDS)


@pytest.fixture
def play(service: Running, tmp_path: Path) -> Generator[Callable[..., Playing]]:
    made: list[Playing] = []

    def begin(machine: str, *command: str, endpoint: str = "") -> Playing:
        made.append(Playing(service, machine, tmp_path, *command, endpoint=endpoint))
        return made[-1]

    yield begin
    for playing in made:
        playing.stop()


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


@pytest.mark.parametrize(
    ("handler", "missing"),
    [
        pytest.param(in_python, False, id="python-failing"),
        pytest.param(in_shell, True, marks=needs_curl, id="shell-missing"),
        pytest.param(in_python, True, marks=pytest.mark.soak, id="python-missing"),
        pytest.param(in_shell, False, marks=[needs_curl, pytest.mark.soak], id="shell-failing"),
        pytest.param(in_c_sharp, False, marks=[needs_mono, pytest.mark.soak], id="c#-failing"),
        pytest.param(in_c_sharp, True, marks=[needs_mono, pytest.mark.soak], id="c#-missing"),
    ],
)
def test_a_handler_whose_drain_fails_says_so_and_takes_the_next_event(
    play: Callable[..., Playing],
    tmp_path: Path,
    handler: Callable[[Path], tuple[str, ...]],
    missing: bool,
) -> None:
    drains = {} if missing else {"drain": "drained"}
    scripts(tmp_path, undrain="undrained", **drains)
    (tmp_path / "fails").touch()
    machine = f"{handler.__name__}-{'missing' if missing else 'failing'}".replace("_", "-")
    playing = play(machine, *handler(tmp_path))
    event_id = playing.reboot()
    playing.until(lambda: re.search("not approved|Reboot: ", playing.said))
    assert not playing.approved()
    playing.cancel(event_id)
    playing.until(lambda: "undrained" in playing.said)  # which fails too
    (tmp_path / "fails").unlink()
    scripts(tmp_path, drain="drained", undrain="came back")
    playing.reboot()
    playing.until(lambda: "came back" in playing.said)
    assert playing.approved()


@pytest.mark.parametrize(
    "handler",
    [
        in_python,
        pytest.param(in_shell, marks=[needs_curl, pytest.mark.soak]),
        pytest.param(in_c_sharp, marks=[needs_mono, pytest.mark.soak]),
    ],
)
def test_of_two_events_the_last_that_is_over_brings_a_handler_back(
    play: Callable[..., Playing],
    tmp_path: Path,
    cloud: Endpoint,
    handler: Callable[[Path], tuple[str, ...]],
) -> None:
    scripts(tmp_path, drain="drained", undrain="undrained")
    cloud.show(event("E1"), event("E2"))
    playing = play("web-0", *handler(tmp_path), endpoint=cloud.url)
    playing.until(lambda: sorted(cloud.approved) == ["E1", "E2"])
    cloud.show(event("E2"))
    seen = cloud.asked
    playing.until(lambda: cloud.asked > seen + 2)  # the handler has seen that E1 is over
    assert "undrained" not in playing.said
    cloud.show()
    playing.until(lambda: "undrained" in playing.said)
    seen = cloud.asked
    playing.until(lambda: cloud.asked > seen + 2)
    assert playing.said.count("undrained") == 1


def test_a_few_lines_drain_approve_and_go_back_to_work(
    play: Callable[..., Playing], tmp_path: Path
) -> None:
    scripts(tmp_path, drain="drained", undrain="undrained")
    handler = play("m0", *in_python(tmp_path))
    handler.reboot()
    handler.until(lambda: "undrained" in handler.said)
    assert handler.said.split() == ["drained", "undrained"]
    assert handler.approved()
    lines = (EXAMPLES / "handler.py").read_text().splitlines()
    assert len([line for line in lines if line]) < 20


def test_the_worker_waits_for_its_job_and_goes_back_to_work(play: Callable[..., Playing]) -> None:
    worker = play("m1", sys.executable, str(EXAMPLES / "worker.py"))
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


def test_the_worker_waits_no_longer_than_the_notice_even_if_that_is_over(
    play: Callable[..., Playing], cloud: Endpoint
) -> None:
    """An event whose NotBefore has passed may start at any moment: no time is left at all."""
    cloud.show(event(notice=-60, Resources=["m1"]))
    worker = play("m1", sys.executable, "-c", BUSY, str(EXAMPLES), endpoint=cloud.url)
    worker.until(lambda: "not approved, for the job did not end" in worker.said)
    assert worker.said.startswith("Reboot in 0:00:00\n")
    assert cloud.approved == []
    assert worker.stop() == 0


def test_the_asyncio_server_closes_its_door_and_opens_it_again(
    play: Callable[..., Playing],
) -> None:
    echo = play("m2", sys.executable, str(EXAMPLES / "echo_server.py"))
    echo.reboot()
    echo.until(lambda: "listening again" in echo.said)
    assert echo.said.splitlines() == ["approved", "listening again"]
    assert echo.approved()
    assert echo.stop() == 0
    assert echo.said.splitlines()[-1] == "stopped"


def test_the_web_server_leaves_rotation_and_comes_back(play: Callable[..., Playing]) -> None:
    web = play("m3", sys.executable, str(EXAMPLES / "web_server.py"))
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


@needs_curl
def test_the_shells_handler_drains_approves_and_recovers(
    play: Callable[..., Playing], tmp_path: Path
) -> None:
    scripts(tmp_path, drain="drained", undrain="recovered")
    handler = play("m4", *in_shell(tmp_path))
    first = handler.reboot()
    handler.until(lambda: "recovered" in handler.said)
    assert handler.said.splitlines() == [f"drained {first}", f"recovered {first}"]
    assert handler.approved()
    second = handler.reboot()
    handler.until(lambda: handler.said.count("recovered") == 2)
    assert handler.said.splitlines()[2:] == [f"drained {second}", f"recovered {second}"]


@needs_mono
def test_the_handler_in_c_sharp_drains_approves_and_recovers(
    play: Callable[..., Playing], tmp_path: Path
) -> None:
    scripts(tmp_path, drain="drained", undrain="recovered")
    handler = play("m5", *in_c_sharp(tmp_path))
    event_id = handler.reboot()
    handler.until(lambda: "recovered" in handler.said)
    assert handler.said.splitlines() == [f"drained {event_id}", f"recovered {event_id}"]
    assert handler.approved()


def test_the_guides_and_the_readme_show_the_examples_as_they_are_run() -> None:
    """The long ones are only linked; the tests of their recipes run them."""
    pages = [tree.ROOT / "README.md", *PAGES]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    blocks = {block.strip() for block in re.findall(r"```\w+\n(.*?)```", text, re.DOTALL)}
    linked = set(re.findall(r"\]\(\.\./examples/([\w.]+)\)", text))
    examples = [path for path in EXAMPLES.iterdir() if path.is_file()]  # and no cache beside them
    shown = {path.name for path in examples if path.read_text().strip() in blocks}
    assert shown | linked == {path.name for path in examples}


@pytest.mark.parametrize(
    "handler",
    [
        in_python,
        pytest.param(in_shell, marks=needs_curl),
        pytest.param(in_c_sharp, marks=[needs_mono, pytest.mark.soak]),
    ],
)
def test_one_document_without_the_event_brings_no_handler_back(
    play: Callable[..., Playing], tmp_path: Path, handler: Callable[[Path], tuple[str, ...]]
) -> None:
    scripts(tmp_path, drain="drained", undrain="undrained")
    started = document(listed(EventStatus="Started"))
    after = [started, document(), started, document(), document()]
    approved, served = [], []

    def answers(asked: Asked, _: int) -> bytes:
        if "compute" in asked.target:
            return message(200, b"web-0")
        if asked.method == "POST":
            approved.append(asked.body)
            return message(200)
        if not approved:
            return message(200, document(listed()))
        served.append(asked)
        return message(200, after[min(len(served), len(after)) - 1])

    with serving(answers) as server:
        playing = play("web-0", *handler(tmp_path), endpoint=server.url)
        playing.until(lambda: "undrained" in playing.said)
        playing.stop()
    assert len(served) >= len(after)
    assert playing.said.count("undrained") == 1

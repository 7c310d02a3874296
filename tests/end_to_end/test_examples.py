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

from end_to_end.running import Running, lasting
from house import tree
from ports import free_port

EXAMPLES = tree.ROOT / "docs" / "examples"
PAGES = sorted((tree.ROOT / "docs" / "guides").glob("*.md"))
WAIT_SECONDS = 30.0
JSON_DLL = Path("/usr/lib/cli/Newtonsoft.Json-5.0/Newtonsoft.Json.dll")


@pytest.fixture(scope="module")
def service(shared_folder: Path) -> Generator[Running]:
    running = Running(shared_folder, connector=lasting(shared_folder, seconds=3))
    running.start()
    machines = "".join(f'[[machine]]\nname = "m{number}"\n' for number in range(8))
    assert running.call("fleet", "apply", "-", stdin=machines).returncode == 0
    yield running
    assert running.stop() == 0


class Playing:
    """One handler, on a machine of its own."""

    def __init__(self, service: Running, machine: str, folder: Path, *command: str) -> None:
        self.service = service
        self.machine = machine
        self._said = folder / "said"
        given = {
            **os.environ,
            "FOREWARN_ENDPOINT": f"http://127.0.0.1:{service.guest_port}/vm/{machine}",
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

    def approved(self) -> bool:
        kept = self.service.document("history", "--machine", self.machine)["operations"]
        return bool(kept) and kept[0]["start_cause"] == "approved"

    def stop(self) -> int:
        """End it as a service manager does."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
        return self.process.wait(WAIT_SECONDS)


@pytest.fixture
def play(service: Running, tmp_path: Path) -> Generator[Callable[..., Playing]]:
    made: list[Playing] = []

    def begin(machine: str, *command: str) -> Playing:
        made.append(Playing(service, machine, tmp_path, *command))
        return made[-1]

    yield begin
    for playing in made:
        playing.stop()


def scripts(folder: Path, **names: str) -> None:
    """Programs that write down that they ran."""
    for name, says in names.items():
        (folder / name).write_text(f"#!/bin/sh\necho {says} $1\n")
        (folder / name).chmod(0o755)


def test_ten_lines_drain_approve_and_go_back_to_work(
    play: Callable[..., Playing], tmp_path: Path
) -> None:
    scripts(tmp_path, drain="drained", undrain="undrained")
    handler = play("m0", sys.executable, "-u", str(EXAMPLES / "handler.py"))
    handler.reboot()
    handler.until(lambda: "undrained" in handler.said)
    assert handler.said.split() == ["drained", "undrained"]
    assert handler.approved()
    lines = (EXAMPLES / "handler.py").read_text().splitlines()
    assert len([line for line in lines if line]) <= 10


def test_the_worker_waits_for_its_job_and_goes_back_to_work(play: Callable[..., Playing]) -> None:
    worker = play("m1", sys.executable, str(EXAMPLES / "worker.py"))
    worker.reboot()
    worker.until(lambda: "back at work" in worker.said)
    assert re.findall(r"(?m)^(Reboot in|approved|back at work)", worker.said) == [
        *("Reboot in", "approved", "back at work")
    ]
    assert worker.approved()
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


@pytest.mark.skipif(
    not all(map(shutil.which, ("curl", "jq"))), reason="the shell's handler needs curl and jq"
)
def test_the_shells_handler_drains_approves_and_recovers(
    play: Callable[..., Playing], tmp_path: Path
) -> None:
    scripts(tmp_path, drain="drained", recover="recovered")
    command = ("sh", str(EXAMPLES / "handle.sh"), "./drain", "./recover")
    handler = play("m4", *command)
    first = handler.reboot()
    handler.until(lambda: "recovered" in handler.said)
    assert handler.said.splitlines() == [f"drained {first}", f"recovered {first}"]
    assert handler.approved()
    second = handler.reboot()
    handler.until(lambda: handler.said.count("recovered") == 2)
    assert handler.said.splitlines()[2:] == [f"drained {second}", f"recovered {second}"]


@pytest.mark.skipif(
    not (shutil.which("mcs") and shutil.which("mono") and JSON_DLL.exists()),
    reason="C# needs mono-mcs, mono and libnewtonsoft-json5.0-cil",
)
def test_the_handler_in_c_sharp_drains_approves_and_recovers(
    play: Callable[..., Playing], tmp_path: Path
) -> None:
    scripts(tmp_path, drain="drained", recover="recovered")
    compiled = subprocess.run(
        [
            *("mcs", "-warnaserror", f"-r:{JSON_DLL}", f"-out:{tmp_path}/Handle.exe"),
            str(EXAMPLES / "Handle.cs"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert compiled.returncode == 0, compiled.stdout + compiled.stderr
    handler = play("m5", "mono", "Handle.exe", "./drain", "./recover")
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
    shown = {path.name for path in EXAMPLES.iterdir() if path.read_text().strip() in blocks}
    assert shown | linked == {path.name for path in EXAMPLES.iterdir() if path.is_file()}

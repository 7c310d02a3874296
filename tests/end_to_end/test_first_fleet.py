"""The first tutorial, line by line: each command is run, and prints what stands there.

What differs from run to run (ids, times, what is left of a notice) is compared by its shape.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from end_to_end.running import Running
from house import tree

PAGE = tree.ROOT / "docs" / "guides" / "first-fleet.md"
SHIPPED_PORT = "127.0.0.1:8170"
SHAPES = [
    (re.compile(r"[0-9A-F]{8}(-[0-9A-F]{4}){3}-[0-9A-F]{12}"), "GUID"),
    (re.compile(r"\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}Z"), "TIME"),
    (re.compile(r"[A-Z][a-z]{2}, \d{2} [A-Z][a-z]{2} \d{4} \d{2}:\d{2}:\d{2} GMT"), "DATE"),
    (re.compile(r"(?<=\s)(\d+m )?\d+m?s(?=\s)"), "SPAN"),
    (re.compile(r"(?<=cancelled by )[^:]+"), "SOMEBODY"),
    (re.compile(r" +"), " "),
]
NEEDED = ("bash", "curl", "jq")


@pytest.fixture
def service(tmp_path: Path) -> Generator[Running]:
    running = Running(tmp_path, connector="reboot_seconds = 3600")
    running.start()
    yield running
    assert running.stop() == 0


def steps() -> list[tuple[str, str]]:
    """Each command of the page's console blocks, with what stands below it."""
    found: list[tuple[str, str]] = []
    for block in re.findall(r"```console\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        command, printed, here = "", "", False
        for line in block.splitlines():
            if line.startswith("$ "):
                if command:
                    found.append((command, printed))
                command, printed, here = line[2:], "", line.endswith("<<'END'")
            elif here:
                command += f"\n{line}"
                here = line != "END"
            else:
                printed += f"{line}\n"
        found.append((command, printed))
    return found


def shape(text: str) -> str:
    for pattern, name in SHAPES:
        text = pattern.sub(name, text)
    return text.strip()


def play(service: Running, commands: list[str]) -> list[str]:
    """Run commands in one shell, one after the other; return what each printed."""
    mark = "--- next ---"
    script = "".join(f"{command}\necho '{mark}'\n" for command in commands)
    environment = {
        **os.environ,
        "FOREWARN_CONFIG": str(service.settings),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    shell = subprocess.run(
        ["bash"],
        input=script.replace(SHIPPED_PORT, f"127.0.0.1:{service.guest_port}"),
        capture_output=True,
        text=True,
        check=False,
        cwd=service.folder,
        env=environment,
    )
    assert shell.stderr == ""
    return shell.stdout.split(f"{mark}\n")[:-1]


@pytest.mark.skipif(
    not all(map(shutil.which, NEEDED)), reason=f"the tutorial needs {', '.join(NEEDED)}"
)
def test_the_tutorial_prints_what_it_says(service: Running) -> None:
    tour = steps()
    assert len(tour) >= 11
    printed = play(service, [command for command, _ in tour])
    for (command, expected), actual in zip(tour, printed, strict=True):
        assert shape(actual) == shape(expected), f"{command}\n{actual}"

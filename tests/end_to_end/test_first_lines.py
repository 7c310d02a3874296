"""The first lines that a newcomer types, from README, index and guides, in a clone of this tree.

Nothing is downloaded: a repository made of this tree stands for the public one, and what this
environment has installed for what `make` would install.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

import forked
from end_to_end import installed
from end_to_end.running import Running
from house import tree
from house.tree import ROOT

README, INDEX, INSTALL, FIRST_FLEET = (
    "README.md",
    "docs/index.md",
    "docs/guides/install.md",
    "docs/guides/first-fleet.md",
)
ONE_FILE_OF_TESTS = "-n 0 tests/unit/test_words.py"
"""`make test` in place of all tests, of which this is one."""


def commands(page: str) -> list[list[str]]:
    """Return the lines of each block of a page, fenced as `sh` or indented."""
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"(?ms)^```sh\n(.*?)^```|((?:^    \S[^\n]*\n)+)", text)
    return [[line.strip() for line in "".join(block).splitlines()] for block in blocks]


def run(lines: list[str], folder: Path, environment: dict[str, str]) -> str:
    ran = forked.completed(
        ["sh", "-ec", "\n".join(lines)], cwd=folder, env=os.environ | environment
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def run_until(words: str, lines: list[str], folder: Path, environment: dict[str, str]) -> None:
    """Run lines that take long until these words are printed, and press Ctrl-C then."""
    shell = subprocess.Popen(
        ["sh", "-ec", "\n".join(lines)],
        cwd=folder,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert shell.stdout is not None
    printed = []
    try:
        for line in shell.stdout:
            printed.append(line)
            if words in line:
                break
        assert words in "".join(printed[-1:]), "".join(printed)
    finally:
        os.killpg(shell.pid, signal.SIGINT)
        shell.communicate()  # until all of its processes have closed it


def set_up(clone: Path) -> dict[str, str]:
    """Give a clone this environment as its own, as `make` leaves it after it has installed.

    It is compiled, too: else each process of the demo would compile the package first.
    """
    for source in (clone / "src").rglob("*.py"):
        shutil.copystat(ROOT / source.relative_to(clone), source)
    for compiled in (ROOT / "src").rglob("__pycache__"):
        there = clone / compiled.relative_to(ROOT)
        shutil.copytree(compiled, there, ignore=shutil.ignore_patterns("*.pyc.*"))  # half written
    venv = clone / ".venv"
    venv.mkdir()
    for name in ("bin", "lib", "pyvenv.cfg"):
        (venv / name).symlink_to(Path(sys.prefix) / name)
    for stamp in (".server", ".dev", ".collected"):
        (venv / stamp).touch()
    return {"PYTHONPATH": str(clone / "src")}


def test_the_readmes_first_lines_clone_it_show_it_and_test_it(tmp_path: Path) -> None:
    lines = commands(README)[0]
    assert [line.partition("  #")[0].rstrip() for line in lines[2:]] == ["make demo", "make test"]
    git = installed.published(tmp_path / "public")
    clone = tmp_path / "forewarn"
    assert run([*lines[:2], "pwd"], tmp_path, git) == f"{clone}\n"
    ours = set_up(clone)
    run_until("Scheduled, not before", [lines[2]], clone, ours)
    printed = run([lines[3]], clone, ours | {"ARGS": ONE_FILE_OF_TESTS})
    assert re.search(r"[1-9]\d* passed", printed), printed


def test_other_pages_begin_as_the_readme_which_installs_as_the_guide_does() -> None:
    """The guide's lines are run by test_install.py, and what follows by test_demo.py."""
    first, (*install, demo), *_ = commands(README)
    readme = [line.partition("  #")[0].rstrip() for line in first]
    for page in (INDEX, INSTALL):
        lines = commands(page)[0]
        assert len(lines) >= 2
        assert lines == readme[: len(lines)], page
    assert demo.startswith("forewarn demo --keep")
    assert [*install, "forewarn --version"] in commands(INSTALL)


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
    with Running(tmp_path, connector="reboot_seconds = 3600") as running:
        yield running


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
    shell = forked.completed(
        ["bash"],
        input=script.replace(SHIPPED_PORT, f"127.0.0.1:{service.guest_port}"),
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

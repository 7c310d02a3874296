"""The first lines that a newcomer types, from README, index and guides, in a clone of this tree.

Nothing is downloaded: a repository made of this tree stands for the public one, and what this
environment has installed for what `make` would install.
"""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from end_to_end import installed
from house.tree import ROOT

README, INDEX, INSTALL, FIRST_FLEET = (
    "README.md",
    "docs/index.md",
    "docs/guides/install.md",
    "docs/guides/first-fleet.md",
)
ONE_FILE_OF_TESTS = "-n 0 tests/unit/test_times.py"
"""`make test` in place of all tests, of which this is one."""


def commands(page: str) -> list[list[str]]:
    """Return the lines of each block of a page, fenced as `sh` or indented."""
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"(?ms)^```sh\n(.*?)^```|((?:^    \S[^\n]*\n)+)", text)
    return [[line.strip() for line in "".join(block).splitlines()] for block in blocks]


def run(lines: list[str], folder: Path, environment: dict[str, str]) -> str:
    ran = subprocess.run(
        ["sh", "-ec", "\n".join(lines)],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
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
    """Give a clone this environment as its own, as `make` leaves it after it has installed."""
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


@pytest.mark.parametrize("page", [INDEX, INSTALL])
def test_another_page_begins_as_the_readme(page: str) -> None:
    readme = [line.partition("  #")[0].rstrip() for line in commands(README)[0]]
    lines = commands(page)[0]
    assert len(lines) >= 2
    assert lines == readme[: len(lines)]


def test_the_readme_installs_it_as_the_guide_does() -> None:
    """The guide's lines are run by test_install_page.py, and what follows by test_demo.py."""
    *lines, demo = commands(README)[1]
    assert demo.startswith("forewarn demo --keep")
    assert [*lines, "forewarn --version"] in commands(INSTALL)

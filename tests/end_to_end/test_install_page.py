"""The guide `install.md` as it stands: each way is run in a clone of this tree."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import forked
from end_to_end import installed
from forewarn.version import __version__
from recipes import pages

PAGE = "install"
BASE_PYTHON = sys._base_executable
TEXT = (pages.GUIDES / f"{PAGE}.md").read_text(encoding="utf-8")
CLONE, *_ = pages.blocks(PAGE, "sh")


def ways() -> list[tuple[str, str]]:
    """Return each block that installs, with the heading that it stands below."""
    sections = re.split(r"(?m)^### ", TEXT.partition("\n## Under systemd")[0])[1:]
    return [
        (section.partition("\n")[0], text)
        for section in sections
        for text in pages.blocks(PAGE, "sh")
        if text in section
    ]


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return installed.published(tmp_path_factory.mktemp("git") / "public")


def test_each_way_is_run() -> None:
    named = [way for way, _ in ways()]
    assert named == ["A virtual environment", "A virtual environment", "pipx or uv", "pipx or uv"]


def program_of(text: str) -> str:
    (found,) = re.findall(r"(?m)^(pipx|uv|python3) ", text)
    return str(found)


@pytest.mark.soak
@pytest.mark.parametrize("text", [text for _, text in ways()])
def test_a_way_leads_to_a_program_that_runs(
    text: str, public: dict[str, str], tmp_path: Path
) -> None:
    program = program_of(text)
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    here = {"/opt/": f"{tmp_path}/opt/", "/usr/local/bin": f"{tmp_path}/bin"}
    places = {written: place for written, place in here.items() if written in text}
    for folder in ("opt", "bin", "builder"):
        (tmp_path / folder).mkdir()
    settings = installed.builder(tmp_path / "builder")
    if program != "python3":  # these take no package without its dependencies: asked of an index
        settings = {**os.environ, "PIP_NO_COMPILE": "1"}
    function = f'forewarn() {{ PYTHONPATH={installed.DEPENDENCIES} command forewarn "$@"; }}\n'
    path = [tmp_path / "bin", tmp_path / ".local/bin", Path(BASE_PYTHON).parent, os.environ["PATH"]]
    ran = forked.completed(
        ["sh", "-ec", function + CLONE + pages.placed(text, places)],
        cwd=tmp_path,
        env={**settings, **public, "HOME": str(tmp_path), "PATH": os.pathsep.join(map(str, path))},
    )
    assert ran.returncode == 0, ran.stderr
    assert f"forewarn {__version__}" in ran.stdout.splitlines()
    places_of_programs = ("bin", ".local/bin", "forewarn/venv/bin")
    (found,) = [
        path for each in places_of_programs if (path := tmp_path / each / "forewarn").exists()
    ]
    assert found.resolve().is_relative_to(tmp_path)


@pytest.mark.soak
def test_the_first_line_of_the_guide_to_testing_brings_its_plugin_of_pytest(
    public: dict[str, str], tmp_path: Path
) -> None:
    page = (pages.GUIDES / "testing.md").read_text(encoding="utf-8")
    (line, *_) = re.findall(r"(?m)^    (\S.*)$", page)
    assert line.startswith("pip install ")
    venv = tmp_path / "venv"
    subprocess.run([BASE_PYTHON, "-m", "venv", venv], check=True)
    (tmp_path / "builder").mkdir()
    settings = installed.builder(tmp_path / "builder", "pytest", "iniconfig")
    settings |= {**public, "HOME": str(tmp_path), "PATH": f"{venv}/bin:{os.environ['PATH']}"}
    subprocess.run(["sh", "-ec", line], env=settings, cwd=tmp_path, check=True)
    (brought,) = venv.glob("lib/*/site-packages/forewarn-*.dist-info/entry_points.txt")
    assert "[pytest11]" in brought.read_text()

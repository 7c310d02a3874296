"""The guide `install.md` as it stands: each way is run with the built wheel."""

import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from end_to_end import installed
from forewarn.version import __version__
from recipes import pages

PAGE = "install"
BASE_PYTHON = sys._base_executable
TEXT = (pages.GUIDES / f"{PAGE}.md").read_text(encoding="utf-8")
MARKED = {
    "pipx": pytest.mark.soak,  # a tool that not everybody has
    "uv": pytest.mark.soak,
}
SYSTEM_PYTHON = "/usr/bin/python3"


def ways() -> list[tuple[str, str]]:
    """Return each block that installs, with the heading that it stands below."""
    sections = re.split(r"(?m)^### ", TEXT.partition("\n## Under systemd")[0])[1:]
    return [
        (section.partition("\n")[0], text)
        for section in sections
        for text in pages.blocks(PAGE, "sh")
        if text in section
    ]


def dependencies() -> set[str]:
    """Return the names of what the package requires, with its extra for the service.

    This environment has them: the program is shown these, and nothing is downloaded.
    """
    required = metadata.requires("forewarn") or []
    taken = [line for line in required if "extra ==" not in line or "server" in line]
    return {re.split(r"[^\w-]", line)[0] for line in taken}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed.built(tmp_path_factory.mktemp("wheel"))


def test_each_way_is_run() -> None:
    assert [way for way, _ in ways()] == ["A virtual environment", "pipx", "pipx", "uv", "uv"]


@pytest.mark.parametrize(
    ("way", "text"), [pytest.param(*each, marks=MARKED.get(each[0], ())) for each in ways()]
)
def test_a_way_leads_to_a_program_that_runs(
    way: str, text: str, wheel: Path, tmp_path: Path
) -> None:
    if way in MARKED and shutil.which(way) is None:
        pytest.skip(f"{way} is not installed")
    places = {"'forewarn[server]'": f"'forewarn[server] @ {wheel.as_uri()}'"}
    here = {"/opt/": f"{tmp_path}/opt/", "/usr/local/bin": f"{tmp_path}/bin"}
    here[f"--python {SYSTEM_PYTHON}"] = f"--python {BASE_PYTHON}"
    places |= {written: place for written, place in here.items() if written in text}
    for folder in ("opt", "bin"):
        (tmp_path / folder).mkdir()
    left_out = tmp_path / "overrides"
    left_out.write_text("".join(f"{name}; python_version < '3'\n" for name in dependencies()))
    settings = {"UV_OFFLINE": "1", "UV_OVERRIDE": str(left_out)}
    settings |= {"PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}
    if way == "pipx":  # it takes no package without its dependencies: asks this machine's index
        settings = {**os.environ, "PIP_NO_COMPILE": "1"}
    program = f'forewarn() {{ PYTHONPATH={installed.DEPENDENCIES} command forewarn "$@"; }}\n'
    path = [tmp_path / "bin", tmp_path / ".local/bin", Path(BASE_PYTHON).parent, os.environ["PATH"]]
    ran = subprocess.run(
        ["sh", "-ec", program + pages.placed(text, places)],
        cwd=tmp_path,
        env={**settings, "HOME": str(tmp_path), "PATH": os.pathsep.join(map(str, path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == f"forewarn {__version__}"
    programs = [tmp_path / "bin" / "forewarn", tmp_path / ".local" / "bin" / "forewarn"]
    (found,) = [each for each in programs if each.exists()]
    assert found.resolve().is_relative_to(tmp_path)


@pytest.mark.parametrize("text", pages.blocks(PAGE, "sh"))
def test_every_block_is_well_formed(text: str) -> None:
    checked = subprocess.run(["sh", "-n"], input=text, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")

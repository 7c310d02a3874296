"""The wheel has all that it ships; `install.md` is run in a clone."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import forked
from end_to_end import installed
from forewarn.version import __version__
from house import tree
from house.tree import ROOT
from recipes import pages

PACKAGING = ROOT / "packaging"
NOT_SHIPPED = {"Containerfile", "compose.yaml", "haproxy.cfg"}
"""Of whole deployments: to read in the repository."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed.built(tmp_path_factory.mktemp("wheel"))


def shipped(wheel: Path, folder: str) -> dict[str, bytes]:
    """Return what the wheel has below a folder, by the path below it."""
    with zipfile.ZipFile(wheel) as opened:
        return {
            name.partition(folder)[2]: opened.read(name)
            for name in opened.namelist()
            if folder in name
        }


def test_the_wheel_has_every_unit_setting_and_rule_as_it_stands(wheel: Path) -> None:
    there = {
        str(path.relative_to(PACKAGING)): path.read_bytes()
        for path in tree.committed_files()
        if path.parent == PACKAGING and path.name not in NOT_SHIPPED and path.suffix != ".py"
    }
    assert shipped(wheel, "forewarn/packaging/") == there


def test_the_wheel_has_the_pages_templates_its_files_and_their_licence(wheel: Path) -> None:
    folder = ROOT / "src" / "forewarn" / "server" / "page"
    there = {
        f"{part}/{path.relative_to(folder / part)}": path.read_bytes()
        for part in ("templates", "static")
        for path in (folder / part).rglob("*")
        if path.is_file()
    }
    assert "static/htmx/LICENSE" in there
    found = shipped(wheel, "forewarn/server/page/")
    assert {name: body for name, body in found.items() if not name.endswith(".py")} == there


def test_the_image_is_built_of_what_its_context_has(tmp_path: Path) -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    kept = [ROOT / line[1:] for line in lines if line.startswith("!")]
    for path in tree.committed_files():
        if any(path == each or each in path.parents for each in kept):
            to = tmp_path / path.relative_to(ROOT)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, to)
    assert installed.built(tmp_path / "dist", of=tmp_path).suffix == ".whl"


PAGE = "install"
BASE_PYTHON = sys._base_executable
TEXT = (pages.GUIDES / f"{PAGE}.md").read_text(encoding="utf-8")
CLONE, *_ = pages.blocks(PAGE, "sh")


WAYS = [
    block
    for block in pages.blocks(PAGE, "sh")
    if block in TEXT.partition("\n## Under systemd")[0].partition("\n### ")[2]
]
"""Each block that installs."""


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return installed.published(tmp_path_factory.mktemp("git") / "public")


def program_of(text: str) -> str:
    (found,) = re.findall(r"(?m)^(pipx|uv|python3) ", text)
    return str(found)


def test_each_way_is_run() -> None:
    assert list(map(program_of, WAYS)) == ["python3", "python3", "pipx", "uv"]


@pytest.mark.soak
@pytest.mark.parametrize("text", WAYS)
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

"""Every block of every page is judged by its language and its first line.

A page is run by a test of its own only where there is more to see: what a command prints, say.
"""

import ast
import configparser
import json
import re
import shutil
import subprocess
import textwrap
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple
from xml.etree import ElementTree as ET

import msgspec
import pytest
import yaml

from forewarn.cli import main
from forewarn.maintenance import fleet_file
from forewarn.relay import settings as relay_settings
from forewarn.server import settings
from house import tree
from recipes import pages

FLEET: Final = {"machine", "availability_set", "scale_set", "cloud_service"}
AGENT: Final = {"rule", "peers", "client", "status"}
PACKAGING: Final = tree.ROOT / "packaging"
UNITS: Final = tuple(sorted(PACKAGING.glob("*.s[eo][rc][vk]*")))


class Block(NamedTuple):
    """A fenced block of a page."""

    page: str
    number: int
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.number}:{self.language}"


def _blocks() -> list[Block]:
    pages = [path for path in tree.committed_files() if path.suffix == ".md"]
    fence = re.compile(r"(?ms)^```([\w-]+)\n(.*?)^```")
    return [
        Block(tree.shown(page), number, *found)
        for page in pages
        if page.name == "README.md" or page.is_relative_to(tree.ROOT / "docs")
        for number, found in enumerate(fence.findall(page.read_text(encoding="utf-8")))
    ]


def _ran(*command: str, given: str | None = None) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"needs {command[0]}")
    ran = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "[WARNING]" not in ran.stderr


def shell(text: str, folder: Path) -> None:
    del folder
    _ran("sh", "-n", given=text)


def console(text: str, folder: Path) -> None:
    """Commands after a prompt, with what they print; documents that a shell reads are left out."""
    lines = re.findall(r"(?m)^[$#] ([^<\n]*)$", text.replace("\\\n", ""))
    shell("\n".join(lines), folder)


def settings_or_fleet(text: str, folder: Path) -> None:
    """Settings of the service, a relay or an agent, or a fleet file: by the names on top."""
    read = tomllib.loads(text)
    path = folder / "block.toml"
    path.write_text(text, encoding="utf-8")
    given = {"STATE_DIRECTORY": str(folder)}
    if FLEET.issuperset(read):
        assert fleet_file.flatten(msgspec.convert(read, fleet_file.Fleet))
    elif "upstream" in read:
        assert relay_settings.load(path, given).upstream.urls
    elif AGENT.intersection(read):
        assert main.execute(["agent", "check", "--config", str(path)]) == 0
    else:
        assert settings.load(path, given) != settings.load(None, given)


def unit(text: str, folder: Path) -> None:
    """Sections of a unit, of a drop-in, or of PostgreSQL's settings, which have none."""
    del folder
    parser = configparser.RawConfigParser(strict=False)
    parser.read_string(text if "[" in text else f"[all]\n{text}")
    assert parser.sections()


def packets(text: str, folder: Path) -> None:
    (folder / "block.nft").write_text(text)
    _ran("nft", "-c", "-f", str(folder / "block.nft"))


def balancer(text: str, folder: Path) -> None:
    (folder / "haproxy.cfg").write_text(text)
    _ran("haproxy", "-c", "-f", str(folder / "haproxy.cfg"))


CHECKERS: Final[dict[str, Callable[[str, Path], object]]] = {
    "sh": shell,
    "console": console,
    "toml": settings_or_fleet,
    "ini": unit,
    "nft": packets,
    "haproxy": balancer,
    "python": lambda text, _: compile(textwrap.dedent(text), "block", "exec"),
    "json": lambda text, _: [json.loads(line) for line in text.splitlines()],
    "yaml": lambda text, _: list(yaml.safe_load_all(text)),
    "xml": lambda text, _: ET.fromstring(f"<all>{text}</all>"),
}
UNJUDGED: Final = {"nginx", "js", "sql", "conf", "ssh-config", "mermaid", "text"}
"""Drawings, outputs, and lines of other programs: tests of their pages run them."""


@pytest.mark.parametrize("block", _blocks(), ids=lambda block: block.place)
def test_a_block_is_taken_as_it_stands(block: Block, tmp_path: Path) -> None:
    assert (block.language in CHECKERS) is (block.language not in UNJUDGED)
    if block.language in CHECKERS:
        CHECKERS[block.language](block.text, tmp_path)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_takes_the_packaged_units_and_the_pages_own_and_drop_ins(tmp_path: Path) -> None:
    for path in UNITS:
        (tmp_path / path.name).write_text(path.read_text(encoding="utf-8"))
    for number, block in enumerate(each for each in _blocks() if each.language == "ini"):
        if block.text.startswith("[Unit]"):
            (tmp_path / f"page-{number}.service").write_text(block.text)
        for section, name in (("[Service]", "service"), ("[Socket]", "socket")):
            if block.text.startswith(section):
                drop_in = tmp_path / f"forewarn.{name}.d" / f"{number}.conf"
                drop_in.parent.mkdir(exist_ok=True)
                drop_in.write_text(block.text)
    units = [path for path in tmp_path.iterdir() if path.is_file()]
    for path in units:
        text = re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", path.read_text())
        path.write_text(text)
    argv = ["systemd-analyze", "verify", "--man=no", *map(str, units)]
    checked = subprocess.run(argv, capture_output=True, text=True, check=False)
    ours = re.compile("|".join(re.escape(path.name) for path in units))
    assert [line for line in checked.stderr.splitlines() if ours.search(line)] == []


def test_the_guides_and_the_readme_show_the_examples_as_they_are_run() -> None:
    """The long ones are only linked; certify and the tests of their recipes run them."""
    examples = tree.ROOT / "docs" / "examples"
    pages = [tree.ROOT / "README.md", *(tree.ROOT / "docs" / "guides").glob("*.md")]
    blocks = {block.text.strip() for block in _blocks()}
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    linked = set(re.findall(r"\]\(\.\./examples/([\w.]+)\)", text))
    files = [path for path in examples.iterdir() if path.is_file()]  # and no cache beside them
    shown = {path.name for path in files if path.read_text().strip() in blocks}
    assert shown | linked == {path.name for path in files}
    for path in files:
        if path.suffix == ".sh":
            _ran("bash", "-n", str(path))


def _read_by_tests(module: ast.Module) -> Iterator[tuple[str, ...]]:
    """Yield the page, the language and the words of each block that is read by its words alone."""
    named = {
        target.id: node.value
        for node in module.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    for call in ast.walk(module):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "pages.block":
            told = [named.get(a.id, a) if isinstance(a, ast.Name) else a for a in call.args]
            words = [each.value for each in told if isinstance(each, ast.Constant)]
            if len(words) == len(told):
                yield (*words,)


def test_every_block_that_a_test_reads_is_on_its_page() -> None:
    """Those that need a hypervisor or a database read pages too, and run less often."""
    modules = [ast.parse(path.read_text("utf-8")) for path in tree.python_files("tests")]
    read = [each for module in modules for each in _read_by_tests(module)]
    assert len(read) > 30
    for each in read:
        assert pages.block(*each)

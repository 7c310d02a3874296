"""The documentation keeps step: headings, links, the rooms, names of tests, what is released."""

import re
import tomllib
from pathlib import Path

import reference

from forewarn.maintenance.news import NewsData, NewsType
from forewarn.vocabulary import ErrorCode
from house import tree
from stories import lines_beside

LINK = re.compile(r"\[[^\]]*\]\((?!https?://|#|mailto:)([^)#\s]+)(?:#[^)]*)?\)")
PAGES = [path for path in tree.committed_files() if path.suffix == ".md"]


def headings(page: str) -> set[str]:
    return set(re.findall(r"^##+ `([^`]+)`$", reference.page(page), re.MULTILINE))


def test_each_error_code_and_each_type_of_news_has_its_heading() -> None:
    assert headings("errors.md") == {code.value for code in ErrorCode}
    assert headings("news.md") == {kind.value for kind in NewsType}


def test_every_fact_of_news_is_in_the_table() -> None:
    text = reference.page("news.md").partition("| fact |")[2].partition("## ")[0]
    cells = re.findall(r"^\| (`[^|]+) \|", text, re.MULTILINE)
    facts = {name for cell in cells for name in re.findall(r"`([a-z_]+)`", cell)}
    assert facts == set(NewsData.__struct_fields__)


def test_the_map_has_the_rooms_of_the_import_contract() -> None:
    text = (tree.ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    block = re.search(r"## The rooms.*?```\n(.*?)```", text, re.DOTALL)
    assert block is not None
    drawn = re.findall(r"(?m)^(\w+(?: \| \w+)*)(?:  |$)", block[1])
    contracts = tomllib.loads((tree.ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (layers,) = [
        each["layers"]
        for each in contracts["tool"]["importlinter"]["contracts"]
        if each["type"] == "layers"
    ]
    assert drawn == [each for each in layers if each != "__main__"]


def test_every_link_between_pages_leads_somewhere() -> None:
    assert not [
        f"{tree.shown(page)}: {link}"
        for page in PAGES
        for link in LINK.findall(page.read_text(encoding="utf-8"))
        if not (page.parent / link).exists()
    ]


def test_the_index_of_decisions_names_each_of_them() -> None:
    folder = tree.ROOT / "docs" / "internals" / "decisions"
    index = (folder / "README.md").read_text(encoding="utf-8")
    pages = sorted(path.name for path in folder.glob("0*.md"))
    assert pages
    assert [page for page in pages if page not in index] == []


def test_the_limits_on_the_page_about_security_are_settings() -> None:
    page = (tree.ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:guest|rules|operator)\.[a-z_]+)`", page))
    assert len(named) > 10
    assert named <= headings("settings.md")


def test_every_page_is_in_the_sites_table_of_contents_once() -> None:
    contents = (tree.ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    named = re.findall(r": (\S+\.md)$", contents, re.MULTILINE)
    docs = tree.ROOT / "docs"
    pages = {str(page.relative_to(docs)) for page in PAGES if page.is_relative_to(docs)}
    assert sorted(named) == sorted(p for p in pages if not p.startswith("internals/decisions/0"))


def test_the_readme_has_no_link_that_works_on_one_site_only() -> None:
    readme = (tree.ROOT / "README.md").read_text(encoding="utf-8")
    base = "https://github.com/forewarn/forewarn/blob/main/"
    assert LINK.findall(readme) == []
    inside = re.findall(rf"\({re.escape(base)}([^)#]+)", readme)
    assert len(inside) > 10
    assert [path for path in inside if not (tree.ROOT / path).exists()] == []


def found_in(kind: str, pattern: str) -> set[str]:
    """Return what the committed files of a kind have by a pattern, with the names of stories."""
    return {
        f"`{path.name}`: {found}" if kind == "*.txt" else found
        for path in tree.committed_files()
        if path.match(kind)
        for found in re.findall(pattern, path.read_text(encoding="utf-8"), re.MULTILINE)
    }


def test_every_test_and_every_story_that_a_page_names_is_there() -> None:
    tests, stories = found_in("*.md", r"`(test_\w+)`"), found_in("*.md", r"`\w+\.txt`: [^|]+\b")
    assert tests
    assert tests <= found_in("test_*.py", r"def (test_\w+)")
    assert stories
    assert stories <= found_in("*.txt", r"^story (.+)$")


# No page and no message names a command that cannot work before the first release.

INSTALL = re.compile(
    r"\b(?:pip3? install|pipx (?:install|run)|uvx|uv (?:add|pip install|tool (?:install|run))"
    r"|apt(?:-get)? install|(?:docker|podman) (?:image )?pull)\b(?P<arguments>[^`\n&;|]*)"
)
BY_NAME = re.compile(r"(?<![\w./-])forewarn(?:-agent)?+(?:\[[\w,-]*\])?+(?![\w./-])(?! @ )")
"""The package of that name: neither a path, nor `forewarn[server] @ git+https://...`."""
OF_A_RELEASE = re.compile(r"\bgh (?:release|attestation)\b|/releases/(?:latest|download)\b")
PROMISE = re.compile(
    r"It is not on a package index yet; once it is released, `pip install 'forewarn\[server\]'`"
)
"""The one sentence that may: it says itself that the command does not work yet."""
PROMISED = ("README.md", "docs/guides/install.md")
FOLDERS = ("docs", "packaging", "src")
RELEASED = any(
    "not released yet" not in line
    for line in tree.lines_of(tree.ROOT / "CHANGELOG.md")
    if re.match(r"## \d", line)
)


def spoken() -> list[Path]:
    folders = [tree.ROOT / folder for folder in FOLDERS]
    return [
        path
        for path in tree.committed_files()
        if path.name == "README.md" or any(path.is_relative_to(folder) for folder in folders)
    ]


def impossible(text: str) -> list[str]:
    """Return the commands that need a release, without those of the promise."""
    whole = PROMISE.sub("", text).replace("\\\n", " ")
    by_name = [m[0] for m in INSTALL.finditer(whole) if BY_NAME.search(m["arguments"])]
    return by_name + OF_A_RELEASE.findall(whole)


def test_a_command_that_needs_a_release_is_found_and_one_from_a_clone_is_not() -> None:
    for command, needs in lines_beside(__file__, "commands.txt"):
        assert bool(impossible(command)) is bool(needs), command


def test_before_the_first_release_no_page_or_message_names_one_that_needs_it() -> None:
    assert RELEASED or not [
        f"{tree.shown(path)}: {command}"
        for path in spoken()
        for command in impossible("\n".join(tree.lines_of(path)))
    ]


def test_two_pages_promise_the_release_until_it_is_there() -> None:
    promises = [
        tree.shown(path)
        for path in spoken()
        for _ in PROMISE.findall("\n".join(tree.lines_of(path)))
    ]
    assert sorted(promises) == ([] if RELEASED else sorted(PROMISED))

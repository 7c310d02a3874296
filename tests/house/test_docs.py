"""The documentation keeps step: every error code has its heading, every link leads somewhere."""

import re

import reference

from forewarn.vocabulary import ErrorCode
from house import tree

LINK = re.compile(r"\[[^\]]*\]\((?!https?://|#|mailto:)([^)#\s]+)(?:#[^)]*)?\)")
PAGES = [path for path in tree.committed_files() if path.suffix == ".md"]


def headings(page: str) -> set[str]:
    return set(re.findall(r"^##+ `([^`]+)`$", reference.page(page), re.MULTILINE))


def test_each_error_code_has_its_heading() -> None:
    assert headings("errors.md") == {code.value for code in ErrorCode}


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


def test_the_operators_guide_rests_on_every_scenario() -> None:
    guide = (tree.ROOT / "docs" / "guides" / "operating.md").read_text(encoding="utf-8")
    scenarios = sorted(path.name for path in (tree.ROOT / "tests" / "scenarios").glob("*.txt"))
    assert scenarios
    assert [name for name in scenarios if f"scenarios/{name})" not in guide] == []


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


def test_every_test_that_a_page_names_is_there() -> None:
    tests = [path for path in tree.committed_files() if path.name.startswith("test_")]
    known = {
        name
        for path in tests
        for name in re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8"))
    }
    named = {
        name
        for page in PAGES
        for name in re.findall(r"`(test_\w+)`", page.read_text(encoding="utf-8"))
    }
    assert len(named) > 10
    assert named <= known


def test_every_story_that_a_page_names_is_there() -> None:
    texts = [path for path in tree.committed_files() if path.suffix == ".txt"]
    known = {
        f"`{path.name}`: {title}"
        for path in texts
        for title in re.findall(r"(?m)^story (.+)$", path.read_text(encoding="utf-8"))
    }
    named = {
        name
        for page in PAGES
        for name in re.findall(r"`\w+\.txt`: [^|]+\b", page.read_text(encoding="utf-8"))
    }
    assert named
    assert named <= known

"""The recipes' pages, whose blocks are what the tests run."""

import re

from house.tree import ROOT

GUIDES = ROOT / "docs" / "guides"


def blocks(page: str, language: str) -> list[str]:
    """Return a page's blocks of one language, as they stand.

    Args:
        page: The page's name without its `.md`.
        language: What its fence says, as `toml`.
    """
    text = (GUIDES / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(rf"(?ms)^```{language}\n(.*?)^```", text)


def block(page: str, language: str, words: str = "") -> str:
    """Return the one block of a language that has some words in it."""
    found = [text for text in blocks(page, language) if words in text]
    assert len(found) == 1, (page, language, words, len(found))
    return found[0]


def placed(text: str, places: dict[str, str]) -> str:
    """Return a page's text with its addresses and paths made the test's.

    Each must be in the text: a page that says something else is not run as if it did not.
    """
    for written, here in places.items():
        assert written in text, (written, text)
        text = text.replace(written, here)
    return text

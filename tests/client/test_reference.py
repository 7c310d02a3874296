"""The client's page says what its docstrings say, of every public name."""

from pathlib import Path

import forewarn
from client import reference

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "client.md"


def test_the_page_is_what_the_docstrings_say() -> None:
    written = PAGE.read_text(encoding="utf-8")
    assert written == reference.page(), "write it again: see its second paragraph"


def test_every_public_name_has_its_place_on_the_page() -> None:
    named = {name for names in reference.SECTIONS.values() for name in names}
    assert named == set(forewarn.__all__) - {"__version__"}

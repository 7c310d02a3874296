"""The page of news speaks of every type and every fact, and of nothing else."""

import re
from pathlib import Path

from forewarn.maintenance.news import NewsData, NewsType

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "news.md"


def test_every_type_has_its_heading() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert re.findall(r"^### `([a-z_.]+)`$", text, re.MULTILINE) == [str(t) for t in NewsType]


def test_every_fact_is_in_the_table() -> None:
    text = PAGE.read_text(encoding="utf-8").partition("| fact |")[2].partition("## ")[0]
    cells = re.findall(r"^\| (`[^|]+) \|", text, re.MULTILINE)
    facts = {name for cell in cells for name in re.findall(r"`([a-z_]+)`", cell)}
    assert facts == set(NewsData.__struct_fields__)

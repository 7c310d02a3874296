"""The map of the rooms is the import contract that is kept."""

import re
import tomllib

from house.tree import ROOT


def test_the_map_has_the_rooms_of_the_import_contract() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    block = re.search(r"## The rooms.*?```\n(.*?)```", text, re.DOTALL)
    assert block is not None
    drawn = re.findall(r"(?m)^(\w+(?: \| \w+)*)(?:  |$)", block[1])
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (layers,) = [
        each["layers"]
        for each in contracts["tool"]["importlinter"]["contracts"]
        if each["type"] == "layers"
    ]
    assert drawn == [each for each in layers if each != "__main__"]

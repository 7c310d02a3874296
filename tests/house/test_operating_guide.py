"""Each sentence of the guide to operating has a scenario or a test behind it, by name."""

import re
from pathlib import Path

from house import tree

GUIDE = tree.ROOT / "docs" / "guides" / "operating.md"
TESTS = tree.ROOT / "tests"
SAID = "said"


def sentences() -> list[str]:
    """The guide's sentences, without headings, commands and lists of scenarios."""
    found: list[str] = []
    for block in re.split(r"\n\s*\n", GUIDE.read_text(encoding="utf-8")):
        if block.startswith(("#", "    ", "Scenario")):
            continue
        text = re.sub(r"^\d+\. ", "", block, flags=re.MULTILINE).replace("**", "")
        found += re.split(r"(?<=[.:?]) (?=[A-Z`\[])", " ".join(text.split()))
    return found


def backing() -> dict[str, list[str]]:
    """What stands behind a sentence, by its beginning."""
    found: dict[str, list[str]] = {}
    for line in Path(__file__).with_name("operating_guide.txt").read_text("utf-8").splitlines():
        if line.startswith("  "):
            found[list(found)[-1]].append(line.strip())
        elif line and not line.startswith("#"):
            assert line not in found, line
            found[line] = []
    return found


def is_there(proof: str) -> bool:
    """Whether there is such a scenario, or such a test."""
    if "::" not in proof:
        return (TESTS / "scenarios" / f"{proof}.txt").is_file()
    place, _, name = proof.partition("::")
    file = TESTS / place
    return file.is_file() and f"def {name}(" in file.read_text(encoding="utf-8")


def test_each_sentence_of_the_guide_has_something_behind_it() -> None:
    known = backing()
    bare = [s for s in sentences() if sum(s.startswith(beginning) for beginning in known) != 1]
    assert not bare


def test_nothing_stands_behind_a_sentence_that_is_gone() -> None:
    told = sentences()
    assert not [b for b in backing() if not any(s.startswith(b) for s in told)]


def test_every_scenario_and_test_that_is_named_is_there() -> None:
    missing = {
        beginning: [proof for proof in proofs if proof != SAID and not is_there(proof)]
        for beginning, proofs in backing().items()
    }
    assert not {beginning: proofs for beginning, proofs in missing.items() if proofs}
    assert all(backing().values())


def test_every_scenario_that_the_guide_links_is_there_and_every_scenario_is_linked() -> None:
    linked = set(re.findall(r"tests/scenarios/(\w+)\.txt", GUIDE.read_text(encoding="utf-8")))
    assert linked == {path.stem for path in (TESTS / "scenarios").glob("*.txt")}

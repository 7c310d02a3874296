"""The guides to production and proxies.md, as tests read them: examples by language and words."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GUIDES = ROOT / "docs" / "guides"
TEXT = "".join(
    (GUIDES / name).read_text(encoding="utf-8")
    for name in ("production.md", "relays.md", "proxies.md", "running.md")
)
EXAMPLES = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


def examples(language: str, words: str = "") -> list[str]:
    """Return the examples in a language that hold these words."""
    return [text for kind, text in EXAMPLES if kind == language and words in text]


def example(language: str, words: str) -> str:
    """Return the one example in a language that holds these words."""
    (found,) = examples(language, words)
    return found


def by_this_python(text: str) -> str:
    """Return a command that the test's own interpreter runs."""
    return text.replace("python3 -c", f"'{sys.executable}' -c")

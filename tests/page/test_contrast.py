"""Every text can be read: contrasts as WCAG 2.2 computes them, of the style's own colours."""

import re

import pytest

from forewarn.server.page import rendering

CSS = (rendering.FOLDER / "static" / "forewarn.css").read_text(encoding="utf-8")

TYPES = ("freeze", "reboot", "redeploy", "preempt", "terminate")
SURFACES = ("background", "card", "field")
TEXTS = [
    *(("text", on) for on in (*SURFACES, "failed-tint", "look-tint")),
    *(("text", f"{kind}-tint") for kind in TYPES),
    *(("mute", on) for on in (*SURFACES, "failed-tint", "look-tint")),
    *((word, "card") for word in ("link", "failed", "done", "down", "look")),
    *((word, "background") for word in ("link", "failed", "look")),
    ("failed", "failed-tint"),
    ("look", "look-tint"),
    ("down", "down-tint"),
    ("on-type", "link"),
]
"""Which colour of text lies on which."""

MARKS = [
    *((kind, "card") for kind in TYPES),
    *((word, "card") for word in ("failed", "done", "now", "focus")),
    ("focus", "background"),
]
"""Marks that carry a meaning: 3 to 1 is enough for what is not text."""

AA_TEXT, AA_MARK = 4.5, 3.0

NAMED = re.findall(r"--([\w-]+): light-dark\((#[0-9a-f]{3,6}), (#[0-9a-f]{3,6})\);", CSS)
LIGHT = {name: light for name, light, _ in NAMED}
DARK = {name: dark for name, _, dark in NAMED}


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * each for each in colour[1:])
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    light = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * light[0] + 0.7152 * light[1] + 0.0722 * light[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize(("pairs", "least"), [(TEXTS, AA_TEXT), (MARKS, AA_MARK)])
def test_each_colour_is_told_apart_from_what_it_lies_on(
    theme: dict[str, str], pairs: list[tuple[str, str]], least: float
) -> None:
    found = {pair: round(contrast(theme[pair[0]], theme[pair[1]]), 2) for pair in pairs}
    assert {pair: value for pair, value in found.items() if value < least} == {}


def test_no_rule_has_a_colour_of_its_own() -> None:
    rules = re.sub(r":root[^{]*\{[^}]*\}", "", CSS)
    assert re.findall(r"#[0-9a-fA-F]{3,8}\b|\brgba?\(|\bhsla?\(", rules) == []

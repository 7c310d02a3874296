"""Every text can be read: contrasts as WCAG 2.2 computes them, of the style's own colours."""

import itertools
import math
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

APART = ("down", "failed", "look", "now", "reboot")
"""Meanings that lie beside each other: states, the line of now, and the commonest type."""

DISTINCT = 30.0
"""The least distance of two colours in CIELAB: 2 can be seen, 15 is another shade of the same."""


NAMED = re.findall(r"--([\w-]+): light-dark\((#[0-9a-f]{3,6}), (#[0-9a-f]{3,6})\);", CSS)
LIGHT = {name: light for name, light, _ in NAMED}
DARK = {name: dark for name, _, dark in NAMED}


def linear(colour: str) -> list[float]:
    """Return the shares of red, green and blue light."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * each for each in colour[1:])
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    return [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]


def luminance(colour: str) -> float:
    red, green, blue = linear(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


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


def lab(colour: str) -> tuple[float, float, float]:
    """Return a colour in CIELAB, in which the distance of two is how different they look."""
    red, green, blue = linear(colour)
    x = 0.4339 * red + 0.3762 * green + 0.1899 * blue
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    z = 0.0177 * red + 0.1095 * green + 0.8729 * blue
    fx, fy, fz = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("these", [TYPES, APART], ids=["types", "states"])
def test_colours_with_different_meanings_are_far_from_each_other(
    theme: dict[str, str], these: tuple[str, ...]
) -> None:
    pairs = itertools.combinations(these, 2)
    found = {pair: math.dist(*(lab(theme[name]) for name in pair)) for pair in pairs}
    assert {pair: value for pair, value in found.items() if value < DISTINCT} == {}


def test_no_rule_has_a_colour_of_its_own() -> None:
    rules = re.sub(r":root[^{]*\{[^}]*\}", "", CSS)
    assert re.findall(r"#[0-9a-fA-F]{3,8}\b|\brgba?\(|\bhsla?\(", rules) == []

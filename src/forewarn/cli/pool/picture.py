"""A round drawn: what each machine was, and when requests failed; as text, and as SVG.

Pure: a round goes in, text comes out.
"""

import math
from collections.abc import Sequence
from typing import Final

from forewarn.cli.pool.results import Change, Machine, Round, State

WIDTH: Final = 72
"""Columns of the text's drawing: with the names before it, it fits a terminal of 80."""

MARKS: Final = {
    State.SERVING: "█",
    State.LEAVING: "▒",
    State.DOWN: "✗",
    State.RETURNING: "░",
}
"""A machine's states in the text."""

BARS: Final = " ▁▂▃▄▅▆▇█"
"""How many requests failed in a column, as a part of the worst column's."""

NAMES: Final = 7
"""Characters of the names before the drawing."""

TICK_SECONDS: Final = 10

COLOURS: Final = {
    State.SERVING: "#2e9e5b",
    State.LEAVING: "#e0b53a",
    State.DOWN: "#b3261e",
    State.RETURNING: "#7fb7d6",
}
FAILED: Final = "#b3261e"
INK: Final = "#333333"

SECOND: Final = 12
ROW: Final = 18
LEFT: Final = 70
CHART: Final = 60
RIGHT: Final = 60
"""The SVG's sizes, in its units: of a second, a machine's row, the names, the failures' chart, and
what stands right of it."""


def text(played: Round, width: int = WIDTH) -> list[str]:
    """Return a round as lines of text.

    Args:
        played: What came of it.
        width: The columns for its whole time.
    """
    step = played.seconds / width
    lines = [" " * NAMES + _ruler(played.seconds, width)]
    for machine in _by_domain(played.machines):
        marks = "".join(
            MARKS[_worst(machine.changes, column * step, (column + 1) * step)]
            for column in range(width)
        )
        lines.append(f"{machine.name:<{NAMES}}{marks}")
    counts = failures(played, width)
    most = max(counts)
    bars = "".join(
        BARS[math.ceil(count / most * (len(BARS) - 1)) if most else 0] for count in counts
    )
    lines.append(f"{'failed':<{NAMES}}{bars.rstrip() or 'none'}")
    legend = "  ".join(f"{mark} {state}" for state, mark in MARKS.items())
    return [*lines, " " * NAMES + legend]


def failures(played: Round, bins: int) -> list[int]:
    """Return how many requests failed in each of so many equal parts of a round's time."""
    counts = [0] * bins
    for failure in played.failures:
        counts[min(bins - 1, max(0, int(failure.at / played.seconds * bins)))] += 1
    return counts


def svg(rounds: Sequence[Round]) -> str:
    """Return rounds below one another as one SVG document."""
    longest = max(played.seconds for played in rounds)
    width = LEFT + math.ceil(longest * SECOND) + RIGHT
    height, panels = 10, []
    for played in rounds:
        panels.append(f'<g transform="translate(0 {height})">{_panel(played)}</g>')
        height += _height(played)
    legend = "".join(
        f'<rect x="{LEFT + at * 110}" y="0" width="12" height="12" fill="{COLOURS[state]}"/>'
        f'<text x="{LEFT + at * 110 + 18}" y="11">{state}</text>'
        for at, state in enumerate(State)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height + 30}" '
        f'font-family="sans-serif" font-size="13" fill="{INK}">\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n'
        + "\n".join(panels)
        + f'\n<g transform="translate(0 {height})">{legend}</g>\n</svg>\n'
    )


def _height(played: Round) -> int:
    return 26 + ROW * len(played.machines) + CHART + 50


def _panel(played: Round) -> str:
    """Return one round: its title, its machines, its failures, its seconds."""
    agents = "With agents" if played.agents else "Without agents"
    title = (
        f"{agents}: {len(played.failures):,} of {played.requests:,} requests failed "
        f"({played.share:.2%})"
    )
    parts = [f'<text x="{LEFT}" y="14" font-weight="bold">{title}</text>']
    for row, machine in enumerate(_by_domain(played.machines)):
        top = 26 + row * ROW
        parts.append(f'<text x="8" y="{top + 12}">{machine.name}</text>')
        for change, end in _spans(machine.changes, played.seconds):
            begin = max(0.0, change.at)
            parts.append(
                f'<rect x="{LEFT + begin * SECOND:.1f}" y="{top}" '
                f'width="{(end - begin) * SECOND:.1f}" height="{ROW - 4}" '
                f'fill="{COLOURS[change.state]}"/>'
            )
    base = 26 + ROW * len(played.machines) + CHART
    counts = failures(played, max(1, round(played.seconds * 2)))
    most = max(counts)
    parts.append(f'<text x="8" y="{base - 2}">failed</text>')
    for at, count in enumerate(counts):
        tall = count / most * (CHART - 10) if most else 0.0
        parts.append(
            f'<rect x="{LEFT + at * SECOND / 2:.1f}" y="{base - tall:.1f}" '
            f'width="{SECOND / 2}" height="{tall:.1f}" fill="{FAILED}"/>'
            if count
            else ""
        )
    end = LEFT + played.seconds * SECOND
    parts.append(f'<path d="M{LEFT} {base}H{end:.1f}" stroke="{INK}"/>')
    if most:
        parts.append(f'<text x="{end + 4:.1f}" y="{base - CHART + 20}">{most * 2:,}/s</text>')
    parts += [
        f'<text x="{LEFT + second * SECOND}" y="{base + 16}">{second} s</text>'
        for second in range(0, int(played.seconds) + 1, TICK_SECONDS)
    ]
    return "".join(parts)


def _by_domain(machines: Sequence[Machine]) -> list[Machine]:
    return sorted(machines, key=lambda machine: (machine.update_domain, machine.name))


def _spans(changes: Sequence[Change], seconds: float) -> list[tuple[Change, float]]:
    """Return each state within a round's time, and when it ends."""
    ends = [*(change.at for change in changes[1:]), seconds]
    pairs = zip(changes, ends, strict=True)
    return [(change, min(end, seconds)) for change, end in pairs if end > 0 and change.at < seconds]


def _worst(changes: Sequence[Change], begin: float, end: float) -> State:
    """Return the state that matters most of those in a span of time."""
    spans = _spans(changes, math.inf)
    here = [change.state for change, until in spans if change.at < end and until > begin]
    gravity = (State.DOWN, State.LEAVING, State.RETURNING, State.SERVING)
    return min(here, key=gravity.index, default=State.DOWN)


def _ruler(seconds: float, width: int) -> str:
    """Return a line with the seconds above their columns."""
    line = ""
    for second in range(0, int(seconds) + 1, TICK_SECONDS):
        column, label = round(second / seconds * width), f"{second} s"
        if (not line or column > len(line)) and column + len(label) <= width:
            line = f"{line:<{column}}{label}"
    return line

"""A round as a picture: the state of each machine, and when requests failed; text and SVG."""

import math
from collections.abc import Sequence
from typing import Final

from pool.results import Change, Machine, Round, State

WIDTH: Final = 72
"""Columns of the timelines in text: with the names they fit a terminal of 80."""

MARKS: Final = {
    State.SERVING: "█",
    State.LEAVING: "▒",
    State.DOWN: "✗",
    State.RETURNING: "░",
}
"""The states of a machine in text."""

BARS: Final = " ▁▂▃▄▅▆▇█"
"""The failed requests of a column, relative to the worst column."""

NAMES: Final = 7
"""Characters of the names before the timelines."""

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
"""Sizes in the SVG: a second, the row of a machine, the names, the chart of failures, the right
margin."""


def text(played: Round, width: int = WIDTH) -> list[str]:
    """Return a round as lines of text, its whole time in so many columns."""
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
    """Return how many requests failed in each of `bins` equal parts of the round."""
    counts = [0] * bins
    for failure in played.failures:
        counts[min(bins - 1, max(0, int(failure.at / played.seconds * bins)))] += 1
    return counts


def svg(rounds: Sequence[Round]) -> str:
    """Return the rounds as one SVG document, one below the other."""
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
    """Return one round: its title, machines, failures and seconds."""
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
    """Return each state within the round, and when it ends."""
    ends = [*(change.at for change in changes[1:]), seconds]
    pairs = zip(changes, ends, strict=True)
    return [(change, min(end, seconds)) for change, end in pairs if end > 0 and change.at < seconds]


def _worst(changes: Sequence[Change], begin: float, end: float) -> State:
    """Return the state that matters most in a span of time."""
    spans = _spans(changes, math.inf)
    here = [change.state for change, until in spans if change.at < end and until > begin]
    gravity = (State.DOWN, State.LEAVING, State.RETURNING, State.SERVING)
    return min(here, key=gravity.index, default=State.DOWN)


def _ruler(seconds: float, width: int) -> str:
    """Return the line of seconds above the columns."""
    line = ""
    for second in range(0, int(seconds) + 1, TICK_SECONDS):
        column, label = round(second / seconds * width), f"{second} s"
        if (not line or column > len(line)) and column + len(label) <= width:
            line = f"{line:<{column}}{label}"
    return line

"""Figures to rows: medians with their ranges, and tables that a terminal takes."""

import statistics
from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]


def spread(figures: Sequence[float], digits: int = 0) -> str:
    """A median and its range, as `1200 (1100-1300)`."""
    middle, low, high = statistics.median(figures), min(figures), max(figures)
    return f"{middle:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def percentile(figures: Sequence[float], share: float) -> float:
    """The figure that this share of them does not exceed."""
    ordered = sorted(figures)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def show(title: str, rows: Sequence[Row]) -> None:
    """Print rows of the same columns."""
    print(f"\n{title}")
    if not rows:
        return
    columns = list(rows[0])
    lines = [columns, *([str(row.get(column, "")) for column in columns] for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
    for line in lines:
        first, *rest = (text.rjust(width) for text, width in zip(line, widths, strict=True))
        print("  " + "  ".join([first.strip().ljust(widths[0]), *rest]), flush=True)

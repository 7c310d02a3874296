"""Writes the table of `hostile` into README.md, from the results of its last whole run.

make bench ARGS=hostile && .venv/bin/python benchmarks/readme.py
"""

import json
import sys
from pathlib import Path
from typing import Any

import hostile
from tables import Row

README = Path(__file__).parent / "README.md"
RESULTS = Path(__file__).parent / "results" / "hostile.json"
BEGIN, END = "<!-- hostile: benchmarks/readme.py -->", "<!-- hostile ends -->"

COLUMNS = {
    "GET p50 ms": "GET p50",
    "GET p99 ms": "p99",
    "new p99 ms": "new p99",
    "approve p99 ms": "approve p99",
    "operator p99 ms": "operator p99",
    "more MiB": "more MiB",
    "calm after s": "calm s",
    "the limits say": "the limits said",
    "relay GET p99 ms": "relay p99",
    "relay new p99 ms": "relay new p99",
    "relay approve p99 ms": "relay approve p99",
    "relay more MiB": "relay MiB",
    "nginx p99 ms": "nginx p99",
    "nginx new p99 ms": "nginx new p99",
    "nginx more MiB": "nginx MiB",
}
"""Columns of the results, and what they are called here."""

MOST_SAID = 2
"""Limits of a row that are told, the most reached first."""


def cell(column: str, row: Row, first: Row) -> str:
    """Return one figure as it stands in the table."""
    value = row.get(column, "")
    if column == "the limits say":
        return ", ".join(value.split(", ")[:MOST_SAID])
    if not isinstance(value, (int, float)):
        return str(value)
    if column in {"more MiB", "relay more MiB"}:
        value -= first[column]
    text = f"{value:.0f}" if abs(value) >= 10 else f"{value:.1f}"
    return f"{value:+.1f}" if column.endswith("MiB") else text


def what(row: Row) -> str:
    """Return what a row's attackers do, in a few words."""
    mixed = {", ".join(hostile.ALONE): "these six", ", ".join(hostile.MIXED): "all mixed"}
    return mixed.get(row["what"], row["what"])


def written(found: dict[str, Any]) -> str:
    """Return all that stands between the marks."""
    rows = hostile.with_relay(found)
    machine, away = found["machine"], found["store away"]
    both = [*found["hostile"], *found["relay"]["hostile"]]
    refused = sum(row["refused"] for row in both)
    moved = sum(row["notices moved"] for row in both)
    lost = found["approvals lost"] + found["relay"]["approvals lost"]
    measured = (
        f"Measured on {machine['cores']} cores of a virtual machine ({machine['cpu']}), Linux "
        f"{machine['kernel']}, Python {machine['python']}, in one run of "
        f"{found['seconds'] / 60:.0f} minutes, over {found['network']}, that began at a load of "
        f"{machine['load_before']:.1f}. Times in ms; *more MiB* counts from the first row on. "
        f"Neighbours' requests refused, by the service and by the relay: {refused}; notices moved: "
        f"{moved}; approvals lost: {lost}. While the store was away, an approval was answered 503 "
        f"after {away['refused after s']} s."
    )
    lines = [
        measured,
        "",
        "| what | who | " + " | ".join(COLUMNS.values()) + " |",
        "|" + "---|" * (len(COLUMNS) + 2),
    ]
    for row in rows:
        cells = [what(row), row["who"], *(cell(column, row, rows[0]) for column in COLUMNS)]
        lines.append("| " + " | ".join(cells) + " |")
    missed = [
        f"{whose}{what(row)}, {row['who']}: {column} {row[column]:.0f} (aim {aim:.0f})"
        for whose, its in (("", found["hostile"]), ("relay, ", found["relay"]["hostile"]))
        for row in its
        for column, aim in hostile.AIMS.items()
        if row[column] > aim
    ]
    lines += ["", f"**Missed**: {'; '.join(missed)}." if missed else "All rows keep their aims."]
    return "\n".join(lines)


def main() -> None:
    found = json.loads(RESULTS.read_text(encoding="utf-8"))
    if found["quick"]:
        sys.exit("the last run was a quick one: its figures say nothing")
    before, _, rest = README.read_text(encoding="utf-8").partition(BEGIN)
    _, found_end, after = rest.partition(END)
    assert found_end, "README.md lacks the marks of the table"
    README.write_text(f"{before}{BEGIN}\n{written(found)}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()

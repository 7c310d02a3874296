"""Writes a manual and the shells' completions into a folder, where a package is built.

The manual is the reference of docs/reference, made by go-md2man (Debian's package of that name).
Each command has its help before what the reference says of it.
"""

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import reference

from forewarn.cli import main

PAGES: Final = {
    "forewarn.1": ("cli.md", "announce maintenance to virtual machines, and handle it"),
    "forewarn.toml.5": ("settings.md", "settings of the service"),
    "forewarn-agent.toml.5": ("agent-settings.md", "settings of the agent"),
    "forewarn-fleet.5": ("fleet-file.md", "the fleet file: machines and the scopes they share"),
    "forewarn-relay.toml.5": ("relay-settings.md", "settings of the relay"),
}
"""Each page of the manual, the page of the reference that it shows, and what it is about."""

SHELLS: Final = {"bash": "forewarn", "zsh": "_forewarn", "fish": "forewarn.fish"}
"""The name under which each shell looks for a command's completion."""

HEADINGS: Final = {"1": "User Commands", "5": "File Formats"}

LINK: Final = re.compile(r"\[([^\]]*)\]\([^)]*\)")
COMMAND: Final = re.compile(r"(?m)^## forewarn(?: (.*))?$")
TABLE: Final = re.compile(r"(?m)^\|.*\|\n\|[-| :]+\|\n((?:\|.*\|\n)+)")


def manual(name: str) -> str:
    """Return a page of the manual, as roff."""
    page, about = PAGES[name]
    title, _, section = name.rpartition(".")
    text = reference.page(page).partition("\n")[2]
    text = TABLE.sub(_listed, LINK.sub(r"\1", text))
    text = re.sub(r"(?m)^(#+) `(.*)`(.*)$", r"\1 \2\3", text)
    text = COMMAND.sub(_helped, text)
    head = f'% "{title.upper()}" "{section}" "" "Forewarn" "{HEADINGS[section]}"\n'
    made = subprocess.run(
        ["go-md2man"],  # noqa: S607 - wherever it is installed
        input=f"{head}# NAME\n{title} - {about}\n\n# DESCRIPTION\n{text}",
        capture_output=True,
        text=True,
        check=True,
    )
    return made.stdout


def _helped(heading: re.Match[str]) -> str:
    """Return the heading of a command with the command's help below it."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        main.execute([*(heading[1] or "").split(), "--help"])
    text, _, _ = shown.getvalue().partition("\n  Examples and exit statuses:")
    return f"{heading[0]}\n\n```\n{text.strip()}\n```\n"


def _listed(table: re.Match[str]) -> str:
    """Return a table as a list of its rows: roff's tables do not break long cells."""
    rows = []
    for line in table[1].splitlines():
        *terms, meaning = (cell.strip() for cell in line.strip("|").split(" | "))
        rows.append(f"{', '.join(filter(None, terms)) or '-'}\n: {meaning}\n")
    return "\n".join(rows)


def completion(shell: str) -> str:
    """Return the script that `forewarn completion` prints."""
    made = subprocess.run(  # noqa: S603 - our own
        [sys.executable, "-m", "forewarn", "completion", shell],
        capture_output=True,
        text=True,
        check=True,
    )
    return made.stdout


def write(folder: Path) -> None:
    """Write the manual into its folder `man`, and the completions into its folder `completion`."""
    pages = {f"man/{name}": manual(name) for name in PAGES}
    scripts = {f"completion/{name}": completion(shell) for shell, name in SHELLS.items()}
    for path, text in (pages | scripts).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))

"""Runs the smoke test of the gate, and by hand all that is too heavy for it.

    python -m proofs smoke            # `make smoke`: the smallest piece of each lab
    python -m proofs prove [AREA ...] # `make prove AREA="kills relay"`: everything, or these areas
    python -m proofs run AREA ARGS    # `make prove AREA=kills ARGS="--seed 7"`: its first command
    python -m proofs stale            # `make check`: the areas that changed since their last proof

Both run one thing after the other, with nothing of ours beside it. The smoke test repeats the
choices of SEED and gives a part that fails a second try; at most `MOST_FLAKY` parts may need one.
A proof draws a fresh seed, has no second tries, goes on after a red area, and adds a line for each
to docs/internals/proofs.md, which keeps the last few of an area. Whatever is printed meanwhile is
in `.proofs/NAME.log`.
"""

import os
import re
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from seeds import SEED

ROOT: Final = Path(__file__).resolve().parents[1]
LOGS: Final = ROOT / ".proofs"
PAGE: Final = ROOT / "docs" / "internals" / "proofs.md"
MOST_FLAKY: Final = 2
KEPT: Final = 2
"""The number of lines that the page of proofs keeps of each area, the latest."""

MUST_RUN: Final = tuple(
    line
    for line in (ROOT / "tests" / "gate.txt").read_text("utf-8").splitlines()
    if line and not line.startswith("#")
)
"""How the ids of tests begin that the gate may not skip."""

COUNTED: Final = re.compile(r"^=* ?(\d+ \w+(?:, \d+ \w+)*) in [\d.]+s")
"""The last line of each run of pytest."""

SKIPPED: Final = re.compile(r"\d+ skipped(, \d+ deselected)?")
"""What a run says that has skipped everything: it proves nothing."""

TOLD: Final = re.compile(r"complaint|Nothing was|Nobody was|seeds,|mutants|written to")
"""The line in which another run sums itself up: the last one like this."""


class Run(NamedTuple):
    """A command of this Python, with what it adds to the environment."""

    arguments: tuple[str, ...]
    environment: dict[str, str]
    seen: bool = False
    """The service is broken on purpose: the run fails unless its judge sees that."""


class Area(NamedTuple):
    """What is proven together."""

    runs: tuple[Run, ...]
    covers: tuple[str, ...]
    """The paths whose changes make the last proof old."""


ALL: Final = ("-m", "pytest", "-m", "soak or not soak")
VARIABLE: Final = re.compile(r"[A-Z_]+=")


def run_of(told: str) -> Run:
    """Return the run that a line of proofs.toml tells."""
    words = told.split()
    seen = words[0] == "!"
    rest = words[seen:]
    environment = dict(word.split("=", 1) for word in rest if VARIABLE.match(word))
    first, *more = [word for word in rest if not VARIABLE.match(word)]
    if first == "tests":
        return Run((*ALL, *more), environment)
    if first == "storm":
        return Run(("-m", "attacks", *more), {"PYTHONPATH": "tests:benchmarks"}, seen)
    return Run((first, *more), environment, seen)


TOLD_AREAS: Final = tomllib.loads((ROOT / "tests" / "proofs.toml").read_text("utf-8"))
SMOKE: Final = {name: run_of(told) for name, told in TOLD_AREAS["smoke"].items()}
AREAS: Final = {
    name: Area(tuple(map(run_of, area["runs"])), tuple(area["covers"]))
    for name, area in TOLD_AREAS["area"].items()
}


class Outcome(NamedTuple):
    """How the runs of an area, or of a part of the smoke test, ended."""

    name: str
    failed: bool
    said: str
    seconds: float


def carry_out(name: str, runs: Sequence[Run], seed: int, folder: Path = LOGS) -> Outcome:
    """Run the commands, whatever becomes of those before."""
    folder.mkdir(exist_ok=True)
    start = time.monotonic()
    failed, said = False, []
    log = folder / f"{name}.log"
    log.write_text("")
    for run in runs:
        code, told = _ended(run, log, seed)
        wrong = code == 0 if run.seen else code != 0 or bool(SKIPPED.fullmatch(told))
        failed |= wrong
        if wrong or not run.seen:
            said.append(told or f"ended with status {code}")
    if not said:
        said = [f"{len(runs)} breaks seen"]
    return Outcome(name, failed, "; ".join(said), time.monotonic() - start)


def _ended(run: Run, log: Path, seed: int) -> tuple[int, str]:
    """Run one command; return its status and the line in which it sums itself up."""
    environment = _environment(run, seed)
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ {' '.join(run.arguments)}  # SEED={seed} {run.environment or ''}\n")
        file.flush()
        begin = file.tell()
        code = subprocess.run(
            [sys.executable, *run.arguments],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
    with log.open("rb") as written:
        written.seek(begin)
        lines = written.read().decode("utf-8", "replace").splitlines()
    return code, _said(lines)


def _said(lines: Sequence[str]) -> str:
    """Return what a command printed of its result: pytest's counts, added up, or its own words."""
    counts = Counter[str]()
    for line in lines:
        if counted := COUNTED.match(line):
            for each in counted[1].split(", "):
                number, what = each.split(" ")
                counts[what.replace("errors", "error")] += int(number)
    if counts:
        return ", ".join(f"{number} {what}" for what, number in counts.items())
    told = next((line.strip() for line in reversed(lines) if TOLD.search(line)), "")
    return told.replace(f"{ROOT}/", "")


def _environment(run: Run, seed: int) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": "tests", "SEED": str(seed), **run.environment}


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def show(outcome: Outcome) -> None:
    verdict = "FAILED" if outcome.failed else "passed"
    say(f"{outcome.name:12} {verdict}  {outcome.seconds:5.0f} s  {outcome.said}")


def smoke(parts: Mapping[str, Run], seed: int, folder: Path = LOGS) -> int:
    """Run the parts; give one that fails a second try, as long as few need one."""
    flaky, failed = [], []
    for name, part in parts.items():
        outcome = carry_out(name, [part], seed, folder)
        show(outcome)
        if not outcome.failed:
            continue
        lines = (folder / f"{name}.log").read_text("utf-8").splitlines()
        say("\n".join(lines[-80:]))
        again = carry_out(name, [part], seed, folder)
        show(again)
        (failed if again.failed else flaky).append(name)
    for name in flaky:
        say(f"FLAKY {name} {seed}")
    if len(flaky) > MOST_FLAKY:
        say(f"{len(flaky)} parts needed a second try, and at most {MOST_FLAKY} may")
    passed = len(parts) - len(failed)
    say(f"smoke: {passed} passed, {len(failed)} failed")
    return 1 if failed or len(flaky) > MOST_FLAKY else 0


def prove(names: Sequence[str], seed: int) -> int:
    """Run the areas, add a line for each to the page of proofs, and show them all."""
    outcomes = []
    for name in names:
        commit = _git("describe", "--always", "--abbrev=10", "--exclude=*").strip()
        changed = _git("status", "--porcelain", "--", ".", f":!{PAGE.relative_to(ROOT)}")
        say(f"{name}: {LOGS.name}/{name}.log")
        outcome = carry_out(name, AREAS[name].runs, seed)
        show(outcome)
        outcomes.append(outcome)
        row = (
            name,
            f"{commit}{' and changes' if changed else ''}",
            f"{datetime.now(UTC):%Y-%m-%d}",
            str(seed),
            f"{outcome.seconds / 60:.1f}",
            "**red**" if outcome.failed else "green",
            outcome.said.replace("|", "/"),
        )
        page = PAGE.read_text("utf-8") + f"| {' | '.join(row)} |\n"
        PAGE.write_text(latest(page), "utf-8")
    say("")
    for outcome in outcomes:
        show(outcome)
    return 1 if any(outcome.failed for outcome in outcomes) else 0


def latest(page: str) -> str:
    """Return the page of proofs with the last KEPT lines of each area."""
    further = Counter[str]()
    lines = []
    for line in reversed(page.splitlines(keepends=True)):
        area = line.split("|")[1].strip() if line.startswith("|") else ""
        further[area] += area in AREAS
        if further[area] <= KEPT:
            lines.append(line)
    return "".join(reversed(lines))


def run(name: str, arguments: Sequence[str], seed: int) -> int:
    """Run an area's first command with more arguments, on this terminal; it proves nothing."""
    first = AREAS[name].runs[0]
    command = [sys.executable, *first.arguments, *arguments]
    return subprocess.run(command, cwd=ROOT, env=_environment(first, seed), check=False).returncode


def stale() -> int:
    """Name the areas whose files changed since the line of their last proof, or that have none."""
    last = {
        cells[1].strip(): cells[2].split()[0]
        for line in PAGE.read_text("utf-8").splitlines()
        if len(cells := line.split("|")) == 9 and cells[1].strip() in AREAS
    }
    old = [name for name in AREAS if name not in last or _changed(last[name], AREAS[name].covers)]
    if old:
        say(f"Changed since they were proven (make prove AREA=...): {', '.join(old)}")
    return 0


def _changed(commit: str, paths: Sequence[str]) -> bool:
    compared = ["git", "diff", "--quiet", commit, "--", *paths]
    return (
        subprocess.run(compared, cwd=ROOT, stderr=subprocess.DEVNULL, check=False).returncode != 0
    )


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def main(arguments: Sequence[str]) -> int:
    if arguments == ["stale"]:
        return stale()
    what, *names = arguments or [""]
    if what not in {"smoke", "prove", "run"} or (what == "run" and not names):
        say(str(__doc__))
        return 2
    table = SMOKE if what == "smoke" else AREAS
    names, more = (names[:1], names[1:]) if what == "run" else (names or list(table), [])
    if unknown := sorted(set(names) - set(table)):
        say(f"no area named {unknown[0]!r}: there are {', '.join(table)}")
        return 2
    say(f"SEED={SEED}")
    if what == "run":
        return run(names[0], more, SEED)
    if what == "smoke":
        return smoke({name: SMOKE[name] for name in names}, SEED)
    return prove(names, SEED)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

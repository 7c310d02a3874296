"""Plays seeds, says how fast, and prints the line that replays one that fails."""

import argparse
import sys
import time
import traceback
from collections import Counter
from random import Random
from typing import Any

from structlog import testing

from simulation.town import Town

SIZES = (5, 20, 60, 200, 1000)
"""The most machines of a seed's fleet, by the seed."""

TELL_SECONDS = 30
"""The seconds between two lines about the progress."""


def play(seed: int, steps: int, kind: type[Town] = Town) -> Any:
    """Play one seed to its end and return what is left of it."""
    chance = Random(seed)
    with testing.capture_logs():  # what the service logs of its clocks is no news here
        town = kind(chance, chance.choice(SIZES))
        try:
            while town.steps < steps:
                town.step()
            town.settle()
        except Exception as error:
            error.add_note(f"at step {town.steps}: {replay(seed, steps)}")
            raise
    return town


def replay(seed: int, steps: int) -> str:
    """Return the command that plays a seed again."""
    return f'make prove AREA=simulation ARGS="--seed {seed} --steps {steps}"'


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description="Simulate the rules from seeds.")
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--steps", type=int, default=3000, help="of each seed")
    parser.add_argument("--counts", action="store_true", help="say how often each thing happened")
    wanted = parser.parse_args()
    seeds = (
        range(wanted.first, wanted.first + wanted.seeds) if wanted.seed is None else [wanted.seed]
    )
    counts: Counter[str] = Counter()
    steps = starts = ends = 0
    failed: list[int] = []
    began, worked = time.perf_counter(), time.process_time()
    told = began
    for done, seed in enumerate(seeds):
        if time.perf_counter() - told > TELL_SECONDS:
            told = time.perf_counter()
            say(f"{done} of {len(seeds)} seeds, {steps} steps, {len(failed)} failed")
        try:
            town = play(seed, wanted.steps)
        except Exception:  # noqa: BLE001 - every other seed is still played
            traceback.print_exc()
            say(f"FAILED: {replay(seed, wanted.steps)}")
            failed.append(seed)
            continue
        steps += town.steps
        starts += town.judge.starts
        ends += town.judge.ends
        counts += town.counts
    took, worked = time.perf_counter() - began, time.process_time() - worked
    if wanted.counts:
        say("; ".join(f"{what} {count}" for what, count in sorted(counts.items())))
    say(
        f"{len(seeds)} seeds, {steps} steps in {took:.1f} s: {steps / took:,.0f} steps/s, "
        f"{steps / worked:,.0f} in a second of a core; {starts} starts, {ends} ends"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

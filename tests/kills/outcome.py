"""What a run of kills came to: the counts, what they fell short of, and the complaints."""

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from kills import judge, phases
from kills.evidence import Final as LastWord
from kills.phases import Kill, Phase, Start

MANY: Final = 100
"""From so many kills of a service that serves on, chance does not excuse what they missed."""

LEAST_IN_REQUESTS: Final = 0.25
"""The share of many kills that must fall in a request: they are aimed until two thirds do."""


class Laps:
    """Where the time of a run goes, for people; nothing is judged by it."""

    def __init__(self) -> None:
        self._spent: dict[str, float] = {}
        self._began = time.monotonic()

    def end(self, lap: str) -> None:
        """End a lap, which may be one of several of its name; the next one begins."""
        now = time.monotonic()
        self._spent[lap] = self._spent.get(lap, 0.0) + now - self._began
        self._began = now

    def __str__(self) -> str:
        return ", ".join(f"{lap} {seconds:.1f} s" for lap, seconds in self._spent.items())


class Outcome:
    """What the rounds came to.

    Args:
        kills: All of them.
        journals: What each client wrote down.
        runs: What the connector's program wrote down.
        final: What the service shows at the end.
        collisions: How many starts met the lock of the killed process.
        laps: Where the time went.
    """

    def __init__(
        self,
        kills: list[Kill],
        journals: Mapping[str, list[dict[str, Any]]],
        runs: list[dict[str, Any]],
        final: LastWord,
        collisions: int,
        laps: Laps,
    ) -> None:
        self.kills = kills
        self.journals = journals
        self.runs = runs
        self.final = final
        self.collisions = collisions
        self.of_starts = [kill for kill in kills if kill.start]
        self.serving = [kill for kill in kills if not kill.start]
        self.in_request = sum(phases.in_request(k, journals.values()) for k in self.serving)
        self.complaints = judge.judge(journals, runs, final)
        aimed = self.in_request >= LEAST_IN_REQUESTS * len(self.serving)
        if len(self.serving) >= MANY and not aimed:
            self.complaints.append(
                f"only {self.in_request} of {len(self.serving)} kills fell in a request"
            )
        laps.end("judge")
        self.laps = laps

    def missed(self) -> list[str]:
        """Return the phases that no kill met: chance has it, and no promise is broken by it."""
        acts = {phase for kill in self.serving for phase in kill.phases}
        starts = {kill.start for kill in self.of_starts}
        return [
            *(f"an act '{phase}'" for phase in Phase if phase not in acts),
            *(f"a start '{phase}'" for phase in Start if phase not in starts),
        ]

    def report(self) -> str:
        """Return the counts, for people."""
        fresh = sum(kill.fresh for kill in self.kills)
        by_phase = Counter(phase for kill in self.serving for phase in kill.phases)
        by_start = Counter(kill.start for kill in self.of_starts)
        answered = Counter(
            f"{entry['kind']} {entry['status']}"
            for entries in self.journals.values()
            for entry in entries
            if entry["what"] == "answered"
        )
        unanswered = sum(
            entry["what"] == "unanswered" for entries in self.journals.values() for entry in entries
        )
        ends = Counter(o["status"] for o in self.final.operations.values())
        starts = sum(run["what"] == "start" for run in self.runs)
        lines = [
            f"{len(self.kills)} kills, {fresh} of fresh processes, the others of forked ones",
            f"{len(self.serving)} fell while it served, {len(self.of_starts)} while it started",
            f"{self.in_request} fell between a request's first byte and its answer",
            *(f"{by_phase[phase]:5} met acts in the phase '{phase}'" for phase in Phase),
            *(f"{by_start[phase]:5} met a start in the phase '{phase}'" for phase in Start),
            "answered: " + ", ".join(f"{n} x {what}" for what, n in sorted(answered.items())),
            f"never answered: {unanswered} requests",
            "operations: "
            + ", ".join(f"{n} {status}" for status, n in sorted(ends.items()))
            + f"; the program ran {starts} times",
        ]
        if self.collisions:
            lines.append(f"{self.collisions} starts found the database still locked, and went on")
        if missed := self.missed():
            lines.append("no kill met " + ", ".join(missed))
        lines.append(f"time: {self.laps}")
        return "\n".join(lines)

"""What a run of kills came to: the counts, what they fell short of, and the complaints."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from kills import judge, phases
from kills.evidence import Final as LastWord
from kills.phases import Kill, Phase, Start

ENOUGH_STARTS: Final = 20
"""From so many kills of starts on, each phase of a start must have been met."""


class Outcome:
    """What the rounds came to.

    Args:
        kills: All of them.
        journals: What each client wrote down.
        runs: What the connector's program wrote down.
        final: What the service shows at the end.
        collisions: How many starts met the lock of the killed process.
    """

    def __init__(
        self,
        kills: list[Kill],
        journals: Mapping[str, list[dict[str, Any]]],
        runs: list[dict[str, Any]],
        final: LastWord,
        collisions: int,
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

    def shortfalls(self) -> list[str]:
        """Return in what the kills fell short of what they are to prove; nothing if in nothing."""
        found = [
            f"no kill met an act in the phase '{phase}'"
            for phase in Phase
            if not any(phase in kill.phases for kill in self.serving)
        ]
        if self.in_request * 2 < len(self.serving):
            found.append(f"only {self.in_request} of {len(self.serving)} kills fell in a request")
        met = {kill.start for kill in self.of_starts}
        if len(self.of_starts) >= ENOUGH_STARTS:
            found += [f"no kill met a start '{phase}'" for phase in Start if phase not in met]
        elif not self.of_starts:
            found.append("no kill met a start")
        return found

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
        return "\n".join(lines)

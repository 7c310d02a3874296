"""Relays go away, stall and come back among everything else that happens, from fixed seeds."""

import functools
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from forewarn.control import relay_watch
from forewarn.maintenance import relays
from forewarn.maintenance.model import Operation
from forewarn.maintenance.relays import Relay
from simulation import run
from simulation.judge import Wrong
from simulation.town import Town
from store.story import relay

SEEDS = (2, 3, 4, 7, 8, 9)
"""Together they reach every corner."""

STEPS = 600
SECOND = timedelta(seconds=1)


class TownWithRelays(Town):
    """A town whose hosts have relays."""

    def __init__(self, *given: Any, **named: Any) -> None:
        self.away: dict[str, datetime] = {}
        """Since when the relays of hosts have been away."""
        super().__init__(*given, **named)
        for host in self.hosts:
            made = relays.new_token(host, f"of {host}", by="ann", at=self.now)
            self.plane.order(relay_watch.create_token, made).result()

    def weighted(self) -> list[Callable[[], None]]:
        own = [self.relay_goes] * 5 + [self.relay_returns] * 5 + [self.relay_stalls]
        return super().weighted() + own

    def relay_goes(self) -> None:
        """A relay is heard a last time; later a replica notices that it is away."""
        host = self.chance.choice(self.hosts)
        if host in self.away:
            return
        heard = self.hear(host)
        self.away[host] = heard.heard_at
        self.time_passes(60)
        before = dict(self.memory.live)
        self.ask("relay away", self.plane.order, relay_watch.hold, heard, heard.heard_at)
        if any(hold.by == relays.BY and hold.name == host for hold in self.memory.holds()):
            self.judge_hold(before, heard.heard_at)

    def relay_returns(self) -> None:
        if not self.away:
            return
        host = self.some(self.away)
        self.hear(host)
        held = {o.id: o for o in self.memory.live.values() if o.held_at is not None}
        self.ask("relay back", self.plane.order, relay_watch.release, host)
        with self.writer.store.read() as reading:
            held_for = reading.relays()[host].held_for
        if held_for is None:
            del self.away[host]
            self.judge_release(held)

    def relay_stalls(self) -> None:
        host = self.chance.choice(self.hosts)
        length = self.chance.randint(5, 300) * SECOND
        before = dict(self.memory.live)
        stall = relay_watch.record_stall
        moved = self.ask("relay stalls", self.plane.order, stall, host, length)
        for name, old in before.items() if moved is not None else ():
            new = self.memory.all_operations[name]
            if new.not_before < old.not_before:
                raise Wrong(f"{name}: NotBefore went back by a stall")

    def hear(self, host: str) -> Relay:
        heard = relay(host, self.now, started_at=self.now, due_at=self.now)
        self.writer.store.hear([heard])
        return heard

    def judge_hold(self, before: dict[str, Operation], since: datetime) -> None:
        """What is held now has the notice that it had left when its relay was heard last."""
        for name, old in before.items():
            new = self.memory.all_operations[name]
            if old.held_at is None and new.held_at is not None and old.pending:
                self.counts["held"] += 1
                had = old.not_before - max(since, old.announced_at)
                if new.notice_left_seconds * SECOND < had:
                    raise Wrong(f"{name}: held with {new.notice_left_seconds} s of {had}")

    def judge_release(self, held: dict[str, Operation]) -> None:
        """What is released, and not approved, has the rest of its notice from now on."""
        for name, old in held.items():
            new = self.memory.all_operations[name]
            if new.pending and new.held_at is None and not new.approved:
                self.counts["released"] += 1
                if new.not_before < max(
                    old.not_before, self.now + old.notice_left_seconds * SECOND
                ):
                    raise Wrong(f"{name}: released for {new.not_before}")
            elif new.held_at is not None and new.not_before < old.not_before:
                raise Wrong(f"{name}: NotBefore went back under a hold")

    def settle(self) -> None:
        self.writer.restart()
        while self.away:
            self.relay_returns()
        super().settle()


@functools.cache
def play(seed: int) -> TownWithRelays:
    """Play a seed, once for all the tests that look at it."""
    town: TownWithRelays = run.play(seed, STEPS, TownWithRelays)
    return town


@pytest.mark.parametrize(
    "seed", [*SEEDS, *(pytest.param(n, marks=pytest.mark.soak) for n in (1, 5, 6, 10, 11, 12))]
)
def test_whatever_relays_do_the_rules_hold_and_everything_ends(seed: int) -> None:
    assert not play(seed).memory.live


def test_the_seeds_reach_holds_releases_and_stalls() -> None:
    counts = sum((play(seed).counts for seed in SEEDS), start=run.Counter())
    wanted = ["relay away", "relay back", "relay stalls", "relay away: crashed"]
    assert [what for what in wanted if not counts[what]] == []
    assert [what for what in ("held", "released") if not counts[what]] == []

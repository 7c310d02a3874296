"""What attackers do and when, made of a seed alone."""

import random
from collections.abc import Sequence
from typing import NamedTuple

import hostile
import strangers
from networks import ATTACKER, PROXY, STRANGER, Network
from strangers import Attack

ADDRESSES = 20
"""Of registered machines, and as many of strangers: the log has room for what each of them does."""

MAX_AT_ONCE = 4
"""Attacks at once, each a process of its own."""

WAVE_SECONDS = (2.0, 6.0)

REFUSED = {
    "headers": {"faulty-request", "unknown-address", "connections-of-address"},
    "chunks": {"faulty-request", "unknown-address", "loop-share"},
    "heads": {"faulty-request", "unknown-address"},
    "flood": {"rate", "unknown-address", "loop-share"},
    "approvals": {"unknown-address", "loop-share", "bodies"},
    "idle": {"unknown-address", "connections-of-address", "connections-of-strangers"},
    "pipeline": {"rate", "unknown-address", "loop-share", "connections-of-address"},
    "sip": {"rate", "unknown-address", "loop-share", "connections-of-address"},
    # The kernel keeps who says nothing for a second; strangers over their share are refused then.
    "silent": {"connections-of-address", "connections-of-strangers", "slow-request"},
    "drip": {"connections-of-address", "connections-of-strangers", "slow-request"},
    "waiters": {"waiters", "connections-of-address", "rate"},
}
"""The limits that an attack meets, one of them at least, where it wants more than it may have."""


class Wave(NamedTuple):
    """Attacks that begin and end together."""

    seconds: float
    attacks: tuple[Attack, ...]

    def __str__(self) -> str:
        told = [
            f"{each.way} from {len(each.addresses)} x {each.connections}" for each in self.attacks
        ]
        return f"{self.seconds:.1f} s: {', '.join(told)}"


def waves(
    chance: random.Random,
    network: Network,
    seconds: float,
    own: Sequence[str],
    foreign: Sequence[str],
) -> list[Wave]:
    """Return waves that take so long in all; each way has its turn before any has two.

    Args:
        chance: Of the seed.
        network: Where the service is, and the attackers.
        seconds: How long.
        own: Events of the attackers' scope.
        foreign: Events of others, and some that never were.
    """
    found: list[Wave] = []
    ways: list[str] = []
    while (left := seconds - sum(wave.seconds for wave in found)) > 0:
        attacks = []
        for _ in range(chance.randint(1, MAX_AT_ONCE)):
            ways = ways or chance.sample(sorted(strangers.WAYS), len(strangers.WAYS))
            ids = chance.choice((own, foreign))
            attacks.append(_attack(chance, network, ways.pop(), ids))
        found.append(Wave(min(left, chance.uniform(*WAVE_SECONDS)), tuple(attacks)))
    return found


def _attack(chance: random.Random, network: Network, way: str, ids: Sequence[str]) -> Attack:
    kind = chance.choice((ATTACKER, STRANGER))
    numbers = chance.sample(range(ADDRESSES), chance.choice((1, 2, 5, ADDRESSES)))
    if way == "waiters":
        return Attack(
            way=way,
            host=network.service,
            port=0,
            addresses=network.addresses(PROXY, [0]),
            connections=chance.choice((hostile.LIMIT, 10 * hostile.LIMIT)),
            secret=hostile.SECRET,
            machines=[f"proxied{number}" for number in numbers],
        )
    return Attack(
        way=way,
        host=network.service,
        port=0,
        addresses=network.addresses(kind, numbers),
        connections=chance.choice((1, 8, hostile.LIMIT, strangers.CONNECTIONS)),
        ids=ids if way == "approvals" else (),
    )


def to_be_met(done: Sequence[Wave]) -> list[tuple[str, set[str]]]:
    """Return, for each attack that wants more than it may have, the limits that it may meet."""
    return [
        (each.way, REFUSED[each.way])
        for wave in done
        for each in wave.attacks
        if wave.seconds >= WAVE_SECONDS[0] and each.connections == strangers.CONNECTIONS
    ]

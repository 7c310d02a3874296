"""Kills of relays and replicas under load: a relay, replicas, or both; at once or in a request.

RELAY_ROUNDS says how often.

Hosts are loopback ports here: a relay each, and behind it a guest process for each scope that has
machines on its host. Fleet, clients, program and judge are those of the kills.
"""

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import postgres
from kills import fleet
from kills.cluster import NAMES, Cluster
from kills.rounds import Outcome, Rounds
from ports import free_port
from relays.process import Relay, settings
from seeds import SEED

HOSTS: Final = ("h0", "h1", "h2")
"""Three, as there are update domains: a host has no more than one of each scope."""

RELAY, REPLICAS, BOTH = "relay", "replicas", "both"
"""The victims of a round; where both are killed, it is at the same moment."""

VICTIMS: Final = (BOTH, RELAY, REPLICAS, RELAY, BOTH, RELAY, REPLICAS, BOTH, RELAY, REPLICAS)
"""The victims of ten rounds, which are shuffled; in fewer rounds relays still have their turn."""

ALL_REPLICAS: Final = 0.25
"""How many of the kills of replicas kill all of them: relays then start without the service."""


class Relayed(Cluster):
    """Three replicas, and three hosts with a relay each."""

    def __init__(self, folder: Path, url: str, seed: int) -> None:
        self._planes = {name: free_port() for name in NAMES}
        own = {
            name: f'[relay]\nlisten = "127.0.0.1:{port}"\n' for name, port in self._planes.items()
        }
        super().__init__(folder, url, seed, own_settings=own)
        self.ports = {host: free_port() for host in HOSTS}

    def begin_guests(self) -> None:
        """Start the relays, and let a guest of each scope begin at each."""
        for host in HOSTS:
            self.relays[host] = self._relay(host)
            self.relays[host].start()
        for number, host in enumerate(HOSTS):
            self.relays[host].wait_until_ready()
            place = ["127.0.0.1", self.ports[host]]
            for scope in fleet.SCOPES:
                names = [name for name in fleet.machines() if name.startswith(scope)]
                if there := names[number :: len(HOSTS)]:
                    cast = {"scope": scope, "machines": there, "may_be_away": True}
                    self.begin_client(f"guest-{scope} at {host}", "guest", [place], 0, **cast)

    def _relay(self, host: str) -> Relay:
        folder = self.folder / f"relay-{host}"
        folder.mkdir(mode=0o700)
        token = folder / "token"
        token.touch(mode=0o600)
        token.write_text(self.ask("POST", "/v1/relays/tokens", {"host": host})["token"])
        urls = [f"http://127.0.0.1:{port}" for port in self._planes.values()]
        listener = f'address = "127.0.0.1"\nport = {self.ports[host]}'
        return Relay(folder, host, settings(folder, *urls, listener=listener))


def run(folder: Path, url: str, seed: int, number: int) -> Outcome:
    """Kill in this many rounds; judge it all."""
    chance = random.Random(seed)
    victims = [VICTIMS[turn % len(VICTIMS)] for turn in range(number)]
    chance.shuffle(victims)
    with Relayed(folder, url, seed) as cluster:
        rounds = Rounds(cluster, chance)
        rounds.begin(HOSTS)
        for victim in victims:
            hosts = [] if victim == REPLICAS else [chance.choice(HOSTS)]
            names: list[str] = []
            if victim != RELAY:
                all_go = chance.random() < ALL_REPLICAS
                names = list(NAMES) if all_go else [chance.choice(NAMES)]
            rounds.kill(names, hosts)
        return rounds.judged()


ROUNDS: Final = int(os.environ.get("RELAY_ROUNDS", "") or 40)


@pytest.fixture
def database() -> Iterator[postgres.Postgres]:
    if not postgres.found():
        pytest.skip("PostgreSQL is not installed")
    server = postgres.Postgres().start()
    yield server
    server.remove()


@pytest.mark.timeout(900)
def test_relays_and_replicas_that_are_killed_lose_nothing_and_show_nothing_backwards(
    tmp_path: Path, database: postgres.Postgres
) -> None:
    print(f"SEED={SEED} repeats the choices")
    outcome = run(tmp_path, database.create_database("kills"), SEED, ROUNDS)
    print(outcome.report)
    assert outcome.complaints == []

"""Kills of relays and replicas under load: a relay, replicas, or both; at once or in a request.

Hosts are loopback ports here: a relay each, and behind it a guest process for each scope that has
machines on its host. Fleet, clients, program and judge are those of the kills.
"""

import json
import random
from pathlib import Path
from typing import Final

from kills import fleet
from kills.cluster import NAMES, Cluster
from kills.rounds import Outcome
from ports import free_port
from relays.process import Relay
from replicas.rounds import Rounds

HOSTS: Final = ("h0", "h1", "h2")
"""Three, as there are update domains: a host has no more than one of each scope."""

RELAY, REPLICAS, BOTH = "relay", "replicas", "both"
"""The victims of a round; where both are killed, it is at the same moment."""

VICTIMS: Final = (BOTH, RELAY, REPLICAS, RELAY, BOTH, RELAY, REPLICAS, BOTH, RELAY, REPLICAS)
"""The victims of ten rounds, which are shuffled; in fewer rounds relays still have their turn."""

ALL_REPLICAS: Final = 0.25
"""How many of the kills of replicas kill all of them: relays then start without the service."""

SETTINGS: Final = """
[upstream]
urls = {upstream}
token_file = "{token}"
[state]
folder = "{folder}"
[status]
listen = "off"
[[guest.listener]]
address = "127.0.0.1"
port = {port}
[log]
format = "json"
"""


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
        upstream = json.dumps([f"http://127.0.0.1:{port}" for port in self._planes.values()])
        settings = SETTINGS.format(
            upstream=upstream, token=token, folder=folder, port=self.ports[host]
        )
        return Relay(folder, host, settings)


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

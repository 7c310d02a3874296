"""Kills of relays and replicas under load: a relay, replicas, or both; at once or in a request.

Hosts are loopback ports here: a relay each, and behind it a guest process for each scope that has
machines on its host. Fleet, clients, program and judge are those of the kills.
"""

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any, Final, NamedTuple

from kills import rounds
from kills.outcome import Laps
from kills.processes import let_pass
from ports import free_port
from relays.process import Relay
from replicas import judge
from replicas.cluster import NAMES, Cluster

HOSTS: Final = ("h0", "h1", "h2")
"""Three, as there are update domains: a host has no more than one of each scope."""

RELAY, REPLICAS, BOTH = "relay", "replicas", "both"
"""The victims of a round; where both are killed, it is at the same moment."""

VICTIMS: Final = (BOTH, RELAY, REPLICAS, RELAY, BOTH, RELAY, REPLICAS, BOTH, RELAY, REPLICAS)
"""The victims of ten rounds, which are shuffled; in fewer rounds relays still have their turn."""

MANY: Final = 30
"""In so many rounds some kill falls in a request, whatever chance has."""

ALL_REPLICAS: Final = 0.25
"""How many of the kills of replicas kill all of them: relays then start without the service."""

IN_REQUEST: Final = 0.6
AWAY_SECONDS: Final = (0.0, 0.0, 0.1, 0.4, 1.0)

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
        self.relays: dict[str, Relay] = {}
        self.ports = {host: free_port() for host in HOSTS}

    def __exit__(self, *error: Any) -> None:
        for relay in self.relays.values():
            relay.end()
        super().__exit__(*error)

    def begin_guests(self) -> None:
        """Start the relays, and let a guest of each scope begin at each."""
        for host in HOSTS:
            self.relays[host] = self._relay(host)
            self.relays[host].start()
        for number, host in enumerate(HOSTS):
            self.relays[host].wait_until_ready()
            for scope in rounds.SCOPES:
                names = [name for name in rounds.machines() if name.startswith(scope)]
                there = [rounds.ALONE] if scope == rounds.ALONE else names[number :: len(HOSTS)]
                if scope == rounds.ALONE and number:
                    continue
                cast = {"scope": scope, "machines": there, "mortal": rounds.mortal()}
                place = ["127.0.0.1", self.ports[host]]
                client = f"guest-{scope} at {host}"
                self.begin_client(client, "guest", [place], 0, may_be_away=True, **cast)

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

    def pids_for(self, client: str) -> list[int]:
        """Return whom a client kills, in the order of its places."""
        host = client.rpartition(" at ")[2]
        return [self.relays[host].pid] if host in self.relays else self.pids()


class Outcome(NamedTuple):
    """What the rounds came to."""

    complaints: list[str]
    relays: int
    replicas: int
    in_request: int
    alone: int
    """Relays that were started while no replica was there."""
    answered: Counter[str]
    reads: int
    away: int
    stale_seconds: float
    laps: Laps

    def report(self) -> str:
        """Return the counts, for people."""
        answers = ", ".join(f"{n} x {what}" for what, n in sorted(self.answered.items()))
        return (
            f"{self.relays} relays and {self.replicas} replicas were killed, {self.in_request} of "
            f"them in a request; {self.alone} relays started without a replica\n"
            f"{self.reads} documents noted; answered: {answers}; {self.away} x 503\n"
            f"what others had read replaced was read for {self.stale_seconds:.2f} s at the most\n"
            f"time: {self.laps}"
        )


def run(folder: Path, url: str, seed: int, number: int) -> Outcome:
    """Kill in this many rounds; judge it all."""
    chance = random.Random(seed)
    laps = Laps()
    relays = replicas = in_request = alone = 0
    victims = [VICTIMS[turn % len(VICTIMS)] for turn in range(number)]
    chance.shuffle(victims)
    with Relayed(folder, url, seed) as cluster:
        cluster.prepare(HOSTS)
        laps.end("start")
        for victim in victims:
            let_pass(chance.uniform(0.1, 0.6))
            hosts = [] if victim == REPLICAS else [chance.choice(HOSTS)]
            names: list[str] = []
            if victim != RELAY:
                all_go = chance.random() < ALL_REPLICAS
                names = list(NAMES) if all_go else [chance.choice(NAMES)]
            if chance.random() < IN_REQUEST:
                hit = _by_client(cluster, chance, hosts)
                in_request += bool(hit)
                if hit in HOSTS:
                    hosts = [hit]
                elif hit:
                    names = sorted({hit, *names[1:]})
            _kill(cluster, hosts, names)
            relays, replicas = relays + len(hosts), replicas + len(names)
            let_pass(chance.choice(AWAY_SECONDS))
            for host in hosts:
                cluster.relays[host].start()
            if hosts and len(names) == len(NAMES):
                alone += len(hosts)
                for host in hosts:
                    cluster.relays[host].wait_until_ready()
            for name in names:
                cluster.replicas[name].start(fresh=False)
            for name in names:
                cluster.replicas[name].wait_until_ready()
            for host in hosts:
                cluster.relays[host].wait_until_ready()
            cluster.resolve()
        laps.end("kills")
        complaints = cluster.settle()
        if number >= MANY and not in_request:
            complaints.append(f"none of {number} rounds killed in a request")
        laps.end("settle and judge")
        journals = cluster.journals()
        entries = [entry for each in journals.values() for entry in each]
        answered = (f"{e['kind']} {e['status']}" for e in entries if e["what"] == "answered")
        return Outcome(
            complaints=complaints,
            relays=relays,
            replicas=replicas,
            in_request=in_request,
            alone=alone,
            answered=Counter(answered),
            reads=sum(entry["what"] == "read" for entry in entries),
            away=sum(entry["what"] == "away" for entry in entries),
            stale_seconds=judge.longest_stale(journals),
            laps=laps,
        )


def _kill(cluster: Relayed, hosts: list[str], names: list[str]) -> None:
    for name in names:
        if cluster.replicas[name].runs:
            cluster.replicas[name].kill()
    for host in hosts:
        cluster.relays[host].kill()
    for name in names:
        assert cluster.replicas[name].reap() == -9, cluster.replicas[name].said()


def _by_client(cluster: Relayed, chance: random.Random, hosts: list[str]) -> str:
    """Let a client kill whom it asks, in the midst of a request; return which, `""` for none."""
    kind = chance.choice(["read", "approve"]) if hosts else chance.choice(rounds.IN_REQUEST[3:])
    able = [
        name
        for name in cluster.clients
        if (name.rpartition(" at ")[2] in hosts if hosts else not name.startswith("guest"))
    ]
    delay = chance.choice(rounds.DELAYS.get(kind, rounds.DELAYS_OF_WRITES))
    for name in chance.sample(able, min(2, len(able))):
        order = {"kind": kind, "pids": cluster.pids_for(name), "delay": delay, "part": 1.0}
        said = cluster.order(name, do="kill", **order)
        if said is None:
            said = cluster.order(name, do="drop")
        assert said, f"{name} takes no orders"
        if said["killed"]:
            return hosts[0] if hosts else NAMES[said["place"]]
    return ""

"""One storm: a service, its neighbours, attackers by a plan, and what was wrong in the end.

How fast this machine is, and what else it does, is unknown: what neighbours see under attack is
compared with what they see of the same service before it.
"""

import json
import random
import statistics
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import hostile
import machine
import networks
import strangers
from guests import Guests
from kills.processes import let_pass
from networks import ATTACKER, NEIGHBOUR, PROXY, STRANGER, Network
from service import Service
from strangers import Attack

NEIGHBOURS = 10
WORKERS = 4000
OWN_EVENTS = 100

QUIET_SECONDS = 4.0
"""Before the attack: what neighbours, approvals and operators take then is the measure."""

MOST_TIMES = 100.0
"""The median of a wave of attacks, as so many times the quiet one. Up to twenty times is usual, as
a read takes a fifth of a millisecond in quiet; what is starved takes ten thousand times as long."""

ENOUGH = 20
"""A median of fewer answers is chance."""

MOST_MEMORY = 2.0
"""The peak of the memory under attack, as so many times the quiet one: up to 1.3 is usual."""

STOOD_STILL_SECONDS = 1.0
"""A machine that stood still for longer, at times, makes the service move its notices."""

LOGGED_EVERY = timedelta(minutes=1)
"""The same limit for the same address is logged once in this time."""

REFUSALS = "forewarn_guest_refusals_total"

BREAKS = {"rate": "[rules]\nrate_per_second = 1\nrate_burst = 1\n"}
"""Settings that hinder neighbours whatever the attackers do, each to see the judge see it."""


# The plan.

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


def planned(
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


# The witnesses.

EACH_SECONDS = 0.1
AT_A_TIME = 100


class Readers:
    """Machines that read their documents again and again, each of which it alone has.

    Args:
        network: Where they are.
        port: Where the service listens.
        events: The event of each by its address: its id, and the machine's name.
    """

    def __init__(self, network: Network, port: int, events: dict[str, dict[str, str]]) -> None:
        self.wrong: list[str] = []
        """What no answer may be, each in a sentence."""
        self._events = events
        self._incarnations: dict[str, int] = defaultdict(int)
        self._stop = threading.Event()
        addresses = network.addresses(NEIGHBOUR, range(len(events)))
        self.guests = Guests(port, addresses, host=network.service)
        self.guests.heard = self._judge
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> "Readers":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.guests.close()

    def _read(self) -> None:
        try:
            while not self._stop.is_set():
                self.guests.ask(AT_A_TIME, each_seconds=EACH_SECONDS)
        except BaseException as error:  # noqa: BLE001 - it is a complaint
            self.wrong.append(f"the neighbours stopped reading: {error!r}")

    def _judge(self, address: str, status: str, body: bytes) -> None:
        own = self._events[address]
        if status != "200":
            self.wrong.append(f"{own['machine']} was answered {status}: {body[:200]!r}")
            return
        document: dict[str, Any] = json.loads(body)
        incarnation = document["DocumentIncarnation"]
        if incarnation < self._incarnations[address]:
            self.wrong.append(f"the incarnation of {own['machine']} went back to {incarnation}")
        self._incarnations[address] = incarnation
        # A NotBefore that moves is judged by the service's log: it may be the machine's fault.
        shown = [
            {
                "id": event["EventId"],
                "machine": ",".join(event["Resources"]),
                "status": event["EventStatus"],
            }
            for event in document["Events"]
        ]
        if shown != [own | {"status": "Scheduled"}]:
            self.wrong.append(f"{own['machine']} has {own}, unapproved, and read {shown}")


TICKING = """
import select, sys, time
last, stood_still = time.monotonic(), 0.0
while not select.select([sys.stdin], [], [], 0.05)[0]:
    now = time.monotonic()
    stood_still += now - last if now - last > 0.5 else 0.0
    last = now
print(stood_still)
"""


class Ticker:
    """A process on the service's core that wants twenty short turns a second, and little else.

    Where it does not get them, nobody did: the machine stood still, and not the service.
    """

    stood_still = 0.0
    """For how many seconds in all, in pieces of half a second or more; known at the end."""

    def __enter__(self) -> "Ticker":
        with machine.on_cores():
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", TICKING],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        said, _ = self._process.communicate()
        self.stood_still = float(said)


# The storm.

Seconds = Mapping[str, Sequence[float]]
"""The seconds that requests took, by their kind."""


class Outcome(NamedTuple):
    """What came of a storm."""

    complaints: list[str]
    facts: dict[str, Any]


def run(network: Network, folder: Path, seed: int, seconds: float, broken: str = "") -> Outcome:
    """Let attackers do what the seed says, and judge what the others saw.

    Args:
        network: Where everybody is.
        folder: For the proxy's secret.
        seed: Of all choices.
        seconds: How long they attack.
        broken: One of `BREAKS`, or nothing.
    """
    secret = folder / "secret"
    secret.write_text(hostile.SECRET + "\n")
    secret.chmod(0o600)
    proxy = network.address(PROXY, 0)
    with Service(
        hostile.SETTINGS + BREAKS.get(broken, ""),
        address="0.0.0.0",
        listener=f'trusted_proxies = ["{proxy}/32"]\nproxy_secret_files = ["{secret}"]',
        within=network.within(networks.SERVICE),
    ) as service:
        return Storm(service, network, random.Random(seed)).judged(seconds)


class Storm:
    """A service under attack.

    Args:
        service: Runs, and is empty.
        network: Where everybody is.
        chance: Of the seed.
    """

    def __init__(self, service: Service, network: Network, chance: random.Random) -> None:
        self._service = service
        self._network = network
        self._chance = chance
        service.ask("PUT", "/v1/fleet", hostile.fleet(network, WORKERS))
        for number in range(NEIGHBOURS):
            hostile.announced(service, f"other{number}")
        addresses = network.addresses(NEIGHBOUR, range(NEIGHBOURS))
        self._events = {
            address: _own(service, network, address, f"other{number}")
            for number, address in enumerate(addresses)
        }
        self._work = hostile.Work(service, network)
        self._calm = 0.0

    def judged(self, seconds: float) -> Outcome:
        """Let them attack, and return what was wrong."""
        service, network, work = self._service, self._network, self._work
        own = hostile.own_events(service, network, OWN_EVENTS)
        never = [f"00000000-0000-4000-8000-{n:012X}" for n in range(hostile.IDS - NEIGHBOURS)]
        foreign = [event["id"] for event in self._events.values()] + never
        waves = planned(self._chance, network, seconds, own, foreign)
        with Ticker() as ticker:
            took, mib, wrong = self._measured(waves)
            quiet, *stormy = took
            wrong += self._recovers(quiet)
        for wave, each in zip(waves, stormy, strict=True):
            wrong += [f"{sentence}, in {wave}" for sentence in _compared(quiet, each)]
        if mib[1] > MOST_MEMORY * mib[0]:
            wrong.append(f"memory grew from {mib[0]:.0f} to {mib[1]:.0f} MiB")
        wrong += self._limits_are_told(waves)
        wrong += self._store_is_right(ticker)
        facts = {
            "waves": len(waves),
            "approved": len(work.approved),
            **{f"{what} ms": _told(quiet[what], [each[what] for each in stormy]) for what in quiet},
            "MiB": f"{mib[0]:.0f}, then {mib[1]:.0f}",
            "calm after s": round(self._calm, 1),
            "the machine stood still s": round(ticker.stood_still, 1),
            "refusals": hostile.limits_said({}, service.metrics(REFUSALS)),
        }
        return Outcome(wrong, facts)

    def _measured(
        self, waves: Sequence[Wave]
    ) -> tuple[list[Seconds], tuple[float, float], list[str]]:
        """Measure neighbours, approvals and the operator, in quiet and then in each wave.

        Returns:
            What each request took, in quiet and in each wave; the memory in quiet, and its peak
            under attack; and what is wrong with the answers.
        """
        service, network, work = self._service, self._network, self._work
        with (
            Readers(network, service.port, self._events) as readers,
            hostile.meanwhile(work.operate),
            hostile.meanwhile(work.approve),
        ):
            let_pass(QUIET_SECONDS)
            times = [self._seconds(readers)]
            quiet_mib = service.memory_mib()
            service.forget_peak()
            for wave in waves:
                print(f"  {wave}", flush=True)
                with hostile.attacked(network, wave.attacks, service.port):
                    let_pass(wave.seconds)
                times.append(self._seconds(readers))
            peak_mib = service.memory_mib("VmHWM")
        took = [times[0]]
        for before, after in pairwise(times):
            took.append({what: after[what][len(before[what]) :] for what in after})
        wrong = [*readers.wrong[:10]]
        if (closed := readers.guests.statuses["closed"]) or work.refused:
            wrong.append(f"{closed} neighbours' connections were closed, {work.refused} refused")
        return took, (quiet_mib, peak_mib), wrong

    def _seconds(self, readers: Readers) -> Seconds:
        """Return what each request has taken so far."""
        return {
            "read": [*readers.guests.seconds],
            "approve": [*self._work.approvals],
            "operator": [*self._work.operator],
        }

    def _recovers(self, quiet: Seconds) -> Iterator[str]:
        """After the attack everything is as before."""
        service, network = self._service, self._network
        try:
            self._calm = hostile.settled(service)
        except AssertionError as error:
            yield f"after the attack: {error}"
        if waiting := service.metric("forewarn_guest_waiters"):
            yield f"{waiting:.0f} requests wait of guests who are gone"
        addresses = network.addresses(NEIGHBOUR, range(NEIGHBOURS))
        with closing(Guests(service.port, addresses, host=network.service)) as guests:
            guests.ask(20 * NEIGHBOURS, each_seconds=0.05)
        if guests.statuses["200"] != 20 * NEIGHBOURS:
            yield f"after it neighbours were answered {guests.statuses}"
        for sentence in _compared(quiet, {"read": guests.seconds}):
            yield f"after it {sentence}"

    def _limits_are_told(self, waves: list[Wave]) -> Iterator[str]:
        """Every limit that was reached is in the metric and in the log, and not too often."""
        refused = self._service.metrics(REFUSALS)
        counted = {labels.split('"')[1] for labels, count in refused.items() if count}
        for way, limits in to_be_met(waves):
            if not limits & counted:
                yield f"the attack {way} met none of {sorted(limits)}: {sorted(counted)}"
        lines = self._service.log.read_text(encoding="utf-8").splitlines()
        entries = [json.loads(line) for line in lines]
        told: dict[tuple[str, str], list[datetime]] = defaultdict(list)
        for entry in entries:
            if entry.get("reason"):
                at = datetime.fromisoformat(entry["timestamp"])
                told[entry["reason"], entry["address"]].append(at)
        for reason in sorted(counted - {reason for reason, _ in told}):
            yield f"{reason} was counted, and is not in the log"
        for (reason, address), times in told.items():
            # A line may be written a moment after it was decided on: one more than that is right.
            if len(times) > 2 + (times[-1] - times[0]) // LOGGED_EVERY:
                yield f"{reason} of {address} was logged at {[*map(str, times)]}"
        for entry in entries:
            if entry["level"] == "error" or "exception" in entry:
                yield f"the log has {entry['event']}: {entry.get('exception', '')[-300:]}"

    def _store_is_right(self, ticker: Ticker) -> Iterator[str]:
        """What was answered is stored, nothing moved, and nothing started that nobody approved."""
        known = {event["id"]: event for event in self._events.values()}
        approved = set(self._work.approved)
        stored = set()
        for operation in self._service.history():
            for event in operation["events"]:
                name, approval = event["machines"][0], event["approval"]
                if approval is not None:
                    stored.add(event["id"])
                if approval is None and operation["status"] != "Scheduled":
                    yield f"{event['id']} of {name} is {operation['status']}, never approved"
                if approval and approval["by"] not in {name, "approver"}:
                    yield f"{event['id']} of {name} was approved by {approval['by']}"
                if event["id"] in known and operation["status"] != "Scheduled":
                    yield f"a neighbour's event is {operation['status']}: {name}"
        for event in approved - stored:
            yield f"the approval of {event} was answered 200 and is not stored"
        log = self._service.log.read_text(encoding="utf-8")
        moved = log.count(hostile.MOVED)
        if moved and ticker.stood_still < STOOD_STILL_SECONDS:
            yield f"every notice moved {moved} times"


def _compared(quiet: Seconds, now: Seconds) -> Iterator[str]:
    """Say what takes too many times as long as it did in quiet."""
    for what, seconds in now.items():
        usual = statistics.median(quiet[what])
        if len(seconds) >= ENOUGH and (found := statistics.median(seconds)) > MOST_TIMES * usual:
            yield f"{what} took {found:.3f} s where it took {usual:.4f} s in quiet"


def _told(quiet: Sequence[float], waves: Sequence[Sequence[float]]) -> str:
    """Return the median in quiet, that of the worst wave, and the worst of all."""
    middle = max(statistics.median(each) for each in waves if each)
    figures = statistics.median(quiet), middle, max(map(max, filter(None, waves)))
    return "{:.1f}, then {:.1f}, worst {:.0f}".format(*(figure * 1e3 for figure in figures))


def _own(service: Service, network: Network, address: str, machine: str) -> dict[str, str]:
    """Return a neighbour's event as its machine reads it first."""
    read: list[bytes] = []
    with closing(Guests(service.port, [address], host=network.service)) as guest:
        guest.heard = lambda _, __, body: read.append(body)
        guest.ask(1)
    [event] = json.loads(read[0])["Events"]
    return {"id": event["EventId"], "machine": machine}

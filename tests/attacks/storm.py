"""One storm: a service, its neighbours, attackers by a plan, and what was wrong in the end."""

import json
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import hostile
import networks
from attacks import plan
from attacks.witnesses import Readers
from guests import Guests
from kills.processes import let_pass
from networks import NEIGHBOUR, PROXY, Network
from service import Service

NEIGHBOURS = 10
WORKERS = 4000
OWN_EVENTS = 100

MOST_MIB = 64.0
"""What attackers may make the service's memory grow by, whatever they do."""

WORST_SECONDS = {"read": 5.0, "approve": 10.0, "operator": 10.0}
"""While they attack, on a machine that does other work too: the benchmark has the figures."""

CALM_SECONDS = 30.0
"""After the attack's end, until nothing is left of it: a body has 10 s to come, and some wait."""

CALM_WORST_SECONDS = 1.0
"""Of a neighbour's answer after that."""

REFUSALS = "forewarn_guest_refusals_total"

BREAKS = {"rate": "[rules]\nrate_per_second = 1\nrate_burst = 1\n"}
"""Settings that hinder neighbours whatever the attackers do, each to see the judge see it."""


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

    def judged(self, seconds: float) -> Outcome:
        """Let them attack, and return what was wrong."""
        service, network, work = self._service, self._network, self._work
        own = hostile.own_events(service, network, OWN_EVENTS)
        never = [f"00000000-0000-4000-8000-{n:012X}" for n in range(hostile.IDS - NEIGHBOURS)]
        foreign = [event["id"] for event in self._events.values()] + never
        waves = plan.waves(self._chance, network, seconds, own, foreign)
        quiet = service.memory_mib()
        service.forget_peak()
        with (
            Readers(network, service.port, self._events) as readers,
            hostile.meanwhile(work.operate),
            hostile.meanwhile(work.approve),
        ):
            for wave in waves:
                print(f"  {wave}", flush=True)
                with hostile.attacked(network, wave.attacks, service.port):
                    let_pass(wave.seconds)
        more = service.memory_mib("VmHWM") - quiet
        wrong = [*readers.wrong[:10]]
        took = {
            "read": readers.guests.seconds,
            "approve": work.approvals,
            "operator": work.operator,
        }
        for what, worst in WORST_SECONDS.items():
            if max(took[what], default=worst) >= worst:
                wrong.append(f"one {what} took {max(took[what], default=0):.1f} s, of {worst} s")
        if readers.guests.statuses["closed"] or work.refused:
            closed = readers.guests.statuses["closed"]
            wrong.append(f"{closed} neighbours' connections were closed, {work.refused} refused")
        if more > MOST_MIB:
            wrong.append(f"memory grew by {more:.0f} MiB, of {MOST_MIB:.0f}")
        wrong += [*self._recovers(), *self._limits_are_told(waves), *self._store_is_right()]
        facts = {
            "waves": len(waves),
            "read": len(took["read"]),
            "read worst s": round(max(took["read"], default=0), 3),
            "approved": len(work.approved),
            "approve worst s": round(max(work.approvals, default=0), 3),
            "operator worst s": round(max(work.operator, default=0), 3),
            "more MiB": round(more, 1),
            "refusals": hostile.limits_said({}, service.metrics(REFUSALS)),
        }
        return Outcome(wrong, facts)

    def _recovers(self) -> Iterator[str]:
        """After the attack everything is as before."""
        service, network = self._service, self._network
        try:
            calm = hostile.settled(service)
        except AssertionError as error:
            calm = CALM_SECONDS + 1
            yield f"after the attack: {error}"
        if calm > CALM_SECONDS:
            yield f"the service was calm {calm:.0f} s after the attack, of {CALM_SECONDS:.0f} s"
        if waiting := service.metric("forewarn_guest_waiters"):
            yield f"{waiting:.0f} requests wait of guests who are gone"
        addresses = network.addresses(NEIGHBOUR, range(NEIGHBOURS))
        with closing(Guests(service.port, addresses, host=network.service)) as guests:
            guests.ask(20 * NEIGHBOURS, each_seconds=0.05)
        if max(guests.seconds) > CALM_WORST_SECONDS or guests.statuses["200"] != 20 * NEIGHBOURS:
            yield f"after it answers took {max(guests.seconds):.1f} s, by {guests.statuses}"

    def _limits_are_told(self, waves: list[plan.Wave]) -> Iterator[str]:
        """Every limit that was reached is in the metric and in the log, and not too often."""
        refused = self._service.metrics(REFUSALS)
        counted = {labels.split('"')[1] for labels, count in refused.items() if count}
        for way, limits in plan.to_be_met(waves):
            if not limits & counted:
                yield f"the attack {way} met none of {sorted(limits)}: {sorted(counted)}"
        lines = self._service.log.read_text(encoding="utf-8").splitlines()
        entries = [json.loads(line) for line in lines]
        told = Counter(
            (entry["reason"], entry["address"]) for entry in entries if entry.get("reason")
        )
        for reason in sorted(counted - {reason for reason, _ in told}):
            yield f"{reason} was counted, and is not in the log"
        for (reason, address), count in told.items():
            if count > 2:  # once a minute, and all of this is over in less than two
                yield f"{reason} of {address} was logged {count} times"
        for entry in entries:
            if entry["level"] == "error" or "exception" in entry:
                yield f"the log has {entry['event']}: {entry.get('exception', '')[-300:]}"

    def _store_is_right(self) -> Iterator[str]:
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
        if moved := log.count(hostile.MOVED):
            yield f"every notice moved {moved} times"


def _own(service: Service, network: Network, address: str, machine: str) -> dict[str, str]:
    """Return a neighbour's event as its machine reads it first."""
    read: list[bytes] = []
    with closing(Guests(service.port, [address], host=network.service)) as guest:
        guest.heard = lambda _, __, body: read.append(body)
        guest.ask(1)
    [event] = json.loads(read[0])["Events"]
    return {"id": event["EventId"], "machine": machine, "not_before": event["NotBefore"]}

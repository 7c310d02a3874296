"""What observations of the hypervisors mean: a machine has moved, has crashed, or is not known.

A crash takes down a machine that nobody was told of, so its peers get an unforeseen Reboot event.
A wrong one would start a healthy machine a second time, so a failure that a host tells of is only
suspected at first. It counts as a crash when

(a) no operation of ours is at work on the machine, which may be what took it down;
(b) every host was asked about it since, and none has it in memory, or takes part in a migration of
    it: a migration that is cancelled ends with a failure at the target, of a healthy machine, and
    a host may have started it again by itself (`on_crash=restart`);
(c) the failure was on the host that the fleet has for it, where the machine was in memory before.

While a host does not answer, (b) is open, and the suspicion waits for it with an alert. A machine
that ran on a host which lost its power has failed too, once that host is back and has it off. A
guest's own reboot or shutdown is no failure. A domain that appears or goes is told, and changes
nothing.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import TypeAlias

import msgspec

from forewarn.maintenance.alerts import Alert, AlertKind
from forewarn.maintenance.fleet_import import Domain
from forewarn.maintenance.model import Machine, listed

FAILURES = frozenset({("STOPPED", "FAILED"), ("STOPPED", "CRASHED"), ("CRASHED", "PANICKED")})
"""The events, each with its detail, of a machine that stopped without having been asked to."""

FAILED_REASONS = frozenset({"failed", "crashed", "daemon"})
"""Why a domain is off that nobody stopped; `daemon`: it was gone when libvirt came back."""

SETTLED = frozenset({"running", "paused"})
"""The states of a domain that is at home on its host."""

LOST_REASONS = FAILED_REASONS | {"unknown"}
"""Why a domain is off that ran when its host was lost; `unknown`: the host itself has rebooted."""

LOOK_AGAIN = timedelta(seconds=2)
"""How long to wait where a migration is under way, before all hosts are asked again."""

SUSPECTED_FOR = timedelta(minutes=10)
"""How long a suspicion waits for a host that does not answer: what peers would read later is no
news any more. The alert stays for as long as the machine is off."""

MAX_CRASHES = 3
CRASHES_WITHIN = timedelta(hours=1)
"""A machine that crashes more often is not started again and again: it needs somebody."""

LOST_AFTER = timedelta(seconds=10)
"""How long a host may be away before that is an alert: as long as libvirtd takes to restart."""

TWICE_AFTER = timedelta(seconds=30)
"""How long two hosts may both say that they run a machine: their events come one by one."""


class FleetState(msgspec.Struct, frozen=True):
    """What of the fleet an observation is compared with."""

    machines: Mapping[str, Machine]
    """By vm_id."""
    busy: Collection[str]
    """The keys of machines with an operation that is being carried out, or just was."""
    rebooting: Collection[str] = ()
    """The hosts that a drain reboots now."""


class LookEverywhere(msgspec.Struct, frozen=True):
    """Ask every host what it has of a domain."""

    uuid: str


class RecordHost(msgspec.Struct, frozen=True):
    """A machine runs on another host than the fleet has for it."""

    machine: Machine
    host: str


class RaiseUnforeseen(msgspec.Struct, frozen=True):
    """A machine has crashed: its peers get an unforeseen Reboot, and the connector starts it."""

    machine: Machine
    host: str
    why: str


class Remark(msgspec.Struct, frozen=True):
    """Something for the log."""

    message: str
    host: str
    names: tuple[str, ...]


Action: TypeAlias = LookEverywhere | RecordHost | RaiseUnforeseen | Remark


class _Seen(msgspec.Struct, frozen=True):
    domain: Domain
    since: datetime
    """Since when it is in this state there."""


class _HostState(msgspec.Struct):
    domains: dict[str, _Seen] | None = None
    """By UUID; None while it does not answer."""
    before: dict[str, _Seen] = {}
    """What it had when it was lost."""
    lost_at: datetime | None = None
    why: str = ""


class _Suspicion(msgspec.Struct):
    host: str
    why: str
    since: datetime
    unheard: set[str]
    """The hosts that have not told of it since."""
    again_at: datetime | None = None


class Observations:
    """What the hosts, by their names in the fleet, have told so far, and what follows from more."""

    def __init__(self, hosts: Iterable[str], now: datetime) -> None:
        self._hosts = {name: _HostState(lost_at=now, why="not reached yet") for name in hosts}
        self._suspicions: dict[str, _Suspicion] = {}
        self._crashes: dict[str, list[datetime]] = {}
        self._gone: dict[str, tuple[str, datetime]] = {}
        """The last host, and when it went, of domains that no host has any more."""

    def host_listed(
        self, host: str, domains: Iterable[Domain], fleet: FleetState, now: datetime
    ) -> list[Action]:
        """Take all domains of a host, which answers from now on."""
        state = self._hosts[host]
        before = state.before if state.domains is None else state.domains
        state.domains, state.before, state.lost_at = {}, {}, None
        # It may have listed its domains before a failure elsewhere was told: it is asked again.
        actions: list[Action] = [
            LookEverywhere(uuid)
            for uuid, suspicion in self._suspicions.items()
            if host in suspicion.unheard
        ]
        failed = []
        for domain in domains:
            earlier = before.get(domain.uuid)
            self._put(host, domain, now, earlier)
            if earlier and earlier.domain.present and _has_failed(domain, LOST_REASONS):
                failed.append(domain)
        for domain in failed:
            why = f"it was off ({domain.reason}) when {host} answered again"
            actions += self._suspect(host, domain.uuid, why, fleet, now)
        for uuid in before.keys() - state.domains.keys():
            self._note_gone(host, uuid, now)
        unknown = [
            seen.domain.name for uuid, seen in state.domains.items() if uuid not in fleet.machines
        ]
        if unknown:
            message = "domains are not in the fleet; see 'forewarn fleet sync --dry-run'"
            actions.append(Remark(message, host, tuple(sorted(unknown))))
        return actions + self._moves(state.domains, fleet)

    def domain_changed(
        self, host: str, kind: tuple[str, str], domain: Domain, fleet: FleetState, now: datetime
    ) -> list[Action]:
        """Take an event, by its name and detail, and the domain as it is after it."""
        earlier = (self._hosts[host].domains or {}).get(domain.uuid)
        self._put(host, domain, now, earlier)
        actions: list[Action] = []
        machine = fleet.machines.get(domain.uuid)
        if kind[0] == "DEFINED" and earlier is None and machine is None:
            message = "a domain was defined that is not in the fleet"
            actions.append(Remark(message, host, (domain.name,)))
        if kind[0] == "UNDEFINED" and domain.state == "gone" and machine is not None:
            message = "a machine's domain was undefined; the fleet keeps the machine"
            actions.append(Remark(message, host, (machine.name,)))
        if kind in FAILURES and earlier and earlier.domain.present:
            why = f"{' '.join(kind).lower()} on {host}"
            actions += self._suspect(host, domain.uuid, why, fleet, now)
        return actions + self._moves([domain.uuid], fleet)

    def domain_looked(
        self, host: str, domain: Domain, fleet: FleetState, now: datetime
    ) -> list[Action]:
        """Take a host's answer about one domain."""
        known = self._hosts[host].domains
        if known is None:
            return []
        self._put(host, domain, now, known.get(domain.uuid))
        if (suspicion := self._suspicions.get(domain.uuid)) is not None:
            suspicion.unheard.discard(host)
        return self._judge(domain.uuid, fleet, now) + self._moves([domain.uuid], fleet)

    def host_lost(self, host: str, why: str, now: datetime) -> bool:
        """Take that a host does not answer any more; tell whether it did before."""
        state = self._hosts[host]
        state.why = why
        if state.domains is None:
            return False
        state.before, state.domains, state.lost_at = state.domains, None, now
        return True

    def host_rebooted(self, host: str, now: datetime) -> None:
        """Take that a drain has rebooted a host: it is lost only if it stays silent from now on."""
        state = self._hosts[host]
        if state.lost_at is not None:
            state.lost_at = now

    def time_passed(self, fleet: FleetState, now: datetime) -> list[Action]:
        """Take that time has passed."""
        actions: list[Action] = []
        for uuid, suspicion in [*self._suspicions.items()]:
            if now - suspicion.since >= SUSPECTED_FOR:
                del self._suspicions[uuid]
            elif suspicion.again_at is not None and suspicion.again_at <= now:
                suspicion.again_at, suspicion.unheard = None, set(self._hosts)
                actions.append(LookEverywhere(uuid))
        strayed = [
            seen.domain.uuid
            for host, seen in self._all()
            if (machine := fleet.machines.get(seen.domain.uuid)) and machine.host != host
        ]
        return actions + self._moves(strayed, fleet)

    def retry(self, raised: RaiseUnforeseen, now: datetime) -> None:
        """Take back that a crash was told: the store was away."""
        uuid = raised.machine.vm_id
        self._crashes[uuid].pop()
        self._suspicions[uuid] = _Suspicion(
            raised.host, raised.why, now, set(self._hosts), now + LOOK_AGAIN
        )

    def alerts(self, fleet: FleetState, now: datetime) -> Iterator[Alert]:
        """Yield what needs an operator."""
        for name, state in self._hosts.items():
            if name in fleet.rebooting:
                continue  # its drain waits for it, with a limit
            if state.lost_at is not None and now - state.lost_at >= LOST_AFTER:
                message = f"{name} does not answer: {state.why}"
                yield Alert(AlertKind.HOST_LOST, f"host {name}", message, state.lost_at)
        running: dict[str, list[str]] = {}
        for host, seen in self._all():
            domain, machine = seen.domain, fleet.machines.get(seen.domain.uuid)
            if machine is None:
                if domain.tagged:
                    message = f"{domain.name} on {host} is tagged and not in the fleet; "
                    message += "'forewarn fleet sync' adds it"
                    yield Alert(AlertKind.FLEET, f"domain {domain.name}", message, seen.since)
                continue
            if domain.state == "running":
                running.setdefault(domain.uuid, []).append(host)
                others = running[domain.uuid]
                if len(others) > 1 and now - seen.since >= TWICE_AFTER:
                    message = f"{machine.name} runs on {' and '.join(others)}: stop one of them"
                    yield Alert(AlertKind.RUNS_TWICE, machine.name, message, seen.since)
            if _has_failed(domain) and machine.host == host and machine.key not in fleet.busy:
                yield self._crashed(machine, seen)
        for uuid, (host, at) in self._gone.items():
            machine = fleet.machines.get(uuid)
            if machine is not None and machine.key not in fleet.busy:
                message = f"no host has the domain of {machine.name}, last seen on {host}; "
                message += f"'forewarn fleet remove {machine.name}' removes the machine"
                yield Alert(AlertKind.FLEET, machine.name, message, at)

    def _crashed(self, machine: Machine, seen: _Seen) -> Alert:
        host, domain = machine.host, seen.domain
        dark = [name for name, state in self._hosts.items() if state.domains is None]
        message = f"{machine.name} is off on {host} ({domain.reason or domain.state})"
        if dark:
            message += f", and {listed(dark)} may run it, for no answer comes from there"
        message += f"; 'forewarn schedule reboot {machine.name} --no-notice' starts it"
        return Alert(AlertKind.CRASHED, machine.name, message, seen.since)

    def _all(self) -> Iterator[tuple[str, _Seen]]:
        for host, state in self._hosts.items():
            for seen in (state.domains or {}).values():
                yield host, seen

    def _put(self, host: str, domain: Domain, now: datetime, earlier: _Seen | None) -> None:
        """Note a domain's state on a host; what comes before the host's first list is in that."""
        domains = self._hosts[host].domains
        if domains is None:
            return
        if domain.state == "gone":
            if domains.pop(domain.uuid, None) is not None:
                self._note_gone(host, domain.uuid, now)
            return
        same = earlier and (earlier.domain.state, earlier.domain.reason) == (
            domain.state,
            domain.reason,
        )
        domains[domain.uuid] = _Seen(domain, earlier.since if earlier and same else now)
        self._gone.pop(domain.uuid, None)

    def _note_gone(self, host: str, uuid: str, now: datetime) -> None:
        """Note that a host has a domain no more; one that is lost may still have it."""
        if not any(uuid in (state.domains or state.before) for state in self._hosts.values()):
            self._gone.setdefault(uuid, (host, now))

    def _suspect(
        self, host: str, uuid: str, why: str, fleet: FleetState, now: datetime
    ) -> list[Action]:
        machine = fleet.machines.get(uuid)
        if machine is None or machine.key in fleet.busy or machine.host != host:
            return []
        if uuid in self._suspicions:
            return []
        self._suspicions[uuid] = _Suspicion(host, why, now, set(self._hosts))
        return [LookEverywhere(uuid)]

    def _judge(self, uuid: str, fleet: FleetState, now: datetime) -> list[Action]:
        """Decide about a suspicion once all hosts have told of the domain."""
        suspicion = self._suspicions.get(uuid)
        if suspicion is None or suspicion.unheard or suspicion.again_at is not None:
            return []
        found = {h: seen.domain for h, seen in self._all() if seen.domain.uuid == uuid}
        if any(domain.migrating or domain.state == "handover" for domain in found.values()):
            suspicion.again_at = now + LOOK_AGAIN
            return []
        del self._suspicions[uuid]
        machine = fleet.machines.get(uuid)
        here = found.get(suspicion.host)
        elsewhere = any(d.present for host, d in found.items() if host != suspicion.host)
        if machine is None or elsewhere or (here is not None and here.state in SETTLED):
            return []
        if machine.key in fleet.busy or machine.host != suspicion.host:
            return []
        recent = [at for at in self._crashes.get(uuid, ()) if now - at < CRASHES_WITHIN]
        if len(recent) >= MAX_CRASHES:
            message = f"a machine crashed {MAX_CRASHES} times within an hour: no more is done"
            return [Remark(message, suspicion.host, (machine.name,))]
        self._crashes[uuid] = [*recent, now]
        return [RaiseUnforeseen(machine, suspicion.host, suspicion.why)]

    def _moves(self, uuids: Iterable[str], fleet: FleetState) -> list[Action]:
        """Return the machines that are in memory on one host, and that is not the fleet's."""
        moves: list[Action] = []
        for uuid in uuids:
            machine = fleet.machines.get(uuid)
            if machine is None or machine.key in fleet.busy or uuid in self._suspicions:
                continue
            homes = [
                host
                for host, state in self._hosts.items()
                if (seen := (state.domains or {}).get(uuid)) and seen.domain.state in SETTLED
            ]
            if len(homes) == 1 and homes[0] != machine.host:
                moves.append(RecordHost(machine, homes[0]))
        return moves


def _has_failed(domain: Domain, reasons: Collection[str] = FAILED_REASONS) -> bool:
    return domain.state == "crashed" or (domain.state == "off" and domain.reason in reasons)

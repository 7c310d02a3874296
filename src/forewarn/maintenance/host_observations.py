"""Decides from surveys of the hypervisors: a machine has moved, has crashed, or is not known.

A survey has the states of all domains of one host. It is compared with the one before; a host that
does not answer changes nothing, and its next survey is compared with its last.

A crash takes down a machine that nobody was told of, so its peers get an unforeseen Reboot event.
A wrong one would start a healthy machine a second time, so a domain that has failed since the last
survey is only suspected at first. It counts as a crash when

(a) no operation of ours is at work on the machine, which may be what took it down;
(b) every host but those that a drain reboots has answered a survey that was asked for afterwards,
    and none has it in memory: a migration that is cancelled leaves a failure at the target, of a
    healthy machine, and a host may have started it again by itself (`on_crash=restart`);
(c) the failure was on the host that the fleet has for it, where the machine was in memory before,
    or ran and crashed since.

While a host does not answer, (b) is open, and the suspicion waits for it with an alert. A machine
that ran on a host which lost its power has failed too, once that host is back and has it off. A
guest's own reboot or shutdown is no failure, and neither is a failure that is over before the next
survey. A domain that appears, goes or was started again is logged or an alert, and changes nothing.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import TypeAlias

import msgspec

from forewarn.maintenance.alerts import Alert, AlertKind
from forewarn.maintenance.fleet_import import Domain
from forewarn.maintenance.model import Machine, listed

FAILED_REASONS = frozenset({"failed", "crashed", "daemon"})
"""The reasons for which a domain is off that nobody stopped; `daemon`: it was gone when libvirt
came back."""

SETTLED = frozenset({"running", "paused"})
"""The states of a domain that is at home on its host."""

LOST_REASONS = FAILED_REASONS | {"unknown"}
"""The reasons for which a domain is off that ran when its host was lost; `unknown`: the host itself
has rebooted."""

SUSPECTED_FOR = timedelta(minutes=10)
"""The longest wait of a suspicion for a host that does not answer: a later event would be old news
to the peers. The alert stays for as long as the machine is off."""

MAX_CRASHES = 3
CRASHES_WITHIN = timedelta(hours=1)
"""A machine that crashes more often is not started again and again: it needs somebody."""

LOST_AFTER = timedelta(seconds=10)
"""The time that a host may be away before that is an alert: as long as libvirtd takes to restart.
"""

TWICE_AFTER = timedelta(seconds=30)
"""The time that two hosts may both report a machine as running: they are surveyed one by one."""


class FleetState(msgspec.Struct, frozen=True):
    """The part of the fleet that surveys are compared with."""

    machines: Mapping[str, Machine]
    """By vm_id."""
    busy: Collection[str]
    """The keys of machines with an operation that is being carried out, or just was."""
    rebooting: Collection[str] = ()


class Survey(msgspec.Struct, frozen=True):
    """Survey a host at once, or all: a domain has failed, or runs on another host too."""

    host: str = ""
    """Empty for all."""


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
    names: tuple[str, ...] = ()


Recorded: TypeAlias = RecordHost | RaiseUnforeseen
"""The actions that the store is to have."""

Action: TypeAlias = Survey | Recorded | Remark


class _Seen(msgspec.Struct, frozen=True):
    domain: Domain
    since: datetime
    """Since when it is in this state there."""


class _WatchedHost(msgspec.Struct):
    why: str
    lost_at: datetime | None
    """Since when it does not answer; None while it answers."""
    domains: dict[str, _Seen] = {}
    """Its last survey, by UUID."""
    odd: tuple[_Seen, ...] = ()
    """Those that may be an alert by themselves: alerts are asked for often, and domains are many.
    """
    number: int = 0


class _Trace(msgspec.Struct, frozen=True):
    """Where a domain failed or went, and the number after which every host has to answer."""

    host: str
    since: datetime
    number: int
    why: str = ""


class Observations:
    """The last surveys of the hosts, by their names in the fleet, and the judgement of new ones."""

    def __init__(self, hosts: Iterable[str], now: datetime) -> None:
        self._hosts = {name: _WatchedHost("not reached yet", now) for name in hosts}
        self._places: dict[str, set[str]] = {}
        """The hosts whose last survey has a domain, by UUID."""
        self._shared: set[str] = set()
        """The UUIDs of domains that several hosts have."""
        self._begun = 0
        self._suspicions: dict[str, _Trace] = {}
        self._crashes: dict[str, list[datetime]] = {}
        self._gone: dict[str, _Trace] = {}
        """The fleet's domains that no host has any more."""

    def begin(self) -> int:
        """Return the number of a survey that is asked for now."""
        self._begun += 1
        return self._begun

    def unknown(self, host: str, fleet: FleetState) -> list[str]:
        """Return the UUIDs of a host's domains that are not in the fleet."""
        return [uuid for uuid in self._hosts[host].domains if uuid not in fleet.machines]

    def surveyed(
        self, host: str, number: int, domains: Iterable[Domain], fleet: FleetState, now: datetime
    ) -> list[Action]:
        """Take a survey of a host.

        A move and a crash follow again from each survey until they are recorded, and `recorded`.
        """
        state = self._hosts[host]
        actions: list[Action] = []
        failures = FAILED_REASONS if state.lost_at is None else LOST_REASONS
        if state.lost_at is not None:
            actions.append(Remark("a host is watched", host))
        before = state.domains
        state.domains = {each.uuid: _seen(each, before.get(each.uuid), now) for each in domains}
        state.odd = tuple(
            seen
            for seen in state.domains.values()
            if seen.domain.tagged or _has_failed(seen.domain)
        )
        state.lost_at, state.number = None, number
        unknown = []
        for uuid, seen in state.domains.items():
            domain = seen.domain
            machine, earlier = fleet.machines.get(uuid), before.get(uuid)
            if earlier is None:
                self._places.setdefault(uuid, set()).add(host)
                if len(self._places[uuid]) > 1:
                    self._shared.add(uuid)
                self._gone.pop(uuid, None)
                if machine is None:
                    unknown.append(domain.name)
            elif _failed_since(earlier.domain, domain, failures):
                actions += self._suspect(host, domain, fleet, now)
            elif (
                earlier.domain.run != domain.run  # seldom, and asked first: domains are many
                and machine is not None
                and machine.key not in fleet.busy
                and earlier.domain.present
                and domain.present
            ):
                actions.append(Remark("a machine was restarted", host, (machine.name,)))
        for uuid in before.keys() - state.domains.keys():
            self._goes(host, uuid, now)
        for kept in (self._gone, self._crashes):  # only of the fleet: others come and go for ever
            for uuid in [uuid for uuid in kept if uuid not in fleet.machines]:
                del kept[uuid]
        if unknown:
            message = "domains are not in the fleet; see 'forewarn fleet sync --dry-run'"
            actions.append(Remark(message, host, tuple(sorted(unknown))))
        actions += self._judge(fleet, now)
        actions += self._arrives(host, before, fleet)
        actions += self._moves(before.keys() | state.domains.keys(), fleet)
        return actions

    def recorded(self, action: Recorded, now: datetime) -> None:
        """Note that a crash is recorded, or never will be."""
        if isinstance(action, RaiseUnforeseen):
            uuid = action.machine.vm_id
            self._suspicions.pop(uuid, None)
            self._crashes[uuid] = [*self._recent(uuid, now), now]

    def lost(self, host: str, why: str, now: datetime) -> bool:
        """Note that a host did not answer; return True if it did before."""
        state = self._hosts[host]
        state.why = why
        if state.lost_at is not None:
            return False
        state.lost_at = now
        return True

    def host_rebooted(self, host: str, now: datetime) -> None:
        """Note that a drain has rebooted a host: it is lost only if it stays silent from now on."""
        state = self._hosts[host]
        if state.lost_at is not None:
            state.lost_at = now

    def alerts(self, fleet: FleetState, now: datetime) -> Iterator[Alert]:
        """Yield the alerts."""
        for name, state in self._hosts.items():
            if state.lost_at is None:
                yield from self._of_odd(name, state.odd, fleet)
            elif name not in fleet.rebooting and now - state.lost_at >= LOST_AFTER:
                # The drain of one that reboots waits for it, with a limit.
                message = f"{name} does not answer: {state.why}"
                yield Alert(AlertKind.HOST_LOST, f"host {name}", message, state.lost_at)
        yield from self._doubled(fleet, now)
        for uuid, trace in self._gone.items():
            machine = fleet.machines.get(uuid)
            # A host that was surveyed before it went may have it by now.
            if machine and machine.key not in fleet.busy and self._answering(trace):
                message = f"no host has the domain of {machine.name}, last seen on {trace.host}; "
                message += f"'forewarn fleet remove {machine.name}' removes the machine"
                yield Alert(AlertKind.FLEET, machine.name, message, trace.since)

    def _of_odd(self, host: str, odd: Iterable[_Seen], fleet: FleetState) -> Iterator[Alert]:
        for seen in odd:
            domain, machine = seen.domain, fleet.machines.get(seen.domain.uuid)
            if machine is None and domain.tagged:
                message = f"{domain.name} on {host} is tagged and not in the fleet; "
                message += "'forewarn fleet sync' adds it"
                yield Alert(AlertKind.FLEET, f"domain {domain.name}", message, seen.since)
            is_its = machine is not None and machine.host == host and _has_failed(domain)
            if machine is not None and is_its and machine.key not in fleet.busy:
                yield self._crashed(machine, seen)

    def _doubled(self, fleet: FleetState, now: datetime) -> Iterator[Alert]:
        for uuid in sorted(self._shared):
            machine = fleet.machines.get(uuid)
            if machine is None:
                continue
            places = self._places[uuid]
            states = {host: self._hosts[host] for host in self._hosts if host in places}
            seen = {h: each.domains[uuid] for h, each in states.items() if each.lost_at is None}
            since = {host: at.since for host, at in seen.items() if at.domain.state == "running"}
            if len(since) > 1 and now - max(since.values()) >= TWICE_AFTER:
                message = f"{machine.name} runs on {' and '.join(since)}: stop one of them"
                yield Alert(AlertKind.RUNS_TWICE, machine.name, message, max(since.values()))

    def _crashed(self, machine: Machine, seen: _Seen) -> Alert:
        host, domain = machine.host, seen.domain
        dark = [name for name, state in self._hosts.items() if state.lost_at is not None]
        message = f"{machine.name} is off on {host} ({domain.reason or domain.state})"
        if dark:
            message += f", and {listed(dark)} may run it, for no answer comes from there"
        message += f"; 'forewarn schedule reboot {machine.name} --already-failed' starts it"
        return Alert(AlertKind.CRASHED, machine.name, message, seen.since)

    def _answering(self, trace: _Trace) -> bool:
        states = self._hosts.values()
        return all(each.number > trace.number for each in states if each.lost_at is None)

    def _copies(self, uuid: str) -> dict[str, Domain]:
        return {
            host: state.domains[uuid].domain
            for host in self._places.get(uuid, ())
            if (state := self._hosts[host]).lost_at is None
        }

    def _goes(self, host: str, uuid: str, now: datetime) -> None:
        """Note that a host no longer has a domain; a host that is lost may still have it."""
        places = self._places[uuid]
        places.discard(host)
        if len(places) < 2:
            self._shared.discard(uuid)
        if not places:
            del self._places[uuid]
            self._gone[uuid] = _Trace(host, now, self._begun)

    def _suspect(
        self, host: str, domain: Domain, fleet: FleetState, now: datetime
    ) -> Iterator[Action]:
        machine = fleet.machines.get(domain.uuid)
        if machine is not None and machine.key not in fleet.busy and machine.host == host:
            why = f"{domain.state} ({domain.reason}) on {host}"
            self._suspicions[domain.uuid] = _Trace(host, now, self._begun, why)
            yield Survey()

    def _judge(self, fleet: FleetState, now: datetime) -> Iterator[Action]:
        """Decide about each suspicion once all hosts have answered since.

        A host that its drain reboots was empty: a rollout, with one after another, may take days.
        """
        dark = {name for name, each in self._hosts.items() if each.lost_at is not None}
        for uuid, suspicion in [*self._suspicions.items()]:
            machine = fleet.machines.get(uuid)
            is_its = machine and machine.host == suspicion.host and machine.key not in fleet.busy
            if machine is None or not is_its or now - suspicion.since >= SUSPECTED_FOR:
                del self._suspicions[uuid]
                continue
            if not dark.issubset(fleet.rebooting):
                continue
            copies = self._copies(uuid)
            amid = any(domain.state == "handover" for domain in copies.values())
            if amid or not self._answering(suspicion):
                continue
            if any(domain.state in SETTLED for domain in copies.values()):
                del self._suspicions[uuid]
            elif len(self._recent(uuid, now)) >= MAX_CRASHES:
                del self._suspicions[uuid]
                message = f"a machine crashed {MAX_CRASHES} times within an hour: no more is done"
                yield Remark(message, suspicion.host, (machine.name,))
            else:
                yield RaiseUnforeseen(machine, suspicion.host, suspicion.why)

    def _recent(self, uuid: str, now: datetime) -> list[datetime]:
        return [at for at in self._crashes.get(uuid, ()) if now - at < CRASHES_WITHIN]

    def _arrives(
        self, host: str, before: Mapping[str, _Seen], fleet: FleetState
    ) -> Iterator[Action]:
        """Survey the fleet's host of a machine that runs here now: it may just have left there."""
        for uuid in _settled(self._hosts[host].domains) - _settled(before):
            machine = fleet.machines.get(uuid)
            if machine is None or machine.host == host or machine.key in fleet.busy:
                continue
            known = self._copies(uuid).get(machine.host)
            if known is not None and known.state in SETTLED:
                yield Survey(machine.host)

    def _moves(self, uuids: Iterable[str], fleet: FleetState) -> Iterator[Action]:
        for uuid in uuids:
            machine = fleet.machines.get(uuid)
            if machine is None or self._places.get(uuid) == {machine.host}:  # nearly all of them
                continue
            if machine.key in fleet.busy or uuid in self._suspicions:
                continue
            homes = [h for h, domain in self._copies(uuid).items() if domain.state in SETTLED]
            if len(homes) == 1 and homes[0] != machine.host:
                yield RecordHost(machine, homes[0])


def _seen(domain: Domain, earlier: _Seen | None, now: datetime) -> _Seen:
    same = earlier and (earlier.domain.state, earlier.domain.reason) == (
        domain.state,
        domain.reason,
    )
    return _Seen(domain, earlier.since if earlier and same else now)


def _settled(seen: Mapping[str, _Seen]) -> set[str]:
    return {uuid for uuid, each in seen.items() if each.domain.state in SETTLED}


def _failed_since(earlier: Domain, domain: Domain, failures: Collection[str]) -> bool:
    """Return True if a domain has failed since an earlier survey.

    One that was off has run and crashed if libvirt says "crashed"; "failed" may be a start in vain.
    """
    if earlier.present:
        return _has_failed(domain, failures)
    return domain.reason == "crashed" and not _has_failed(earlier)


def _has_failed(domain: Domain, reasons: Collection[str] = FAILED_REASONS) -> bool:
    return domain.state == "crashed" or (domain.state == "off" and domain.reason in reasons)

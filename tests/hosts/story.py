"""Stories of real guests, judged by what the guests' own polls say: see the texts for the verbs.

What a text begins with is its world: it is made once, and each story finds it as the one before has
left it.
"""

import contextlib
import itertools
import json
import os
import shlex
import signal
import subprocess
import time
from datetime import datetime
from typing import Any, Final

from forewarn.server import relay_feed
from hosts import agent_image
from hosts.guest import Guest
from hosts.host import ENDPOINT, ROUTER, until
from hosts.lab import NETWORK, Lab
from kills.processes import let_pass
from recipes import pages
from stories import Rows, Told, listed

CUT_SECONDS: Final = float(os.environ.get("HOSTS_CUT_SECONDS", "") or 20)
SYNC: Final = "\n[fleet.libvirt]\nsync = true"

PAGE: Final = "libvirt"
"""The guide."""

SHARE: Final = "<filesystem type='mount'><source dir='{}'/><target dir='share'/></filesystem>"
"""A device that keeps a guest where it is."""

SLOW: Final = ("--live", "--persistent", "--unsafe", "--bandwidth", "1")
"""1 MiB/s: a migration that lasts until it is cancelled."""


class HostStory(Told):
    """Guests of a lab so far."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self._made = False
        self._printed = ""
        self.notices: dict[str, datetime] = {}
        """The NotBefore that each guest read first."""
        self._boot_ids: dict[str, set[str]] = {}
        self._migrating: list[subprocess.Popen[bytes]] = []

    def play(self, name: str, rows: Rows) -> int:
        """Carry out a story's own lines, after those of its world if that is not there."""
        world = next(at for at, (_, row) in enumerate(rows) if row == "that-is-all")
        begin, self._made = (world if self._made else 0), True
        return super().play(name, rows[begin:])

    def that_is_all(self) -> None:
        """The end of the world, and the beginning of a story."""
        self.since = time.monotonic()
        self.before = len(self.lab.operations())

    def __getitem__(self, name: str) -> Guest:
        return self.lab.guests[name]

    # The world.

    def serve(
        self, kind: str = "", sync: str = "", migration: str = "", memory: str = "", **settings: str
    ) -> None:
        """Let the service carry maintenance out by libvirt, by these settings, or `simulated`."""
        if kind:
            self.lab.serve()
            return
        lines = [f"{name} = {value}" for name, value in settings.items()]
        if migration:
            limit = "unsafe = true" if migration == "unsafe" else f"bandwidth_mib = {migration}"
            lines += ["[connector.libvirt.migration]", limit]
        limits = {name: f"memory_mib = {memory}" for name in self.lab.hosts if memory}
        self.lab.serve(self.lab.libvirt("\n".join(lines), **limits) + SYNC * bool(sync))

    def serve_as_the_page_says(self) -> None:
        """Let the service have the page's settings, with the lab's hosts in them."""
        listener, _, text = pages.block(PAGE, "toml").partition("[connector]")
        assert f'address = "{ENDPOINT}"\nport = 80' in listener
        places = {}
        for name, host in self.lab.hosts.items():
            assert f'"tcp://{host.address}"' in text
            places[f"qemu+ssh://root@{name}/system"] = host.uri
            reboot, boot_id = map(json.dumps, (host.reboot_command, host.boot_id_command))
            ssh = f'["ssh", "root@{name}", "systemctl", "reboot"]'
            places[ssh] = f"{reboot}\nboot_id = {boot_id}"
        self.lab.serve("[connector]" + pages.placed(text, places))

    def guest(self, name: str, host: str, *how: str, memory: str = "96") -> None:
        """A guest that is up and approves.

        It may be `off`, `silent`, without a `button`, `tied`, or `routed` to the service alone.
        """
        devices = ""
        if "tied" in how:
            share = self.lab.folder / "share"
            share.mkdir()
            devices = SHARE.format(share)
        made = self.lab.guest(
            name,
            approve="silent" not in how,
            button="without-button" not in how,
            memory_mib=int(memory),
            devices=devices,
            route=f"{ENDPOINT}/32" if "routed" in how else "default",
        )
        (made.define if "off" in how else made.start)(host)

    def agent(self, name: str, host: str) -> None:
        """A guest that runs the agent."""
        folder = self.lab.folder
        disks = agent_image.disks(agent_image.make(folder), agent_image.state(folder, name))
        memory = agent_image.MEMORY_MIB
        terms = {"memory_mib": memory, "devices": disks, "arguments": "fw.agent=yes"}
        self.lab.start({name: host}, **terms)

    def fleet(self, *names: str, kind: str = "availability_set") -> None:
        self.lab.fleet([self[name] for name in names], kind)

    def tag(self, *names: str) -> None:
        """Import guests from tags: of one scope, each in a domain of its own."""
        for number, name in enumerate(names):
            tag = ("--scope", "web", "--domain", str(number), "--address", self[name].address)
            self.lab.forewarn("fleet", "tag", name, *tag)
        self.lab.forewarn("fleet", "sync")
        for name in names:
            if self[name].host():
                self[name].wait_for_polls(2)

    # Operators.

    def forewarn(self, *words: str, exits: str = "0") -> None:
        status, self._printed, said = self.lab.call(*words)
        assert str(status) == exits, said

    def page(self, words: str, like: str = "") -> None:
        """Run the commands of the page's block that has some words in it; keep what they print.

        The first has all the words of the one command of another block, if that is told.
        """
        commands = _commands(words)
        assert not like or {*_commands(like)[0]} < {*commands[0]}
        self._printed = "".join(self.lab.forewarn(*command) for command in commands)

    def printed(self, *words: str) -> None:
        """All of this was printed by the last commands."""
        assert all(word in self._printed for word in words), self._printed

    def network_is_the_pages(self) -> None:
        assert pages.block("production", "sh", "address add").strip() in NETWORK
        assert pages.block(PAGE, "sh") == f"ip route add {ENDPOINT}/32 via {ROUTER}\n"

    def log_has_no(self, words: str) -> None:
        assert words not in self.lab.service.log.read_text()

    def maintain(self, *words: str) -> None:
        """Have maintenance carried out well."""
        operation = self.lab.maintain(*words)
        assert operation["status"] == "Completed", operation

    def fail(self, *words: str, saying: str = "") -> None:
        """Have maintenance carried out in vain; it holds nothing up after it."""
        self._failed(self.lab.maintain(*words), saying)

    def begin(self, *words: str) -> None:
        """Return when what carries maintenance out has begun."""
        self.lab.begin(*words)

    def failed(self) -> None:
        """What was begun ends in vain."""
        self._failed(self.lab.ended()[-1])

    def _failed(self, operation: dict[str, Any], saying: str = "") -> None:
        print(operation["outcome"])  # noqa: T201 - which of several errors libvirt gave
        assert operation["status"] == "Failed", operation
        assert saying in operation["outcome"]
        self.lab.forewarn("acknowledge", "--even-if-down", operation["id"])

    def completed(self, *types: str, cause: str = "", of: str = "") -> None:
        """Wait until all is over: so much has completed since the story began."""
        new = self.lab.ended()[self.before :]
        assert sorted(each["event_type"] for each in new) == sorted(types), new
        assert {each["status"] for each in new} <= {"Completed"}, new
        assert not cause or {each["start_cause"] for each in new} == {cause}
        assert not of or new[-1]["events"][0]["machines"] == [of]

    def host(self, name: str, status: str) -> None:
        path = f"/v1/hosts/{name}"
        get = self.lab.service.operator.get
        until(lambda: get(path)["host"]["status"] == status, self.lab.report)

    def schedule(self, *names: str) -> None:
        """Schedule a reboot of each guest, which has read of it then."""
        for name in names:
            self.lab.forewarn("schedule", "reboot", name)
            self.notices[name] = self[name].not_before()

    def _operation(self, name: str) -> dict[str, Any]:
        """Return the latest operation of a guest's."""
        mine = [o for o in self.lab.operations() if o["events"][0]["machines"] == [name]]
        return mine[-1]

    def approve(self, *names: str) -> None:
        for name in names:
            self.lab.forewarn("approve", self._operation(name)["id"])

    def scheduled(self, name: str) -> None:
        assert self._operation(name)["status"] == "Scheduled"

    def held(self, *hosts: str, soon: str = "") -> None:
        """Wait until these hosts are held: `soon`, before a relay's request would have ended."""
        began = time.monotonic()
        get = self.lab.service.operator.get
        until(lambda: [each["name"] for each in get("/v1/holds")["holds"]] == [*hosts])
        assert not soon or time.monotonic() - began < relay_feed.IDLE_WAIT_SECONDS

    def pause(self, seconds: str) -> None:
        let_pass(float(seconds))

    def cut_lasts(self) -> None:
        let_pass(CUT_SECONDS)

    def alerts(self, *told: str) -> None:
        """Wait until these are all alerts."""
        get = self.lab.service.operator.get

        def found() -> list[str]:
            return [f"{each['kind']} {each['about']}" for each in get("/v1/alerts")["items"]]

        until(lambda: found() == [*told], lambda: (found(), self.lab.report()))

    def _machine(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.lab.forewarn("fleet", "show", name, "--json"))
        return found

    def recorded(self, name: str, host: str, domain: str = "") -> None:
        """Wait until the fleet has a guest on a host, as its tag says."""
        until(lambda: self._machine(name)["host"] == host, self.lab.report)
        found, guest = self._machine(name), self[name]
        assert (found["vm_id"], found["address"]) == (guest.vm_id, guest.address)
        assert not domain or (found["scope"], str(found["update_domain"])) == ("web", domain)

    def in_step(self, machines: str) -> None:
        """Another import would change nothing."""
        again = json.loads(self.lab.forewarn("fleet", "sync", "--dry-run", "--json"))
        assert (again["unchanged"], again["changed"]["count"]) == (int(machines), 0)

    # Guests.

    def polls(self, name: str, number: str = "1") -> None:
        """Wait until a guest has polled well so many times more."""
        self[name].wait_for_polls(int(number))

    def runs_on(self, name: str, host: str, boots: str) -> None:
        """Wait until a guest is on one host alone; it is that one, and polls from there."""
        guest = self[name]
        until(lambda: len(guest.active_on()) == 1, lambda: (name, guest.active_on()))
        guest.assert_unharmed(host)
        assert str(len(guest.boots)) == boots

    def boots(self, name: str, number: str) -> None:
        """Wait until a guest has booted so often, and polled well in its last boot."""
        self[name].wait_for_boots(int(number))

    def acted(self, name: str, what: str, times: str, boot: str = "") -> None:
        """Wait until a guest's agent has said this so often, of one of the guest's boots."""
        said = f"{what} {self[name].boots[int(boot) - 1]}" if boot else what
        until(lambda: self[name].said().count(said) >= int(times), self[name].said)
        assert not boot or self[name].said().count(said) == int(times)

    def incarnation(self, name: str, number: str) -> None:
        documents = [poll.document for poll in self[name].polls if poll.document]
        assert documents[-1] == {"DocumentIncarnation": int(number), "Events": []}

    def metric(self, line: str) -> None:
        assert line in self.lab.service.operator.ask("GET", "/metrics").body.decode()

    def off(self, name: str) -> None:
        until(lambda: self[name].state() == "off", self[name].said)

    def gone(self, name: str) -> None:
        assert not any(name in host.defined() for host in self.lab.hosts.values())

    def unrefused(self, *names: str) -> None:
        """No poll of these was refused since the story began."""
        assert not [poll for name in names for poll in self[name].refused_polls(self.since)]

    def reads(self, name: str, event_type: str, status: str, resource: str) -> None:
        """Wait until a guest reads of another one's event."""

        def told() -> Any:
            polls = (poll for poll in self[name].polls if poll.at >= self.since)
            return next((poll.events for poll in polls if poll.events), None)

        (event,) = until(told, self.lab.report)
        assert (event["EventType"], event["EventStatus"]) == (event_type, status)
        assert event["Resources"] == [resource]

    def reads_nothing(self, name: str) -> None:
        """Wait until a guest reads of no event."""
        until(lambda: not self[name].events(), self.lab.report)

    def moved(self, name: str) -> None:
        """Wait until a guest reads a later NotBefore: by the length of the cut, and no more."""
        until(lambda: self[name].not_before() > self.notices[name], self.lab.report)
        by = (self[name].not_before() - self.notices[name]).total_seconds()
        assert CUT_SECONDS <= by <= time.monotonic() - self.since + 1  # it reads whole seconds

    def unmoved(self, name: str) -> None:
        assert self[name].not_before() == self.notices[name]

    def sound(self, *names: str) -> None:
        """No guest has read a number that goes back, or one of two contents."""
        assert [sentence for name in names for sentence in self[name].complaints()] == []

    def paused(self, name: str, seconds: str, others: str) -> None:
        """A guest did not poll for so long, and the others did meanwhile."""
        times = [poll.at for poll in self[name].polls if poll.at >= self.since]
        stop, resume = max(itertools.pairwise(times), key=lambda pair: pair[1] - pair[0])
        assert resume - stop >= int(
            seconds
        )  # polls are noted when they are read, which may be late
        polls = [poll for other in listed(others) for poll in self[other].polls]
        assert any(stop < poll.at < resume for poll in polls)

    def down_in_turn(self, *names: str) -> None:
        """Each was down once, and no two together; no more than one event was read of at a time."""

        def down(guest: Guest) -> tuple[float, float]:
            """Return from when to when it was down: until it polled in its next boot."""
            (pressed,) = guest.presses
            polls = (p for p in guest.polls if p.boot == guest.boots[1] and not p.error)
            return pressed, min(poll.at for poll in polls)

        guests = [self[name] for name in names]
        times = sorted(map(down, guests))
        assert all(up < later for (_, up), (later, _) in itertools.pairwise(times)), times
        read = [p.events for guest in guests for p in guest.polls if p.at >= self.since]
        assert max(map(len, read)) == 1, "what would take a second domain is not even announced"

    # Whoever works on a host, and what fails there.

    def virsh(self, host: str, *words: str) -> None:
        self.lab.hosts[host].virsh(*words)

    def define(self, name: str, host: str) -> None:
        self[name].define(host)

    def destroy(self, name: str) -> None:
        self[name].destroy()

    def migrate(self, name: str, host: str) -> None:
        self[name].migrate(host)

    def migrate_slowly(self, name: str, host: str) -> None:
        """Begin a live migration that does not end by itself."""
        source, target = self.lab.hosts[self[name].host()], self.lab.hosts[host]
        argv = ["virsh", "--quiet", "--connect", source.uri, "migrate", *SLOW, name, target.uri]
        null = subprocess.DEVNULL
        self._migrating.append(subprocess.Popen(argv, stdout=null, stderr=null))
        self.is_coming(name, host)
        until(lambda: "Data processed" in source.virsh("domjobinfo", name), self.lab.report)

    def is_coming(self, name: str, host: str) -> None:
        """Wait until a migration to a host is under way."""
        until(lambda: name in self.lab.hosts[host].running(), self.lab.report)

    def migration_failed(self) -> None:
        assert self._migrating.pop().wait(180) != 0

    def kill(self, host: str, program: str, guest: str = "") -> None:
        """Kill a host's libvirtd, or the qemu of a guest."""
        on = self.lab.hosts[host]
        os.kill(on.qemu(guest) if program == "qemu" else on.daemon(), signal.SIGKILL)

    def stop(self, host: str, guest: str = "") -> None:
        """Freeze a host's libvirtd, or the qemu of a guest."""
        on = self.lab.hosts[host]
        os.kill(on.qemu(guest) if guest else on.daemon(), signal.SIGSTOP)

    def go_on(self, host: str) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.lab.hosts[host].daemon(), signal.SIGCONT)

    def start_daemon(self, host: str) -> None:
        self.lab.hosts[host].start_daemon()

    def link(self, host: str, state: str) -> None:
        self.lab.hosts[host].link(state)

    def relay(self, host: str, does: str) -> None:
        """A host's relay `dies` or `starts`."""
        on = self.lab.hosts[host]
        (on.kill_relay if does == "dies" else on.start_relay)()

    def reboot(self, host: str) -> None:
        self.lab.hosts[host].reboot()

    def boot_ids(self, host: str, number: str) -> None:
        """A host has had so many boot ids so far."""
        self._boot_ids.setdefault(host, set()).add(self.lab.hosts[host].boot_id)
        assert len(self._boot_ids[host]) == int(number)

    def reboots(self, host: str, number: str) -> None:
        """A host was rebooted so often in all."""
        assert self.lab.hosts[host].reboots == int(number)


def _commands(words: str) -> list[list[str]]:
    """Return the commands of the page's one block that has some words in it."""
    lines = pages.block(PAGE, "console", words).splitlines()
    return [shlex.split(line)[2:] for line in lines if line.startswith("$ forewarn ")]

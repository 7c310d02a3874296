"""Agents in stories, each a process of its own."""

import contextlib
import itertools
import json
import re
import resource
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import forked
import patience
import stories
import web
from end_to_end.agents import COMMAND_LINE, TWO, Agent, Endpoint, event, started
from end_to_end.running import Running
from house.tree import ROOT
from patience import until
from server.exchange import fact

METRICS = (ROOT / "docs" / "reference" / "agent-metrics.md").read_text(encoding="utf-8")
ROOM_BYTES = 512
"""Room for what the actions write, and for no page of the journal."""

EARLY = """
import os, signal, sys
from forewarn import status_port
from forewarn.agent import __main__, daemon

class Asked(status_port.StatusServer):
    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        os.kill(os.getpid(), signal.SIGHUP)  # as by whoever has read /status just now

daemon.StatusServer = Asked
sys.exit(__main__.main(sys.argv[1:]))
"""
NO_CHILDREN = """
import signal
from forewarn.cli import main
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
main.run()
"""
BY = {
    "": (),
    "command-line": ("-c", NO_CHILDREN, *COMMAND_LINE[2:]),
    "early-signal": ("-c", EARLY),
}
"""What runs the agent: the second as by a parent that ignores the ends of its children, the last
is told to reload in the moment in which its port opens."""

FLEET = """
[[availability_set]]
name = "web"
machines = [{ name = "web-0", host = "h1" }, { name = "web-1", host = "h1" }]
"""


class Agents:
    """A story so far: an endpoint or the service, agents, and the one that lines are about."""

    agent_: Agent

    def __init__(self, folder: Path, opened: contextlib.ExitStack) -> None:
        self.folder, self.opened = folder, opened
        self.known = {"two": TWO}
        self.agents: dict[str, Agent] = {}
        self.metrics: set[str] = set()
        self.looked = 0.0
        self.hanging = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.cloud = opened.enter_context(Endpoint())
        self.url = self.cloud.url

    def carry_out(self, row: str) -> None:
        verb, words, options = stories.split(row)
        if verb:
            getattr(self, verb.replace("-", "_"))(*words, **options)

    # The endpoint, or the service.

    def endpoint(self, how: str) -> None:
        """Have it away, come, or answer with a status from now on."""
        if how == "away":
            self.cloud.__exit__()
        elif how == "comes":
            port = int(self.url.rpartition(":")[2])
            self.cloud = self.opened.enter_context(Endpoint(port))
        else:
            self.cloud.status = int(how)

    def approvals(self, status: str) -> None:
        """Answer them so from now on."""
        self.cloud.approval_status = int(status)

    def event(self, event_id: str, notice: str = "900", resources: str = "web-0") -> None:
        named = stories.listed(resources)
        self.cloud.show(event(event_id, notice=int(notice), Resources=named))

    def both(self, first: str, second: str, *of: str) -> None:
        """Show two events, of these machines."""
        named = [stories.listed(machines) for machines in of]
        self.cloud.show(event(first, Resources=named[0]), event(second, Resources=named[1]))

    def started(self, event_id: str) -> None:
        self.cloud.show(started(event_id))

    def over(self) -> None:
        self.cloud.show()

    def approved(self, *event_ids: str) -> None:
        assert self.cloud.approved == list(event_ids)

    def asked_again(self, times: str) -> None:
        asked = self.cloud.asked
        self.agent_.until(lambda: self.cloud.asked >= asked + int(times))

    def hanging_peer_is_asked(self, times: str) -> None:
        self.hanging.settimeout(patience.SECONDS)
        for _ in range(int(times)):
            self.opened.enter_context(self.hanging.accept()[0])

    def service(self) -> None:
        running = Running(self.folder, connector="reboot_seconds = 3")
        self.running = self.opened.enter_context(running)
        self.running.apply(FLEET)
        self.url = f"http://127.0.0.1:{self.running.guest_port}"

    def fleet(self, name: str) -> None:
        self.running.apply(f'[[machine]]\nname = "{name}"\n')

    def schedule(self, event_type: str, *machines: str, **host: str) -> None:
        """Ask for maintenance of machines, or of those at a host."""
        whom: dict[str, Any] = {"hosts": [*host.values()]} if host else {"machines": machines}
        body = {"event_type": event_type, **whom}
        answer = self.running.operator.ask("POST", "/v1/maintenances", body)
        assert answer.status == 201, answer.body

    def agents_say(self, status: str) -> None:
        def words() -> set[str]:
            events = self.running.operator.get("/v1/events")["events"]
            return {word["status"] for event in events for word in event["agents"]}

        until(lambda: words() == {status}, words)

    def operation(self, **facts: str) -> None:
        def told() -> dict[str, str]:
            found = self.running.operation()
            found["awaited"] = ",".join(sorted(found["awaited"]))
            return {name: found[name] for name in facts}

        until(lambda: told() == facts, told)

    # Agents.

    def rules(self, name: str, text: str) -> None:
        fixed = text.replace("FIXED", str(self.folder / "fixed"))
        self.known[name] = fixed.replace(" ; ", "\n")

    def agent(
        self, name: str, rules: str = "", peers: str = "", machine: str = "", port_of: str = ""
    ) -> None:
        """Go on with an agent, which is made where there is none, of the machine of its name."""
        is_new = name not in self.agents
        if is_new:
            listen = ("127.0.0.1", self.agents[port_of].port) if port_of else None
            made = Agent(self.folder / name, self.url, "", machine=machine or name, listen=listen)
            self.agents[name] = made
            self.opened.callback(made.kill)
        self.agent_ = self.agents[name]
        if is_new or peers:
            ports = {each: made.port for each, made in self.agents.items()}
            ports["hanging"] = self.hanging.getsockname()[1]
            urls = [f"http://127.0.0.1:{ports[peer]}" for peer in stories.listed(peers)]
            self.agent_.write(f"peers = {urls}\n{self.known[rules or 'two']}")

    def write(self, rules: str) -> None:
        self.agent_.write(self.known.get(rules, rules.replace(" ; ", "\n")))

    def lose_drop_ins(self) -> None:
        (self.agent_.folder / "agent.d").rename(self.agent_.folder / "away")

    def start(self, *options: str, by: str = "", piped: str = "") -> None:
        self.agent_.start(*options, by=BY[by], piped=bool(piped))

    @property
    def process(self) -> forked.Process:
        assert self.agent_.process is not None
        return self.agent_.process

    def signal(self, name: str) -> None:
        self.process.send_signal(signal.Signals[f"SIG{name}"])

    def ended(self, status: str) -> None:
        assert self.agent_.ended() == int(status)

    def disk(self, state: str) -> None:
        """Limit the size of the files that the agent writes, with EFBIG for ENOSPC."""
        size = ROOM_BYTES if state == "full" else resource.RLIM_INFINITY
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def systemd(self) -> None:
        """Have systemd listen to what the agent tells it."""
        self.heard = self.opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        self.heard.bind(str(self.folder / "notify"))
        self.heard.settimeout(patience.SECONDS)
        self.agent_.environment = {
            "NOTIFY_SOCKET": str(self.folder / "notify"),
            "WATCHDOG_USEC": "20000000",
        }

    def systemd_hears(self, word: str) -> None:
        while not self.heard.recv(1000).startswith(word.encode()):
            pass

    def hold(self) -> None:
        """Have actions wait for `go-on`."""
        (self.agent_.folder / "hold").touch()

    def go_on(self) -> None:
        (self.agent_.folder / "hold").unlink()

    def fix(self) -> None:
        (self.folder / "fixed").symlink_to("/bin/true")

    # What is seen of the agent.

    def done(self, *actions: str) -> None:
        lines = [f"{each.rstrip('+')} begins" for each in actions]
        ends = [f"{each} ends" for each in actions if not each.endswith("+")]
        both = [line for pair in itertools.zip_longest(lines, ends) for line in pair if line]
        self.agent_.expect(*both)

    def phase(self, event_id: str, expected: str) -> None:
        self.agent_.until(lambda: self.agent_.phase(event_id) == expected)

    def shows(self, status: str) -> None:
        self.agent_.until(lambda: self.agent_.shows(status))

    def page(self, path: str, status: str, words: str = "") -> None:
        def told() -> bool:
            found, text = self.agent_.page(path)
            return found == int(status) and words in text

        self.agent_.until(told)

    def says(self, words: str) -> None:
        self.agent_.until(lambda: words in self.agent_.log.read_text())

    def tells(self, line: str, words: str) -> None:
        """Look for words in a line of `forewarn agent status`."""
        settings = str(self.agent_.settings)
        asked = forked.run(("-m", "forewarn", "agent", "status", "--config", settings))
        at = int(line) - 1 if int(line) > 0 else int(line)
        assert words in asked.stdout.splitlines()[at], asked.stdout

    def status(self, place: str, expected: str, source: str = "") -> None:
        """Wait for a fact of its status, or for words in it (`~`), as an address is told it."""

        def told() -> bool:
            tree = self.agent_.status()
            if tree and source:
                tree = json.loads(web.ask(self.agent_.port, "/status", source=source).body)
            found = str(fact(tree, place.split("."))) if tree else "nothing"
            return expected[1:] in found if expected[:1] == "~" else found == expected

        self.agent_.until(told)

    def metric(self, name: str, expected: str) -> None:
        """Wait until Prometheus reads this number, one between two, or none (`-`)."""

        def told() -> bool:
            number = self.scraped().get(f"forewarn_agent_{name}")
            match expected:
                case "now":
                    self.looked = number or 0.0
                    return 0 <= time.time() - self.looked < patience.SECONDS
                case "same":  # the page does not read its two clocks at one instant
                    return number == pytest.approx(self.looked, abs=0.5)
                case "later":
                    return (number or 0.0) > self.looked
                case "-":
                    return number is None
            least, _, most = expected.partition("..")
            upper = float(most or "inf") if ".." in expected else float(least)
            return number is not None and float(least) <= number <= upper

        self.agent_.until(told)

    def scraped(self) -> dict[str, float]:
        found = {}
        for family in text_string_to_metric_families(self.agent_.page("/metrics")[1]):
            for sample in family.samples:
                labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
                found[sample.name + (f"{{{labels}}}" if labels else "")] = sample.value
                self.metrics.add(sample.name)
        return found

    def metrics_are_those_of_the_page(self) -> None:
        assert self.metrics == set(re.findall(r"(?m)^### `(\w+)`$", METRICS))


@pytest.mark.parametrize("rows", stories.stories_beside(__file__, "agents.txt"))
def test_the_story_of_agents_holds(folder: Path, rows: stories.Rows) -> None:
    with contextlib.ExitStack() as opened:
        assert stories.play("agents.txt", rows, Agents(folder, opened).carry_out)

"""A service on the host and a machine of its fleet, whose agent runs under the packaged unit."""

import contextlib
import json
from pathlib import Path
from typing import Any

from end_to_end.agents import until
from end_to_end.running import Running, lasting
from house.tree import ROOT
from machines.machine import NAME, PATIENCE_SECONDS, Machine

UNITS = ROOT / "packaging"
LOG = "/var/log/actions.log"
WEB = """[Service]
ExecStart=/bin/sleep infinity
"""
STATUS = "busybox wget -qO- http://127.0.0.1:8171"


def command(name: str, **terms: str | bool) -> str:
    """Return an action in TOML that leaves lines."""
    given = {
        "run": ["/usr/local/bin/action", name],
        "undo": ["/usr/local/bin/action", f"un-{name}"],
    }
    told = ", ".join(f"{term} = {json.dumps(value)}" for term, value in {**given, **terms}.items())
    return f"{{ command = {{ {told} }} }}"


class Site:
    """The service and one machine; maintenance lasts until it is to end, and does nothing to it.

    Args:
        folder: Its own; the path is short.
        rules: The agent's settings.
    """

    def __init__(self, folder: Path, rules: str) -> None:
        unit = "forewarn-agent.service"
        files = {
            "/etc/forewarn/agent.toml": rules,
            f"/etc/systemd/system/{unit}": (UNITS / unit).read_text(),
            "/etc/systemd/system/web.service": WEB,
            LOG: "",
        }
        self._act = folder / "act"
        with contextlib.ExitStack() as opened:
            self.service = opened.enter_context(Running(folder, connector=lasting(folder)))
            fleet = {"machine": [{"name": NAME, "host": "h1", "address": "127.0.0.1"}]}
            assert self.service.operator.ask("PUT", "/v1/fleet", fleet).status == 200
            self.machine = Machine(folder, self.service.guest_port, files)
            opened.callback(self.machine.close)
            opened.callback(self.let_end)
            self._opened = opened.pop_all()

    def close(self) -> None:
        self._opened.close()

    def announce(self, event_type: str) -> None:
        """Announce maintenance of the machine."""
        self._act.touch()
        asked = {"event_type": event_type, "hosts": ["h1"]}
        assert self.service.operator.ask("POST", "/v1/maintenances", asked).status < 300

    def let_end(self) -> None:
        """Let what carries the operation out end."""
        self._act.unlink(missing_ok=True)

    def operation(self) -> dict[str, Any]:
        return self.service.operation()

    def status_is(self, status: str) -> None:
        """Wait until the operation has a status."""
        until(
            lambda: self.operation()["status"] in {status, "Failed"},
            lambda: (self.operation(), self.machine.journal()[-5000:]),
            seconds=PATIENCE_SECONDS,
        )
        assert self.operation()["status"] == status, self.operation()

    def end(self) -> None:
        """Let maintenance end, and wait until the agent has heard of it."""
        self.let_end()
        self.status_is("Completed")
        self.at_rest()

    def at_rest(self) -> None:
        """Wait until the agent has nothing in hand and nothing stands."""
        nothing = """grep '"events":\\[\\]' | grep -q '"standing":\\[\\]'"""
        self.machine.until(f"{STATUS}/status | {nothing}")

    def done(self) -> list[str]:
        """Return what the actions have left."""
        return self.machine.run("cat", LOG).splitlines()

"""A service on the host and a machine of its fleet, whose agent runs under the packaged unit."""

import json
import sys
from pathlib import Path
from typing import Any

from end_to_end.agents import until
from end_to_end.running import Running
from house.tree import ROOT
from machines.machine import NAME, PATIENCE_SECONDS, Machine

UNITS = ROOT / "packaging"
LOG = "/var/log/actions.log"
ACTION = f"""#!/bin/sh
# Leaves a line for its begin and one for its end, each synced, with the boot that it ran in.
boot=$(cat /proc/sys/kernel/random/boot_id)
echo "$1 begins $boot" >>{LOG} && sync {LOG}
sleep 0.3
echo "$1 ends $boot" >>{LOG} && sync {LOG}
"""
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
    """The service, which carries out by `act`, and one machine.

    Args:
        folder: Its own; the path is short.
        rules: The agent's settings.
    """

    def __init__(self, folder: Path, rules: str) -> None:
        self.folder = folder
        self.service = Running(folder)
        paths = f"PYTHONPATH={ROOT / 'src'}:{ROOT / 'tests'}"
        program = ["/usr/bin/env", paths, sys.executable, "-m", "machines.act", str(folder)]
        self.service.settings.write_text(
            f'[store]\npath = "forewarn.db"\n'
            f'[[guest.listener]]\nport = {self.service.guest_port}\ndefault_vm = "{NAME}"\n'
            f'[connector]\nkind = "command"\n'
            f"[connector.command]\nprogram = {json.dumps(program)}\n"
        )
        self.service.start()
        fleet = {"machine": [{"name": NAME, "host": "h1"}]}
        assert self.service.operator.ask("PUT", "/v1/fleet", fleet).status == 200
        files = {
            "/etc/forewarn/agent.toml": rules,
            "/etc/systemd/system/forewarn-agent.service": (
                UNITS / "forewarn-agent.service"
            ).read_text(),
            "/etc/systemd/system/web.service": WEB,
            "/usr/local/bin/action": ACTION,
            LOG: "",
        }
        try:
            self.machine = Machine(folder, self.service.guest_port, files)
        except BaseException:
            self.service.stop()
            raise

    def announce(self, event_type: str, how: str) -> None:
        """Announce maintenance of the machine, and say how it will be carried out."""
        (self.folder / "how").write_text(how)
        (self.folder / "over").unlink(missing_ok=True)
        asked = {"event_type": event_type, "hosts": ["h1"]}
        assert self.service.operator.ask("POST", "/v1/maintenances", asked).status < 300

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
        """Let what carries the operation out end, and wait until the agent has heard of it."""
        (self.folder / "over").touch()
        self.status_is("Completed")
        self.at_rest()

    def at_rest(self) -> None:
        """Wait until the agent has nothing in hand and nothing stands."""
        nothing = """grep '"events":\\[\\]' | grep -q '"standing":\\[\\]'"""
        self.machine.until(f"{STATUS}/status | {nothing}")

    def done(self) -> list[str]:
        """Return what the actions have left."""
        return self.machine.run("cat", LOG).splitlines()

    def close(self) -> None:
        self.machine.close()
        self.service.stop()

"""Webhooks of a service that is a process: the guide's receiver, and the example for chats."""

import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import patience
from end_to_end.running import Running
from house.tree import ROOT
from ports import free_port
from server.receiver import receiving

GUIDE = ROOT / "docs" / "guides" / "webhooks.md"
FLEET = """
[[availability_set]]
name = "web"
machines = [{ name = "web-0", address = "10.0.0.1" }, { name = "web-1", address = "10.0.0.2" }]
"""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Running]:
    with Running(tmp_path) as made:
        made.apply(FLEET)
        yield made


def schedule_and_cancel(service: Running, machine: str) -> int:
    """Leave some news behind; return the number of the maintenance that it ends with."""
    body = {"event_type": "Reboot", "machines": [machine]}
    made = service.operator.ask("POST", "/v1/maintenances", body).json
    number: int = made["maintenance"]["number"]
    body = {"references": [str(number)]}
    assert service.operator.ask("POST", "/v1/cancellations", body).status == 200
    return number


def test_the_receiver_of_the_guide_verifies_what_it_gets(service: Running, tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    port = free_port()
    added = service.call("webhook", "add", "mine", f"http://127.0.0.1:{port}/")
    (tmp_path / "webhook.secret").write_text(added.stdout)
    command = [sys.executable, "-c", code, str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as receiver:
        try:
            patience.until(lambda: service.call("webhook", "test", "mine").returncode == 0)
            schedule_and_cancel(service, "web-0")
            assert receiver.stdout is not None
            told = [receiver.stdout.readline().split(maxsplit=1)[1].strip() for _ in range(5)]
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/", b"{}")
            assert refused.value.code == 401
            refused.value.close()
        finally:
            receiver.terminate()
    assert told == [
        "webhook mine webhook.test",
        "maintenance 1 maintenance.scheduled",
        "operation 1.1 operation.scheduled",
        "operation 1.1 operation.canceled",
        "maintenance 1 maintenance.finished",
    ]


CHAT = ROOT / "docs" / "examples" / "chat.py"


def test_the_example_for_chats_tells_people_what_happened(service: Running, tmp_path: Path) -> None:
    port = free_port()
    with receiving() as people:
        body = {"name": "chat", "url": f"http://127.0.0.1:{port}/"}
        made = service.operator.ask("POST", "/v1/webhooks", body)
        (tmp_path / "webhook.secret").write_text(made.json["secret"] + "\n")
        argv = [str(CHAT), str(port), str(tmp_path / "webhook.secret")]
        target = people.url("/people").replace("http:", "json:")
        with subprocess.Popen([sys.executable, *argv, target], stderr=subprocess.DEVNULL) as chat:
            schedule_and_cancel(service, "web-0")
            told = [one.json["message"] for one in people.awaited(4, "/people")]
            chat.kill()
    assert told[0].startswith("maintenance 1 scheduled: Reboot of web-0")
    assert told[1].startswith("operation 1.1 scheduled: Reboot of web-0, ")
    assert told[2].startswith("operation 1.1 canceled: Reboot of web-0, ")

"""News of a service that is a process: followers, what waits, webhooks, the example for chats."""

import re
import signal
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
from patience import until
from ports import answers, free_port
from programs import Printing
from server.receiver import receiving

FLEET = "\n".join(f'[[machine]]\nname = "m{n}"\naddress = "10.0.0.{n + 1}"' for n in range(9))


def begun(running: Running, folder: Path, *arguments: str) -> Printing:
    """Begin a command that goes on."""
    environment = {"FOREWARN_CONFIG": str(running.settings), "FOREWARN_OPERATOR": ""}
    return Printing(folder, *arguments, environment=environment)


def test_a_follower_misses_nothing_and_has_nothing_twice_while_the_service_is_killed(
    folder: Path, tmp_path: Path
) -> None:
    running = Running(folder)
    running.start()
    running.apply(FLEET)
    follower = begun(running, folder, "follow", "--json", "--since", "0")
    try:
        follower.line()
        for number in range(9):
            body = {"event_type": "Freeze", "machines": [f"m{number}"], "no_notice": True}
            assert running.operator.ask("POST", "/v1/maintenances", body).status == 201
            if number % 3 == 1:
                running.kill()
                running.start()
        finished = "maintenance.finished"
        until(lambda: [one["type"] for one in follower.lines()].count(finished) == 9)
        seen = follower.lines()
        again = begun(running, tmp_path, "follow", "--json", "--since", "0")
        until(lambda: again.lines()[-1:] == seen[-1:])
        assert again.lines() == seen
        again.kill()
        assert len({one["id"] for one in seen}) == len(seen)
    finally:
        follower.kill()
        running.stop()


def test_waiting_ends_with_the_maintenance_and_tells_how(folder: Path) -> None:
    with Running(folder) as running:
        running.apply(FLEET)

        def waiting(machine: str) -> Printing:
            made = begun(running, folder, "schedule", "freeze", machine, "--wait")
            until(lambda: "Scheduled" in made.tail())
            return made

        def tells_of_changes() -> bool:
            running.call("postpone", "1", "+20m")
            return first.tail().count("1.1  Scheduled") > 1

        first = waiting("m0")
        until(tells_of_changes)
        assert running.call("approve", "1").returncode == 0
        assert first.ended() == 0, first.errors()
        assert "1.1  Completed" in first.tail()
        detail = running.document("schedule", "freeze", "m1", "--already-failed", "--wait")
        assert [one["status"] for one in detail["operations"]] == ["Completed"]
        canceled = waiting("m3")
        assert running.call("cancel", "3").returncode == 0
        assert canceled.ended() == 11
        assert "3.1" in canceled.errors()
        interrupted = waiting("m4")
        assert interrupted.stop(signal.SIGINT) == 130
        assert "forewarn maintenance show 4" in interrupted.errors()
        assert running.operation()["status"] == "Scheduled"


# Webhooks: the guide's receiver, and the example for chats.

GUIDE = ROOT / "docs" / "guides" / "webhooks.md"
WEB = """
[[availability_set]]
name = "web"
machines = [{ name = "web-0", address = "10.0.0.1" }, { name = "web-1", address = "10.0.0.2" }]
"""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Running]:
    with Running(tmp_path) as made:
        made.apply(WEB)
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
            patience.until(lambda: answers(port))  # or the first news is sent again much later
            schedule_and_cancel(service, "web-0")
            told = [one.json["message"] for one in people.awaited(4, "/people")]
            chat.kill()
    assert told[0].startswith("maintenance 1 scheduled: Reboot of web-0")
    assert told[1].startswith("operation 1.1 scheduled: Reboot of web-0, starts when approved")
    assert told[2].startswith("operation 1.1 canceled: Reboot of web-0, ")

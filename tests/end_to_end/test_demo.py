"""The demo as a whole: what it shows, what it leaves, and what a guest that is stopped changes.

With IMAGES=docs/images in the environment, the picture of the docs is made.
"""

import io
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from rich.console import Console
from rich.text import Text

import patience
from end_to_end.playing import playing
from forewarn.cli import demo
from forewarn.cli.exits import ExitStatus
from forewarn.maintenance import fleet_file
from forewarn.vocabulary import EventStatus, EventType
from server.running import Client


def approvers(operation: dict[str, Any]) -> list[str]:
    return [event["approval"]["by"] for event in operation["events"] if event["approval"]]


@pytest.mark.soak
def test_the_whole_story_is_told_kept_and_left_without_a_trace(folder: Path) -> None:
    with playing(folder, "--keep", environment={**os.environ, "VIRTUAL_ENV": "/venv"}) as demo:
        text = demo.read_until(lambda text: "Ctrl-C stops it" in text)
        socket = re.search(r"FOREWARN_OPERATOR=(\S+)", text)
        assert socket is not None, text
        assert "  . /venv/bin/activate\n" in text
        check_history(Client(Path(socket[1])).get("/v1/history")["operations"])
        assert "cannot read its events" not in text
        lines = [line.strip() for line in text.splitlines() if line.startswith("  curl ")]
        assert len(lines) == 3
        for line in lines:
            answered = subprocess.run(line, shell=True, capture_output=True, check=True)
            assert json.loads(answered.stdout), line
        asked = [sys.executable, "-m", "forewarn", "page"]
        bastion = re.search(r"FOREWARN_ENDPOINT=(\S+) .* watch --mine", text)
        assert bastion is not None, text
        name = f"{bastion[1]}/metadata/instance/compute/name?api-version=2021-02-01&format=text"
        asked_for = urllib.request.Request(name, headers={"Metadata": "true"})
        environment = {**os.environ, "FOREWARN_OPERATOR": socket[1]}
        printed = subprocess.run(asked, env=environment, capture_output=True, check=True)
        for there, words in (
            (asked_for, b"bastion"),
            (printed.stdout.decode().strip(), b'action="/login"'),
        ):
            with urllib.request.urlopen(there, timeout=patience.SECONDS) as answer:
                assert words in answer.read()
        demo.interrupt(signal.SIGINT)
        assert demo.status == 0, demo.text
        assert demo.leftovers() == []


def check_history(operations: list[dict[str, Any]]) -> None:
    by_type: dict[str, list[dict[str, Any]]] = {}
    for operation in reversed(operations):
        by_type.setdefault(operation["event_type"], []).append(operation)
    reboots = by_type["Reboot"]
    domains = [["web-0", "web-3"], ["web-1", "web-4"], ["web-2", "web-5"]]
    assert [o["events"][0]["machines"] for o in reboots] == domains
    assert [approvers(o) for o in reboots] == [["web-0"], ["web-1"], []]
    assert [o["start_cause"] for o in reboots] == ["approved", "approved", "notice-over"]
    assert {o["maintenance"] for o in reboots} == {reboots[0]["maintenance"]}
    (freeze,) = by_type["Freeze"]
    assert freeze["hosts"] == ["h1"]
    assert sorted(approvers(freeze)) == ["FrontEnd_IN_0", "batch_0", "web-0"]
    assert {event["scope"] for event in freeze["events"]} == {"web", "batch", "shop"}
    (preempted,) = by_type["Preempt"]
    assert preempted["status"] == "Completed"
    assert approvers(preempted) == ["batch_1"]
    (redeploy,) = by_type["Redeploy"]
    assert redeploy["status"] == "Canceled"
    assert redeploy["started_at"] is None


def drawn(raw: str) -> str:
    """Return the fullest moment of a terminal as a picture."""
    moments = re.split(r"(?:\r?\x1b\[\d*[AK]|\r(?!\n))+", raw.partition("What happened")[0])
    fullest = max(moments, key=lambda text: (len(re.findall("Scheduled|Started", text)), len(text)))
    console = Console(file=io.StringIO(), record=True, width=124, force_terminal=True)
    console.print(Text.from_ansi(fullest.replace("\r", "").strip("\n")))
    return console.export_svg(title="forewarn demo")


@pytest.mark.soak
def test_on_a_terminal_a_guest_that_is_stopped_by_hand_lets_its_event_wait(
    folder: Path,
) -> None:
    with playing(folder, terminal=True) as demo:
        # Before its own turn: whoever kills it when it drains may be too late on a busy machine.
        demo.read_until(lambda text: re.search(r"\n1\.1 +Reboot|web-0 \(\d+\): ", text))
        (guest,) = demo.children(b"/vm/web-1/")
        os.kill(guest, signal.SIGTERM)
        text = demo.read_to_the_end()
        assert demo.status == 0, text
        assert re.search(r"web-1 \(\d+\): was stopped", text)
        assert re.search(r"REF +TYPE +STATUS", text)
        end = text[text.rindex("What happened") :]
        waited = r"1\.2 +Reboot .* web-1, web-4 .* 15m(?: \d+s)? +notice over +Completed"
        assert re.search(waited, end)
        assert re.search(r"1\.1 +Reboot .* web-0, web-3 .* web-0 approved +Completed", end)
        assert demo.leftovers() == []
        picture = drawn(demo.raw)
        assert ("REF" in picture, "Started" in picture, "drains" in picture) == (True, True, True)
        if images := os.environ.get("IMAGES"):
            Path(images, "demo.svg").write_text(picture, encoding="utf-8")


def test_a_demo_that_is_ended_leaves_nothing_behind_though_its_folder_has_a_long_path(
    folder: Path,
) -> None:
    """Ctrl-C ends the whole story above."""
    place = folder / ("deep" * 30)
    place.mkdir()
    with playing(place) as demo:
        demo.read_until(lambda text: "Scheduled" in text)
        assert "Scheduled" in demo.text, demo.text
        assert demo.leftovers() != []
        demo.interrupt(signal.SIGTERM)
        assert demo.status == ExitStatus.TERMINATED, demo.text
        assert demo.leftovers() == []


def test_a_demo_whose_service_dies_says_so_whatever_settings_the_user_has(folder: Path) -> None:
    own = {"FOREWARN_CONFIG": "/nonexistent", "FOREWARN_SET_STORE__PATH": str(folder / "own.db")}
    with playing(folder, environment={**os.environ, **own}) as demo:
        demo.read_until(lambda text: "Scheduled" in text)
        (service,) = demo.children(b"\0serve\0")
        os.kill(service, signal.SIGKILL)
        text = demo.read_to_the_end()
        assert demo.status == ExitStatus.DEMO_FAILED, text
        assert "the demo went wrong: the service ended with status -9" in text
        assert not (folder / "own.db").exists()
        assert demo.leftovers() == []


def operation(status: EventStatus, event_type: EventType = EventType.REBOOT) -> Any:
    """What the demo looks at of an operation that is over."""
    return SimpleNamespace(id="1.1", event_type=event_type, status=status)


def test_an_end_that_the_story_does_not_have_is_found() -> None:
    completed = operation(EventStatus.COMPLETED)
    canceled = operation(EventStatus.CANCELED, EventType.REDEPLOY)
    assert not demo.wrong_end([completed, canceled])
    assert demo.wrong_end([completed, operation(EventStatus.CANCELED)])
    assert demo.wrong_end([operation(EventStatus.FAILED)])


def test_every_machine_of_the_fleet_has_a_guest() -> None:
    wanted = fleet_file.flatten(msgspec.convert(tomllib.loads(demo.FLEET), fleet_file.Fleet))
    named = [member.name for group in wanted for member in group.members]
    assert sorted(named) == sorted(guest.machine for guest in demo.GUESTS)

"""The guide `emulator.md`: each way leads a handler with 169.254.169.254 in it to the emulator."""

import json
import os
import shutil
import subprocess
import sys
from datetime import timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path

import pytest

import patience
from end_to_end import installed
from end_to_end.test_emulator import get, order, running
from recipes import pages

PAGE = "emulator"
LINE = "--port 8170\n"
"""The end of the line that starts the endpoint by itself."""
ENDPOINT = f"""ip link set lo up
{pages.block(PAGE, "sh", LINE).strip()} >/dev/null &
trap 'kill $!' EXIT
"""
HANDLER = """#!/bin/sh
until curl -s -H Metadata:true {url} | grep {words}; do sleep 0.2; done
"""
URL = "'http://169.254.169.254/metadata/scheduledevents?api-version=2020-07-01'"
TOOLS = ("unshare", "ip", "nft", "curl")
needs_a_network = pytest.mark.skipif(
    not all(map(shutil.which, TOOLS)) or not installed.namespaces(),
    reason=f"a network of its own is made with {', '.join(TOOLS)}",
)


def ran(script: str, folder: Path, words: str = "Events") -> list[str]:
    """Run a script in a network of its own, with a handler that waits for a document with words.

    Returns: The lines that were printed, the document last.
    """
    (folder / "fleet.toml").write_text(pages.block(PAGE, "toml"))
    handler = folder / "handler"
    handler.write_text(HANDLER.format(url=URL, words=words))
    handler.chmod(0o755)
    argv = ["unshare", "--map-root-user", "--net", "sh", "-e", "-c", script]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        argv,
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=patience.SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_an_event_starts_at_the_endpoint_when_its_reader_lets_time_pass(tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text(pages.block(PAGE, "toml"))
    line = pages.block(PAGE, "sh", LINE)
    places = {"forewarn emulator": "", "fleet.toml": f"{tmp_path}/fleet.toml"}
    places |= {"--port 8170": "--port 0"}
    with running(*pages.placed(line, places).split()) as at:
        machine = {"event_type": "Reboot", "machines": ["web-0"]}
        assert order(at["operators"], "maintenances", **machine).status_code == 201
        answer = get(at["guests"])
        (event,) = answer.json()["Events"]
        shown = parsedate_to_datetime(answer.headers["Date"])
        assert parsedate_to_datetime(event["NotBefore"]) - shown == timedelta(minutes=15)
        assert order(at["operators"], "clock/advance", seconds=900).status_code == 200
        (event,) = get(at["guests"]).json()["Events"]
        assert event["EventStatus"] == "Started"


@needs_a_network
def test_a_variable_sends_a_handler_to_the_endpoint(tmp_path: Path) -> None:
    (document,) = ran(ENDPOINT + pages.block(PAGE, "sh", "http_proxy"), tmp_path)
    assert json.loads(document)["Events"] == []


@needs_a_network
def test_a_handler_finds_the_endpoint_in_a_network_of_its_own(tmp_path: Path) -> None:
    *_, document = ran(pages.block(PAGE, "sh", "unshare"), tmp_path, words="Reboot")
    assert [each["Resources"] for each in json.loads(document)["Events"]] == [["web-0"]]


@needs_a_network
def test_a_rule_leads_the_whole_machine_to_the_endpoint_until_it_is_undone(tmp_path: Path) -> None:
    rule, undo = (pages.block(PAGE, "sh", words) for words in ("sudo ip address add", "delete"))
    gone = "nft list tables; ip -o address show to 169.254.169.254\n"
    script = 'sudo() { "$@"; }\n' + ENDPOINT + rule + "./handler\n" + undo + gone
    (document,) = ran(script, tmp_path)
    assert json.loads(document)["Events"] == []

"""Clients as the field writes them, in its languages, run against the service as they are.

Those of curl, Python and Node are the docs' examples, which test_emulator and certify run.
"""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import forked
import patience
from end_to_end.running import Running

HERE: Final = Path(__file__).parent / "field_clients"
JSON_DLL: Final = "/usr/lib/cli/Newtonsoft.Json-5.0/Newtonsoft.Json.dll"
BY_HAND: Final = """
set -eu
id=$({read} "$1" | sed 's/.*"EventId":"\\([^"]*\\)".*/\\1/')
test -z "$({approve} "{{\\"StartRequests\\": [{{\\"EventId\\": \\"$id\\"}}]}}" "$1")"
"""
"""A shell's client: what reads the document, and what sends an approval."""


def by_hand(read: str, approve: str) -> list[str]:
    return ["sh", "-c", BY_HAND.format(read=read, approve=approve), "sh"]


CURL: Final = "curl -sS --fail -H Metadata:true"
WGET: Final = "wget -q -O - --header Metadata:true"
MONO: Final = (
    f'mcs -r:{JSON_DLL} "-out:$0/client.exe" "{HERE}/Client.cs" && mono "$0/client.exe" "$1"'
)
JAVA: Final = ("java", "-XX:TieredStopAtLevel=1")
"""To compile it well takes longer than it runs."""
CLIENTS: Final[dict[str, tuple[list[str], list[str]]]] = {
    "curl-1.0": (["curl"], by_hand(f"{CURL} -0", f"{CURL} -0 --data-binary")),
    "wget": (["wget"], by_hand(WGET, f"{WGET} --post-data")),
    "busybox": (["busybox"], by_hand(f"busybox {WGET}", f"busybox {WGET} --post-data")),
    "java": (["java", "javac"], [*JAVA, f"{HERE}/Client.java"]),
    "perl": (["perl", "/usr/share/perl/*/HTTP/Tiny.pm"], ["perl", f"{HERE}/client.pl"]),
    "dotnet": (["mcs", "mono", JSON_DLL], ["sh", "-c", MONO]),
}
"""What each client needs, and how it is run; the URL comes behind."""


def missing(needs: list[str]) -> list[str]:
    """Return the programs and files that are not there."""
    return [
        each
        for each in needs
        if not shutil.which(each) and not any(Path("/").glob(each.lstrip("/")))
    ]


RUNNABLE: Final = [
    pytest.param(name, marks=pytest.mark.skipif(bool(lacks), reason=f"needs {lacks}"))
    for name, (needs, _) in CLIENTS.items()
    for lacks in [missing(needs)]
]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("service")
    with Running(folder, connector="reboot_seconds = 3600") as running:
        running.apply("".join(f'[[machine]]\nname = "{name}"\n' for name in CLIENTS))
        yield running


@pytest.mark.parametrize("name", RUNNABLE)
def test_a_client_of_the_field_reads_and_approves(
    service: Running, tmp_path: Path, name: str
) -> None:
    maintenance = {"event_type": "Reboot", "machines": [name]}
    planned = service.operator.ask("POST", "/v1/maintenances", maintenance)
    number = json.loads(planned.body)["maintenance"]["number"]
    url = f"http://127.0.0.1:{service.guest_port}/vm/{name}/metadata/scheduledevents"
    direct = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    command = [*CLIENTS[name][1], *([str(tmp_path)] if name == "dotnet" else [])]
    done = forked.completed(
        [*command, f"{url}?api-version=2020-07-01"],
        env={**direct, "MONO_PATH": str(Path(JSON_DLL).parent)},
        timeout=patience.SECONDS,
    )
    assert done.returncode == 0, done.stderr
    (operation,) = service.operator.get(f"/v1/maintenances/{number}")["operations"]
    assert operation["start_cause"] == "approved"
    assert operation["events"][0]["approval"]["by"] == name

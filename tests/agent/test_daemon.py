"""The process's shell, as far as it can be told without one."""

import http.client
from pathlib import Path

from agent.bench import event
from forewarn.agent.daemon import Daemon
from forewarn.agent.journal import Journal
from forewarn.agent.records import Begun, Booted, Taken
from forewarn.agent.rules import Rule
from forewarn.agent.settings import Client, Settings, Status
from forewarn.agent.steps import Ready, Step

RULE = Rule(name="pool", prepare=(Step(ready=Ready()),), approve="when-prepared")


def answers(folder: Path) -> dict[str, int]:
    """Return what the status port answers, by page, before the agent has begun to run."""
    client = Client(endpoint="http://127.0.0.1:1", machine="web-0")
    settings = Settings(client=client, status=Status(listen="127.0.0.1:0"))
    journal = Journal(folder)
    daemon = Daemon(settings, journal, tuple)
    assert daemon._port is not None
    assert daemon.port is not None
    found = {}
    try:
        for path in ("/healthz", "/readyz", "/status", "/metrics", "/nothing"):
            connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=10)
            connection.request("GET", path)
            found[path] = connection.getresponse().status
            connection.close()
    finally:
        daemon._port.close()
        journal.close()
    return found


def test_a_probe_finds_its_pages_from_the_first_moment_on(tmp_path: Path) -> None:
    assert answers(tmp_path) == {
        "/healthz": 200,
        "/readyz": 200,
        "/status": 200,
        "/metrics": 200,
        "/nothing": 404,
    }


def test_an_agent_that_comes_back_in_the_middle_is_never_ready_for_a_moment(
    tmp_path: Path,
) -> None:
    journal = Journal(tmp_path)
    for record in (
        Booted(boot="b"),
        Taken(event=event(), rule=RULE),
        Begun(effect="ready", undo=False, event_id="E1", step=0, attempt=1),
    ):
        journal.append(record)
    journal.close()
    assert answers(tmp_path)["/readyz"] == 503

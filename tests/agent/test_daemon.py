"""The process's shell, as far as it can be told without one."""

import http.client
import signal
from pathlib import Path

from agent.bench import command, event, rule
from end_to_end.agents import until
from forewarn import clock
from forewarn.agent.daemon import Daemon
from forewarn.agent.journal import Journal
from forewarn.agent.messages import Looked
from forewarn.agent.records import Begun, Booted, Taken
from forewarn.agent.rules import Rule
from forewarn.agent.settings import OFF, Client, Settings, Status
from forewarn.agent.steps import Ready, Step

CLIENT = Client(endpoint="http://127.0.0.1:1", machine="web-0")
RULE = Rule(name="pool", prepare=(Step(ready=Ready()),), approve="when-prepared")


def answers(folder: Path) -> dict[str, int]:
    """Return what the status port answers, by page, before the agent has begun to run."""
    settings = Settings(client=CLIENT, status=Status(listen="127.0.0.1:0"))
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


def test_a_signal_to_end_comes_before_what_was_told_before_it(tmp_path: Path) -> None:
    """An action's end that waits already, and would begin the next, is only written down."""
    journal = Journal(tmp_path)
    settings = Settings(
        client=CLIENT, status=Status(listen=OFF), rule=(rule(command("true"), command("false")),)
    )
    daemon = Daemon(settings, journal, tuple)
    seen = event(starts_by=clock.monotonic() + 900)
    daemon._handle(Looked((seen,), "web-0"))
    until(lambda: not daemon._causes.empty())  # the first action has ended
    daemon.signal(signal.SIGTERM)
    while not daemon._over():
        daemon._turn()
    journal.close()
    again = Journal(tmp_path)
    begun = [record.step for record in again.records if isinstance(record, Begun)]
    again.close()
    assert begun == [0]

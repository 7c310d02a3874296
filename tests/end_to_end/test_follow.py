"""`forewarn follow` and `--wait` as processes, beside a service that is killed under them."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import forked
import patience
from end_to_end.running import Running
from forewarn.cli.follow import EventParser
from forewarn.cli.operator_client import OperatorClient
from patience import until

FLEET = "\n".join(f'[[machine]]\nname = "m{n}"\naddress = "10.0.0.{n + 1}"' for n in range(9))


def begun(running: Running, folder: Path, *arguments: str) -> forked.Forked:
    """Start a command whose output goes to a file of its first word."""
    environment = {**os.environ, "FOREWARN_CONFIG": str(running.settings)}
    environment.pop("FOREWARN_OPERATOR", None)
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        return forked.Forked(
            ["-m", "forewarn", *arguments], stdout=out, stderr=err, env=environment
        )


def printed(folder: Path) -> list[dict[str, Any]]:
    whole, _, _ = (folder / "out").read_text().rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]


def everything(running: Running, last: str) -> list[dict[str, Any]]:
    """Return all news up to this item, as the service has it."""
    found: list[dict[str, Any]] = []
    parser = EventParser()
    client = OperatorClient(address=str(running.socket))
    for piece in client.stream("/v1/stream", patience.SECONDS, "0"):
        found += [json.loads(event.data) for event in parser.feed(piece)]
        if found and found[-1]["id"] == last:
            return found
    raise AssertionError


def test_a_follower_misses_nothing_and_has_nothing_twice_while_the_service_is_killed(
    folder: Path,
) -> None:
    running = Running(folder)
    running.start()
    running.apply(FLEET)
    follower = begun(running, folder, "follow", "--json", "--since", "0")
    try:
        until(lambda: bool(printed(folder)))
        for number in range(9):
            body = {"event_type": "Freeze", "machines": [f"m{number}"], "no_notice": True}
            assert running.operator.ask("POST", "/v1/maintenances", body).status == 201
            if number % 3 == 1:
                running.kill()
                running.start()
        finished = "maintenance.finished"
        until(lambda: [one["type"] for one in printed(folder)].count(finished) == 9)
        seen = printed(folder)
        assert seen == everything(running, seen[-1]["id"])
        assert len({one["id"] for one in seen}) == len(seen)
    finally:
        follower.kill()
        follower.wait()
        running.stop()


def test_waiting_ends_with_the_maintenance_and_tells_how(folder: Path) -> None:
    out, err = folder / "out", folder / "err"
    with Running(folder) as running:
        running.apply(FLEET)

        def waiting(machine: str) -> forked.Forked:
            process = begun(running, folder, "schedule", "freeze", machine, "--wait")
            until(lambda: "Scheduled" in out.read_text())
            return process

        def tells_of_changes() -> bool:
            running.call("postpone", "1", "+20m")
            return out.read_text().count("1.1  Scheduled") > 1

        first = waiting("m0")
        until(tells_of_changes)
        assert running.call("approve", "1").returncode == 0
        assert first.wait(patience.SECONDS) == 0, err.read_text()
        assert "1.1  Completed" in out.read_text()
        detail = running.document("schedule", "freeze", "m1", "--already-failed", "--wait")
        assert [one["status"] for one in detail["operations"]] == ["Completed"]
        canceled = waiting("m3")
        assert running.call("cancel", "3").returncode == 0
        assert canceled.wait(patience.SECONDS) == 11
        assert "3.1" in err.read_text()
        interrupted = waiting("m4")
        interrupted.send_signal(signal.SIGINT)
        assert interrupted.wait(patience.SECONDS) == 130
        assert "forewarn maintenance show 4" in err.read_text()
        assert running.operation()["status"] == "Scheduled"

"""The programs that are kept open for surveys: they answer, hang, die and talk nonsense."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import pytest

import patience
from builders import NOW
from connectors import hypervisor
from forewarn.clock import ManualClock
from forewarn.connectors.libvirt.surveys import ANSWER_SECONDS, LibvirtSurveys
from forewarn.connectors.port import Unanswered

PYTHON = """#!{python}
# A Python that runs no program, but does what the host's URI says.
import json, os, subprocess, sys
for line in sys.stdin:
    what = sys.argv[4].removeprefix("x:///")
    if what == "answers":
        domain = {{"uuid": str(os.getpid()), "name": line.strip(), "state": "running"}}
        print(json.dumps({{"domains": [domain]}}), flush=True)
    elif what == "is-away":
        print(json.dumps({{"error": f"no route ({{os.getpid()}})"}}), flush=True)
    elif what == "hangs":
        with open({folder!r} + "/pids", "w") as pids:
            pids.write(f"{{os.getpid()}} {{subprocess.Popen(['sleep', '600']).pid}}")
            pids.flush()
        while True:
            sys.stdin.readline()
    elif what == "says-nonsense":
        print('{{"domains": [1]}}', flush=True)
    else:
        sys.exit(int(what))
"""


@pytest.fixture
def surveys(tmp_path: Path) -> LibvirtSurveys:
    python = tmp_path / "python"
    python.write_text(PYTHON.format(python=sys.executable, folder=str(tmp_path)))
    python.chmod(0o755)
    names = ("answers", "is-away", "hangs", "says-nonsense", "3", "12")
    uris = {name: f"x:///{name}" for name in names}
    return LibvirtSurveys(uris, str(python), os.environ, ManualClock(NOW))


def play(surveys: LibvirtSurveys, story: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        try:
            await story()
        finally:
            await surveys.close()

    asyncio.run(run())


async def why(surveys: LibvirtSurveys, host: str) -> str:
    with pytest.raises(Unanswered) as unanswered:
        await surveys.survey(host)
    return str(unanswered.value)


def test_a_program_is_kept_from_one_survey_to_the_next(surveys: LibvirtSurveys) -> None:
    async def story() -> None:
        (first,) = await surveys.survey("answers")
        (second,) = await surveys.survey("answers", ["A", "B"])
        assert (first.name, second.name) == ("states", "states A B")
        assert first.uuid == second.uuid
        assert await why(surveys, "is-away") == await why(surveys, "is-away")

    play(surveys, story)


@pytest.mark.parametrize(("host", "text"), [("3", "3"), ("12", "no module libvirt")])
def test_a_program_that_ends_is_started_again(
    surveys: LibvirtSurveys, host: str, text: str
) -> None:
    async def story() -> None:
        for _ in range(2):
            assert text in await why(surveys, host)

    play(surveys, story)


def test_a_program_that_is_killed_between_two_surveys_is_a_host_that_was_lost(
    surveys: LibvirtSurveys,
) -> None:
    async def story() -> None:
        (found,) = await surveys.survey("answers")
        os.kill(int(found.uuid), 9)
        await patience.reached(lambda: surveys._running["answers"].returncode is not None)
        assert "-9" in await why(surveys, "answers")
        (again,) = await surveys.survey("answers")
        assert again.uuid != found.uuid

    play(surveys, story)


def test_an_answer_that_cannot_be_read_is_a_host_that_does_not_answer(
    surveys: LibvirtSurveys,
) -> None:
    async def story() -> None:
        assert "invalid" in await why(surveys, "says-nonsense")
        assert not surveys._running

    play(surveys, story)


def test_a_python_that_cannot_be_run_is_a_host_that_does_not_answer() -> None:
    surveys = LibvirtSurveys({"h0": "x:///"}, "/nonexistent/python", {}, ManualClock(NOW))

    async def story() -> None:
        assert "/nonexistent/python" in await why(surveys, "h0")

    play(surveys, story)


@pytest.mark.parametrize("how", ["late", "closed"])
def test_a_program_that_hangs_is_killed_with_all_that_it_began(
    surveys: LibvirtSurveys, tmp_path: Path, how: str
) -> None:
    async def story() -> None:
        asked = asyncio.create_task(why(surveys, "hangs"))
        pids = tmp_path / "pids"
        both = await patience.reached(lambda: pids.exists() and pids.read_text().split())
        assert await surveys.survey("answers"), "no other host waits for it"
        if how == "late":
            surveys._clock.advance(timedelta(seconds=ANSWER_SECONDS))  # type: ignore[attr-defined]
        else:
            await surveys.close()
        assert await asked
        await patience.reached(lambda: not any(map(alive, both)))

    play(surveys, story)


def alive(pid: str) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:1]
    except OSError:
        return False


@pytest.mark.skipif(
    not hypervisor.has_libvirt(), reason=f"{hypervisor.PYTHON} has no libvirt module"
)
def test_libvirts_own_test_driver_is_surveyed() -> None:
    uris = {"lab": "test:///default"}
    surveys = LibvirtSurveys(uris, hypervisor.PYTHON, os.environ, ManualClock(NOW))

    async def story() -> None:
        (found,) = await surveys.survey("lab")
        assert (found.name, found.state, found.run) == ("test", "running", 1)

    play(surveys, story)

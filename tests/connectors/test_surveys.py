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


class Kept:
    """Surveys whose programs end with the story."""

    def __init__(self, surveys: LibvirtSurveys) -> None:
        self.surveys = surveys
        self.survey = surveys.survey

    async def why(self, host: str) -> str:
        """Return why a host does not answer."""
        with pytest.raises(Unanswered) as unanswered:
            await self.survey(host)
        return str(unanswered.value)

    def play(self, story: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            try:
                await story()
            finally:
                await self.surveys.close()

        asyncio.run(run())


CLOCK = ManualClock(NOW)


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    python = tmp_path / "python"
    python.write_text(PYTHON.format(python=sys.executable, folder=str(tmp_path)))
    python.chmod(0o755)
    names = ("answers", "is-away", "hangs", "says-nonsense", "3", "12")
    uris = {name: f"x:///{name}" for name in names}
    return Kept(LibvirtSurveys(uris, str(python), os.environ, CLOCK))


async def test_a_program_is_kept_from_one_survey_to_the_next(kept: Kept) -> None:
    (first,) = await kept.survey("answers")
    (second,) = await kept.survey("answers", ["A", "B"])
    assert (first.name, second.name) == ("states", "states A B")
    assert first.uuid == second.uuid
    assert await kept.why("is-away") == await kept.why("is-away")


async def test_a_program_that_ends_is_started_again(kept: Kept) -> None:
    for _ in range(2):
        assert "3" in await kept.why("3")
        assert "no module libvirt" in await kept.why("12")


async def test_a_program_that_is_killed_between_two_surveys_is_a_host_that_was_lost(
    kept: Kept,
) -> None:
    (found,) = await kept.survey("answers")
    os.kill(int(found.uuid), 9)
    await patience.reached(lambda: kept.surveys._running["answers"].returncode is not None)
    assert "-9" in await kept.why("answers")
    (again,) = await kept.survey("answers")
    assert again.uuid != found.uuid


async def test_what_cannot_be_read_or_run_is_a_host_that_does_not_answer(kept: Kept) -> None:
    assert "invalid" in await kept.why("says-nonsense")
    assert not kept.surveys._running
    nowhere = Kept(LibvirtSurveys({"h0": "x:///"}, "/nonexistent/python", {}, CLOCK))
    assert "/nonexistent/python" in await nowhere.why("h0")


@pytest.mark.parametrize("how", ["late", "closed"])
async def test_a_program_that_hangs_is_killed_with_all_that_it_began(
    kept: Kept, tmp_path: Path, how: str
) -> None:
    asked = asyncio.create_task(kept.why("hangs"))
    pids = tmp_path / "pids"
    both = await patience.reached(lambda: pids.exists() and pids.read_text().split())
    assert await kept.survey("answers"), "no other host waits for it"
    if how == "late":
        CLOCK.advance(timedelta(seconds=ANSWER_SECONDS))
    else:
        await kept.surveys.close()
    assert await asked
    await patience.reached(lambda: not any(map(alive, both)))


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
    kept = Kept(LibvirtSurveys(uris, hypervisor.PYTHON, os.environ, CLOCK))

    async def story() -> None:
        (found,) = await kept.survey("lab")
        assert (found.name, found.state, found.run) == ("test", "running", 1)

    kept.play(story)

"""A task that another replica claimed before: its runs are in that replica's folder, not here."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from connectors.workshop import Workshop, play, task, tell, told
from forewarn.connectors.libvirt.connector import LibvirtConnector
from forewarn.connectors.port import Found, Outcome
from forewarn.connectors.settings import LibvirtHost, LibvirtSettings

NOT_DONE = "echo '{\"done\": false}'"


@pytest.fixture
def here(tmp_path: Path) -> Workshop:
    """The second replica's machine; `shop` is the first's."""
    folder = tmp_path / "here"
    folder.mkdir()
    return Workshop(folder)


async def test_what_runs_on_another_host_is_not_begun_here(shop: Workshop, here: Workshop) -> None:
    began, go = shop.pipe("began"), shop.pipe("go")
    there = shop.connector("echo $$ > began; cat go")
    own = here.connector("echo again >> log")
    running = asyncio.create_task(there.perform(task()))
    await told(began)
    found = await own.check(task(attempt=2, claimed_elsewhere=("there",)))
    await tell(go)
    assert await running == Outcome(succeeded=True)
    assert found is Found.UNKNOWN
    assert here.lines("log") == []


def test_what_only_this_replica_claimed_is_not_begun_where_it_left_no_trace(
    here: Workshop,
) -> None:
    assert play(here.connector("").check(task(attempt=2))) is Found.NOT_DONE


def test_what_another_host_did_is_done_again_only_if_the_check_command_says_not_done(
    here: Workshop,
) -> None:
    check = here.program(NOT_DONE, "check")
    own = here.connector("echo ran >> log", check_command=(check,))
    second = task(attempt=2, claimed_elsewhere=("there",))
    assert play(own.check(second)) is Found.NOT_DONE
    assert play(own.perform(second)) == Outcome(succeeded=True)
    assert here.lines("log") == ["ran"]


@pytest.mark.parametrize("body", ["exit 1", "kill -9 $$", "echo '{\"done\"'"])
def test_a_check_command_that_cannot_tell_leaves_it_unknown(here: Workshop, body: str) -> None:
    own = here.connector("", check_command=(here.program(body, "check"),))
    assert play(own.check(task(attempt=2, claimed_elsewhere=("there",)))) is Found.UNKNOWN


def test_a_machine_that_another_host_has_done_is_not_done_again_with_the_others(
    here: Workshop,
) -> None:
    check = here.program(f'test "$FOREWARN_MACHINE" = web-0 || {NOT_DONE}', "check")
    own = here.connector('echo "$FOREWARN_MACHINE" >> log', check_command=(check,))
    second = task("web-0", "web-1", attempt=2, claimed_elsewhere=("there",))
    assert play(own.check(second)) is Found.NOT_DONE
    assert play(own.perform(second)) == Outcome(succeeded=True)
    assert here.lines("log") == ["web-1"]


def test_a_result_in_this_folder_is_believed_though_another_replica_claimed_it_too(
    here: Workshop,
) -> None:
    own = here.connector("echo ran >> log; echo fine >&2")
    play(own.perform(task()))
    third = task(attempt=3, claimed_elsewhere=("there",))
    assert play(own.check(third)) == Outcome(succeeded=True, message="fine")


def test_the_program_is_not_told_who_claimed_it_before(here: Workshop) -> None:
    own = here.connector("cat > told; env > variables")
    play(own.perform(task(attempt=2, claimed_elsewhere=("there",))))
    assert "claimed_elsewhere" not in json.loads((here.folder / "told").read_text("utf-8"))
    assert "CLAIMED_ELSEWHERE" not in (here.folder / "variables").read_text("utf-8")


@pytest.mark.parametrize(("others", "again"), [((), False), (("there",), True)])
def test_libvirts_program_asks_the_hosts_and_knows_that_it_may_have_begun(
    here: Workshop, others: tuple[str, ...], again: bool
) -> None:
    """Its marker is in the machine, so its check is exact from any host."""
    body = f"cat > told; echo $3 >> verbs; {NOT_DONE}"
    settings = LibvirtSettings(
        python=here.program(body, "python"), host=(LibvirtHost(name="h1", uri="test:///default"),)
    )
    own = LibvirtConnector(settings, here.state, os.environ)
    second = task(attempt=2, claimed_elsewhere=others)
    assert play(own.check(second)) is Found.NOT_DONE
    assert here.lines("verbs") == (["check"] if others else [])
    play(own.perform(second))
    assert json.loads((here.folder / "told").read_text("utf-8"))["again"] is again

"""A clock that runs, and shows handlers real times."""

import threading
from datetime import UTC, datetime, timedelta

import pytest

import forewarn
import patience
from forewarn.testing import Emulator

SLACK = timedelta(seconds=0.1)
"""What the two clocks of the machine may differ by, and the rules' whole seconds."""


def test_a_clock_that_runs_shows_when_the_event_starts_in_real_time() -> None:
    with Emulator(scale=15) as emulator:
        machine = emulator.machine("web-0")
        before = datetime.now(UTC)
        emulator.schedule("Reboot", "web-0")
        after = datetime.now(UTC)
        notice = timedelta(minutes=1)  # time enough to read it on any machine
        with forewarn.Client(machine.endpoint) as client:
            (read,) = client.events()
    assert read.not_before is not None
    assert before + notice - timedelta(seconds=1) - SLACK <= read.not_before
    assert read.not_before <= after + notice + SLACK


def test_a_clock_that_runs_starts_the_event_when_it_has_said_so() -> None:
    with Emulator(scale=900) as emulator:
        emulator.machine("web-0")
        before = datetime.now(UTC)
        event = emulator.schedule("Reboot", "web-0")
        emulator.until(lambda: event.status != "Scheduled", patience.SECONDS)
        started = datetime.now(UTC)
    assert started >= before + timedelta(seconds=1) - SLACK


def test_a_clock_that_runs_drives_a_handler_to_the_end() -> None:
    with Emulator(scale=60) as emulator:
        machine = emulator.machine("web-0")
        with forewarn.Client(machine.endpoint, pace=forewarn.Pace(poll_seconds=0.05)) as client:
            thread = threading.Thread(target=approve_until_gone, args=(client,))
            thread.start()
            # So it is approved by the handler, however slow, and not by the end of its notice.
            event = emulator.schedule("Reboot", "web-0", notice=60 * patience.SECONDS)
            emulator.until_idle(patience.SECONDS)
            thread.join()
        assert (event.status, event.start_cause) == ("Completed", "approved")


def approve_until_gone(client: forewarn.Client) -> None:
    for change in client.watch():
        if change.appeared:
            client.approve(change.event)
        if change.gone:
            return


def test_a_clock_that_runs_is_waited_for() -> None:
    with Emulator(scale=1000) as emulator:
        emulator.machine("web-0")
        event = emulator.schedule("Freeze", "web-0")
        emulator.advance("15m1s")
        assert event.status != "Scheduled"


def test_what_is_due_has_happened_when_a_wait_for_a_clock_that_runs_is_over() -> None:
    with Emulator(scale=10) as emulator:
        emulator.machine("spot-0", priority="low")
        # NotBefore, a whole second rounded up, is then well beyond thirty seconds.
        patience.until(lambda: emulator.now.microsecond <= 200_000, every=patience.PAUSE_SECONDS)
        event = emulator.schedule("Preempt", "spot-0")
        emulator.advance("30s")
        assert event.status != "Scheduled"


@pytest.mark.parametrize("scale", [0, -1, 10_001])
def test_an_impossible_scale_is_refused(scale: float) -> None:
    with pytest.raises(ValueError, match="scale"):
        Emulator(scale=scale)

"""`forewarn certify` as a process: what it leaves behind when somebody ends it."""

import os
import signal
from pathlib import Path

import pytest

import patience
from end_to_end.playing import Playing
from forewarn.cli.exits import ExitStatus

ENDS = {signal.SIGINT: ExitStatus.INTERRUPTED, signal.SIGTERM: ExitStatus.TERMINATED}


@pytest.mark.parametrize("number", ENDS, ids=["ctrl-c", "term"])
def test_who_ends_it_ends_its_handlers_at_once(number: signal.Signals, folder: Path) -> None:
    options = ["--only", "approve", "--only", "stops", "--patience", "3600"]
    command = ["forewarn", "certify", *options, "--", "sh", "-c", "sleep 3600 & wait"]
    certify = Playing(command, folder, dict(os.environ), terminal=False)
    try:
        patience.until(lambda: certify.leftovers().count("sleep 3600 ") == 2)
        certify.process.send_signal(number)
        certify.interrupt(number)
        assert certify.status == ENDS[number], certify.text
        assert "2 not finished" in certify.text
        assert certify.leftovers() == []
    finally:
        certify.close()

"""The command line in a process that was forked when its modules were imported already.

To start Python and to import the command line takes a fifth of a second each time, and the tests
run some hundreds of commands.
"""

import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from forewarn.cli import main

PRELOADED = ("forewarn.client.sync", "forewarn.maintenance.fleet", "forewarn.server.settings")
"""What most commands import when they run."""

_forking = multiprocessing.get_context("forkserver")
_forking.set_forkserver_preload(["__main__", __name__, *PRELOADED])


def call(
    arguments: tuple[str, ...], stdin: str, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run one command line; return how it ended and what it printed."""
    with tempfile.TemporaryDirectory(prefix="fw-") as made:
        folder = Path(made)
        streams = [folder / name for name in ("stdin", "stdout", "stderr")]
        for stream in streams:
            stream.write_text(stdin)
        process = _forking.Process(target=_run, args=(arguments, streams, environment, Path.cwd()))
        process.start()
        process.join()
        output, errors = (stream.read_text() for stream in streams[1:])
    assert process.exitcode is not None
    return subprocess.CompletedProcess(arguments, process.exitcode, output, errors)


def _run(
    arguments: tuple[str, ...], streams: list[Path], environment: dict[str, str], folder: Path
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for number, stream in enumerate(streams):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_TRUNC
        os.dup2(os.open(stream, flags), number)
    sys.stdin = os.fdopen(0)  # the library put an empty one there
    sys.argv = ["forewarn", *arguments]
    main.run()

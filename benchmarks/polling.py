"""GET of a document that has not changed, over kept connections and over new ones.

Each contestant has the server's core, wrk the other; they take turns, and a figure is the median of
its rounds with their range.
"""

import contextlib
import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import machine
import servers
from tables import Row, show, spread

CONNECTIONS = 32
ROUNDS = 3
SECONDS = 8.0

AIMS = {
    "kept connections": {"nginx return 200": 0.9, "Go net/http": 2.0},
    "a connection each": {"nginx return 200": 0.75},
}
"""What the service is to reach, as a share of the other's requests a second."""


class Wrk:
    """wrk on the load's cores, each connection from the next machine's address."""

    def __init__(self, folder: Path) -> None:
        self._sources = folder / "sources.so"
        source = Path(__file__).parent / "sources.c"
        options = ["-O2", "-shared", "-fPIC", "-o", str(self._sources)]
        subprocess.run(["cc", *options, str(source), "-ldl"], check=True)

    def run(self, port: int, seconds: float, *headers: str) -> dict[str, Any]:
        """Return what wrk counted, which must all have been answered with 200."""
        command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds:.0f}s", "--latency"]
        for header in ("Metadata: true", *headers):
            command += ["-H", header]
        command += ["-s", str(servers.HERE / "report.lua")]
        ran = subprocess.run(
            [*command, f"http://127.0.0.1:{port}{servers.TARGET}"],
            capture_output=True,
            text=True,
            check=True,
            env={
                **os.environ,
                "LD_PRELOAD": str(self._sources),
                "SOURCES_COUNT": str(servers.CALLERS),
            },
        )
        line = next(line for line in ran.stdout.splitlines() if line.startswith("RESULT "))
        found: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
        failed = {k: found[k] for k in ("connect", "read", "write", "status", "timeout")}
        assert not any(failed.values()), f"not all was answered: {failed}"
        return found


def compare(title: str, rounds: int, seconds: float, *headers: str) -> list[Row]:
    """Let all contestants have their turns, and return a row of each."""
    chosen, lacking = servers.contestants()
    for program in lacking:
        print(f"missing: {program}, so it takes no part")
    found: dict[str, list[dict[str, Any]]] = {each.name: [] for each in chosen}
    with contextlib.ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="forewarn-bench-")))
        wrk = Wrk(folder)
        for each in chosen:
            running.enter_context(each)
            wrk.run(each.port, 1.0, *headers)  # a start is nobody's measure
        for _ in range(rounds):
            for each in chosen:
                before, used = each.counted(), each.cpu_seconds()
                figures = wrk.run(each.port, seconds, *headers)
                figures["server_us"] = 1e6 * (each.cpu_seconds() - used) / figures["requests"]
                found[each.name].append(figures)
                _judge_count(before, each.counted(), figures["requests"])
    return _rows(title, found)


def _judge_count(before: int | None, after: int | None, asked: int) -> None:
    """What a server has counted is what was asked; wrk leaves at most one open a connection."""
    if before is not None and after is not None:
        assert asked <= after - before <= asked + CONNECTIONS, (asked, after - before)


def _rows(title: str, found: dict[str, list[dict[str, Any]]]) -> list[Row]:
    rates = {
        name: [each["requests"] / each["seconds"] for each in rounds]
        for name, rounds in found.items()
    }
    own = rates["forewarn"]
    rows = []
    for name, rounds in found.items():
        # Round by round, for what disturbs a round disturbs both.
        shares = [mine / other for mine, other in zip(own, rates[name], strict=True)]
        aim = AIMS[title].get(name)
        rows.append(
            {
                "": name,
                "requests/s": spread(rates[name]),
                "forewarn is": f"{statistics.median(shares):.2f} x",
                "aim": f"{aim} x" if aim else "",
                "server us/request": spread([each["server_us"] for each in rounds], 1),
                "median ms": spread([each["median_us"] / 1000 for each in rounds], 2),
                "p99 ms": spread([each["p99_us"] / 1000 for each in rounds], 2),
            }
        )
    return rows


def missing() -> list[str]:
    """The programs without which neither case runs."""
    return machine.missing("wrk", "cc")


def run(*, quick: bool) -> dict[str, list[Row]]:
    rounds, seconds = (1, 1.0) if quick else (ROUNDS, SECONDS)
    found = {}
    for title, headers in {
        "kept connections": (),
        "a connection each": ("Connection: close",),
    }.items():
        found[title] = compare(title, rounds, seconds, *headers)
        show(f"GET of an unchanged document, {title}, {CONNECTIONS} at once", found[title])
    return found

"""What `make bench` runs: the cases that are named, or all of them; see README.md."""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import agent
import drain
import growth
import hostile
import library
import machine
import news
import page
import polling
import relay
import replicas
import rules
import testkit

RESULTS = Path(__file__).parent / "results"
CASES: dict[str, ModuleType] = {
    "polling": polling,
    "news": news,
    "growth": growth,
    "page": page,
    "hostile": hostile,
    "client": library,
    "agent": agent,
    "rules": rules,
    "drain": drain,
    "replicas": replicas,
    "relay": relay,
    "testkit": testkit,
}


AT_ONCE = 3
"""Quick cases: most of them wait, and nobody reads their figures."""


def quickly(names: Sequence[str]) -> int:
    """Run cases at once, each in a process of its own; print what each prints when it has ended."""

    def run(name: str) -> int:
        command = [sys.executable, str(Path(__file__).parent), name, "--quick"]
        ran = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        print(ran.stdout, flush=True)
        return ran.returncode

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return max(pool.map(run, names))


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench ARGS=...", description=__doc__)
    parser.add_argument("case", nargs="*", help=f"{', '.join(CASES)}; all if none is named")
    parser.add_argument("--quick", action="store_true", help="about a second each: they still run")
    chosen = parser.parse_args()
    unknown = sorted(set(chosen.case) - set(CASES))
    if unknown:
        parser.error(f"there is no case {unknown[0]}; there are {', '.join(CASES)}")
    names = chosen.case or list(CASES)
    if chosen.quick and len(names) > 1:
        return quickly(names)
    described = machine.described()
    print("  ".join(f"{name}: {value}" for name, value in described.items()))
    if len(machine.CORES) == 1:
        print("one core: the load shares it with the server, and the figures say little")
    machine.prepare()
    RESULTS.mkdir(exist_ok=True)
    for name in names:
        case = CASES[name]
        lacking = case.missing()
        if lacking:
            print(f"\n{name}: missing: {', '.join(lacking)}, so it does not run")
            continue
        began = time.monotonic()
        found: dict[str, Any] = {"machine": described, "quick": chosen.quick}
        found |= case.run(quick=chosen.quick)
        found["seconds"] = round(time.monotonic() - began, 1)
        written = json.dumps(found, indent=2) + "\n"
        (RESULTS / f"{name}.json").write_text(written, encoding="utf-8")
    print(f"\nwritten to {RESULTS}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

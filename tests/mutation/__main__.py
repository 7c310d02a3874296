"""Breaks the deciders in every way and counts what the tests notice: `make prove AREA=mutants`.

mutmut makes the mutants; the tests of a room run here, once whole to see which test reaches which
function, and then for each mutant in a fork of that process, the likeliest test first and only
until one fails. So nothing is imported or collected again for a mutant, and a module of 500 lines
takes minutes. A mutant that only rewords a sentence is left out, for tests assert codes and facts.
mypy is asked first, for `make check` would not let its finds pass: they run no test.
"""

import argparse
import ast
import collections
import contextlib
import fnmatch
import functools
import gc
import io
import json
import math
import os
import random
import resource
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from _pytest import runner
from mutmut import __main__ as maker
from mutmut import configuration
from mutmut import state as state_of_mutmut
from mutmut.mutation import data, diff_apply, trampoline
from mutmut.utils import file_utils, format_utils

# Which tests judge which room: those that know its rules, and none that wait or start processes.
TESTS = {
    "maintenance": [
        "tests/unit/maintenance",
        "tests/unit/test_words.py",
        "tests/scenarios/test_scenarios.py",
        "tests/control/test_webhooks.py",
    ],
    "protocol": ["tests/protocol", "tests/client/test_properties.py"],
    "client": [
        "tests/client/test_watch.py",
        "tests/client/test_stories.py",
        "tests/client/test_properties.py",
    ],
    "connectors": [
        "tests/connectors/virtual/test_stories.py",
        "tests/connectors/virtual/test_kills.py",
    ],
    "control": ["tests/control/test_running.py", "tests/control/test_writer.py"],
    "agent": [
        "tests/agent/test_decider.py",
        "tests/agent/test_stories.py",
        "tests/agent/test_settings.py",
    ],
}
# What is mutated where nothing is named.
DECIDERS = [
    "agent.approvals", "agent.decider", "agent.rules", "agent.state",
    "client.watch", "connectors.libvirt.decide", "maintenance.*", "protocol.*",
]  # fmt: skip
# What a mutant's tests may take of the processor: so many times what they took unbroken, and more.
TIMES = 3
MORE_SECONDS = 2
# A test that takes more of the processor judges nothing: each mutant that lives would wait for it.
SLOWEST = 8
# A mutant that eats memory dies before the machine does.
MEMORY = 4 * 2**30
# Names that count in any case: a mutant that spells one otherwise is the same program.
ENCODINGS = {"ascii", "utf-8", "utf-8-sig"}
# What of each module's mutants must die. A sample may look worse by chance, but only this rarely.
LEAST_DEAD = 0.9
BY_CHANCE = 0.001
# How often a run says how far it is.
SAY_EVERY = 20
# What mypy finds in a mutant counts where it is about types, and not about style.
STYLE = {"comparison-overlap", "redundant-expr", "truthy-bool", "unreachable", "unused-ignore"}


class Killing:
    """A run of pytest whose loop kills mutants."""

    def __init__(self, names: list[str], jobs: int) -> None:
        self.names = names
        self.jobs = jobs
        self.fates: dict[str, str] = {}
        self._reaching: dict[str, list[pytest.Item]] = collections.defaultdict(list)
        self._seconds: dict[pytest.Item, float] = {}
        self._kills: collections.Counter[tuple[str, pytest.Item]] = collections.Counter()
        self._running: dict[int, tuple[str, int, list[pytest.Item]]] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        from hypothesis import Phase, settings  # noqa: PLC0415 - pytest wants to import it first

        # An example that fails is enough: to look for the smallest one takes seconds.
        quick = [Phase.explicit, Phase.generate]
        settings.register_profile("mutants", deadline=None, database=None, phases=quick)
        settings.load_profile("mutants")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise session.Interrupted("a test cannot be collected")
        self._see_what_reaches_what(session.items)
        gc.freeze()
        for number, name in enumerate(self.names):
            if number % SAY_EVERY == 0:
                print(f"{number} of {len(self.names)} mutants", flush=True)
            if len(self._running) >= self.jobs:
                self._reap()
            self._start(name)
        while self._running:
            self._reap()
        return True

    def _see_what_reaches_what(self, items: list[pytest.Item]) -> None:
        trampoline.set_mutant_under_test("stats")
        reached = state_of_mutmut()._stats
        modules = [each for name, each in sys.modules.items() if name.startswith("forewarn.")]
        named = [each for module in modules for each in vars(module).values()]
        caches = [each for each in named if isinstance(each, functools._lru_cache_wrapper)]
        for item, following in zip(items, [*items[1:], None], strict=True):
            for cache in caches:  # what one test leaves there, the next would not reach
                cache.cache_clear()
            reached.clear()
            start = time.process_time()
            if not _passes(item, following):
                raise pytest.UsageError(f"{item.nodeid} fails with nothing broken")
            self._seconds[item] = seconds = time.process_time() - start
            if seconds > SLOWEST:
                print(f"left out, takes {seconds:.0f} s: {item.nodeid}", flush=True)
                continue
            for function in reached:
                self._reaching[function].append(item)
        for cache in caches:
            cache.cache_clear()
        print(f"{len(items)} tests take {sum(self._seconds.values()):.0f} s", flush=True)

    def _start(self, name: str) -> None:
        function = format_utils.mangled_name_from_mutant_name(name)
        # What killed another mutant of the function is likely to kill this one too.
        items = sorted(
            self._reaching[function], key=lambda i: (-self._kills[function, i], self._seconds[i])
        )
        if not items:
            self.fates[name] = "no test"
            return
        reading, writing = os.pipe()
        process = os.fork()
        if process == 0:
            self._live(name, items, writing)
        os.close(writing)
        self._running[process] = (name, reading, items)

    def _live(self, name: str, items: list[pytest.Item], writing: int) -> None:
        whole = TIMES * sum(self._seconds[item] for item in items)
        limit = int(time.process_time() + whole) + MORE_SECONDS
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        trampoline.set_mutant_under_test(name)
        for number, item in enumerate(items):
            following = items[number + 1] if number + 1 < len(items) else None
            if not _passes(item, following):
                os.write(writing, number.to_bytes(4))
                os._exit(1)
        os._exit(0)

    def _reap(self) -> None:
        process, status = os.wait()
        name, reading, items = self._running.pop(process)
        with os.fdopen(reading, "rb") as pipe:
            told = pipe.read()
        if told:
            function = format_utils.mangled_name_from_mutant_name(name)
            self._kills[function, items[int.from_bytes(told)]] += 1
        fates = {0: "survived", 1: "killed"}
        self.fates[name] = fates.get(os.waitstatus_to_exitcode(status), "timeout")


def _passes(item: pytest.Item, following: pytest.Item | None) -> bool:
    try:
        reports = runner.runtestprotocol(item, log=False, nextitem=following)
    except BaseException:  # noqa: BLE001 - whatever ends the run has noticed the mutant
        return False
    return not any(report.failed for report in reports)


def _generate(patterns: list[str]) -> dict[str, Path]:
    """Write the mutants of the modules that the patterns name; return their names and files."""
    shutil.rmtree("mutants", ignore_errors=True)
    Path("mutants").mkdir()
    configuration.config().only_mutate = [
        str(path)
        for path in file_utils.walk_source_files()
        if any(fnmatch.fnmatch(".".join(path.with_suffix("").parts[2:]), p) for p in patterns)
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        file_utils.copy_src_dir()
        file_utils.copy_also_copy_files()
        file_utils.setup_source_paths()
        maker.create_mutants(os.cpu_count() or 1)
    names = {}
    for path in file_utils.walk_mutatable_files():
        of_file = data.SourceFileMutationData(path=path)
        of_file.load()
        sources = data.MutantLineSpans.load(path)
        names |= {name: path for name in of_file.exit_code_by_key if not _rewords(name, sources)}
    return names


def _rewords(name: str, sources: data.MutantLineSpans) -> bool:
    mutant = name.rpartition(".")[2]
    original = format_utils.mangled_name_from_mutant_name(mutant) + "__mutmut_orig"
    functions = [original, mutant]
    first, second = (
        ast.dump(_Reworded().visit(ast.parse(textwrap.dedent(source)))).replace(function, "")
        for source, function in zip(
            sources.read_function_sources(functions), functions, strict=True
        )
    )
    return first == second


class _Reworded(ast.NodeTransformer):
    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        if not isinstance(node.value, str):
            return node
        if " " in node.value:
            return ast.Constant("a sentence")
        return ast.Constant(node.value.lower()) if node.value.lower() in ENCODINGS else node


def _wrong_types(names: dict[str, Path]) -> set[str]:
    """Return which of these mutants mypy refuses."""
    mutated = sorted({str(path) for path in names.values()})
    command = [sys.executable, "-m", "mypy", "--output=json", *mutated]
    found = subprocess.run(command, capture_output=True, text=True, check=False, cwd="mutants")
    lines = collections.defaultdict(list)
    for line in found.stdout.splitlines():
        if line.startswith("{"):
            error = json.loads(line)
            if error["severity"] == "error" and error["code"] not in STYLE:
                lines[error["file"]].append(error["line"])
    wrong = set()
    for name, path in names.items():
        sources = data.MutantLineSpans.load(path)
        span = sources.span_by_function_name[name.rpartition(".")[2]]
        if any(span.start <= line <= span.end for line in lines[str(path)]):
            wrong.add(name)
    return wrong


def _too_few(dead: int, mutants: int, sample: int) -> bool:
    """Tell whether fewer of a module's mutants die than must: of a sample, beyond all chance."""
    if sample == 100:
        return dead < LEAST_DEAD * mutants
    chance = sum(
        math.comb(mutants, k) * LEAST_DEAD**k * (1 - LEAST_DEAD) ** (mutants - k)
        for k in range(dead + 1)
    )
    return chance < BY_CHANCE


def _function(name: str) -> str:
    return format_utils.mangled_name_from_mutant_name(name).rpartition(".")[2]


def main() -> int:
    parser = argparse.ArgumentParser(prog="mutation", description=__doc__)
    parser.add_argument(
        "modules", nargs="*", default=DECIDERS, help="such as maintenance.commands or protocol.*"
    )
    parser.add_argument("--sample", type=int, default=100, help="per cent of the mutants")
    parser.add_argument("--seed", type=int, default=1, help="of the sample (%(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--functions", nargs="*", default=["*"], help="such as x_step")
    parser.add_argument("--tests", nargs="*", help="instead of the room's")
    chosen = parser.parse_args()
    files = _generate(chosen.modules)
    names = [
        name
        for name in files
        if any(fnmatch.fnmatch(_function(name), each) for each in chosen.functions)
        and random.Random(f"{chosen.seed} {name}").random() * 100 < chosen.sample
    ]
    rooms = sorted({name.split(".")[1] for name in names})
    wrong = _wrong_types({name: files[name] for name in names})
    killing = Killing([name for name in names if name not in wrong], chosen.jobs)
    with file_utils.change_cwd("mutants"):
        code = pytest.main(
            # A longer report of a failure would parse the module, with all its mutants, each time.
            ["--rootdir=.", "-q", "-p", "no:cacheprovider", "--capture=sys", "--timeout=20"]
            + ["--tb=native"]
            + (chosen.tests or [test for room in rooms for test in TESTS[room]]),
            plugins=[killing],
        )
    fates = killing.fates | dict.fromkeys(wrong, "wrong type")
    if len(fates) < len(names):
        return int(code) or 1
    counts = collections.defaultdict(collections.Counter)
    for name in sorted(names):
        counts[name.partition(".x")[0]][fates[name]] += 1
        if fates[name] in {"survived", "no test"}:
            print(f"{fates[name]}: {name}")
            print(diff_apply.get_diff_for_mutant(name, path=files[name]))
    short = []
    for module, of_module in counts.items():
        whole = of_module.total()
        dead = whole - of_module["survived"] - of_module["no test"]
        print(f"{module}: {whole} mutants, {dead / whole:.1%} dead {dict(of_module)}")
        if _too_few(dead, whole, chosen.sample):
            short.append(f"{module} {dead / whole:.0%}")
    print(
        f"{len(names)} mutants of {len(counts)} modules; too few dead: {', '.join(short) or 'none'}"
    )
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())

"""Right handlers pass, and each fault of a wrong one is found by the scenario that is for it."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

import patience
from forewarn.testing import Emulator, certify, handler_process
from forewarn.testing.certify import Handler, HandlerVerdict, Result
from house.tree import ROOT

BROKEN = Path(__file__).with_name("broken_handler.py")
SCENARIOS = {scenario.name: scenario for scenario in certify.SCENARIOS}
SHELL = ROOT / "docs" / "examples" / "handle.sh"
NEEDS_CURL = pytest.mark.skipif(
    not (shutil.which("curl") and shutil.which("jq")), reason="needs curl and jq"
)
IN_VAIN = {"stays-away", "leaves-no-marks"}
"""What such a handler does not do is waited for in vain: until it has asked often enough."""
OFTEN_ENOUGH = 20.0


def requests(emulator: Emulator) -> float:
    """Count a request as a second, in which a handler could have reacted."""
    emulator.end_waits()
    return float(len(emulator.requests))


def judged(fault: str, *names: str) -> list[Result]:
    chosen = [SCENARIOS[name] for name in names]
    command = (sys.executable, str(BROKEN), fault)
    if fault in IN_VAIN:
        handler = Handler(command, patience_seconds=OFTEN_ENOUGH, patience_clock=requests)
        return certify.run(handler, chosen)
    return certify.run(Handler(command, patience_seconds=patience.SECONDS), chosen)


def told(results: list[Result]) -> list[tuple[str, str]]:
    return [(each.name, each.message) for each in results if each.verdict is HandlerVerdict.FAILED]


EXAMPLES = ROOT / "docs" / "examples"
JSON_DLL = Path("/usr/lib/cli/Newtonsoft.Json-5.0/Newtonsoft.Json.dll")
AGENT = """
[status]
listen = "off"
[[rule]]
name = "drain"
match = { types = ["Reboot", "Redeploy", "Preempt", "Terminate"] }
prepare = [{ command = { run = ["./drain"], undo = ["./undrain"], repeatable = true } }]
approve = "when-prepared"
"""
QUICK = "pace=forewarn.Pace(poll_seconds=0.3, backoff_seconds=0.2, longest_backoff_seconds=0.5)"
"""Its pauses are real time: ours are short."""


def in_python(folder: Path) -> str:
    text = (EXAMPLES / "handler.py").read_text(encoding="utf-8")
    assert "forewarn.Client()" in text
    quick = folder / "handler.py"
    quick.write_text(text.replace("forewarn.Client()", f"forewarn.Client({QUICK})"), "utf-8")
    return f"exec {sys.executable} {quick}"


def in_c_sharp(folder: Path) -> str:
    program = folder / "Handle.exe"
    compile_it = ["mcs", f"-r:{JSON_DLL}", f"-out:{program}", str(EXAMPLES / "Handle.cs")]
    subprocess.run(compile_it, check=True)
    shutil.copy(JSON_DLL, folder)
    return f"exec mono {program} ./drain ./undrain"


def by_the_agent(folder: Path) -> str:
    (folder / "agent.toml").write_text(AGENT, encoding="utf-8")
    command = f"{sys.executable} -m forewarn agent run --config {folder / 'agent.toml'}"
    return f"FOREWARN_AGENT_SET_STATE__FOLDER={{folder}}/state exec {command}"


def by_itself(folder: Path, made: Callable[[Path], str], *names: str) -> list[Result]:
    command = ("sh", "-c", f"cd {{folder}} && {made(folder)}")
    chosen = [SCENARIOS[name] for name in names] or certify.SCENARIOS
    return certify.run(Handler(command, patience_seconds=patience.SECONDS), chosen)


FORGETFUL = Path(__file__).with_name("forgetful_handler.py")
REBOOTED = {"rebooted": "has not gone back to work since", "rebooted-early": "drained again"}


def forgetful() -> list[Result]:
    command = ("sh", "-c", f"cd {{folder}} && exec {sys.executable} {FORGETFUL}")
    handler = Handler(command, patience_seconds=OFTEN_ENOUGH, patience_clock=requests)
    return certify.run(handler, [SCENARIOS[name] for name in REBOOTED])


SOME = ("preview", "two-events", "started", "drain-fails", "fault-host-update")
"""What the docs' handler in Python does by `make test`; all of the scenarios are the soak's."""

IN_A_NAMESPACE = ("approve", "rebooted", "restarted", "not-first", "fault-lost-approvals")


def in_a_namespace(folder: Path) -> list[Result]:
    """Run the shell's handler with the address of the metadata service in it."""
    isolated = handler_process.isolation()
    text = SHELL.read_text(encoding="utf-8")
    hard = folder / "handle.sh"
    text = text.replace("${FOREWARN_ENDPOINT:-http://169.254.169.254}", certify.ADDRESS)
    hard.write_text(text.replace("sleep 1\n", "sleep 0.3\n"))
    assert "FOREWARN_ENDPOINT" not in hard.read_text()
    command = ("sh", str(hard), "{drain}", "{undrain}")
    handler = Handler(command, patience_seconds=patience.SECONDS, isolated=isolated)
    return certify.run(handler, [SCENARIOS[name] for name in IN_A_NAMESPACE])


FAULTS = [
    ("approves-undrained", "drain-fails", "although its drain failed"),
    ("dies-on-503", "fault-host-update", "ended with status 1"),
    ("polls-too-often", "idle", "polls too often"),
    ("leaves-zombies", "approve", "zombies"),
    ("stays-away", "approve", "$FOREWARN_UNDRAIN"),
]
MORE = [
    ("approves-others", "two-events", "other machines"),
    ("approves-twice", "approve", "again after it was confirmed"),
    ("reads-dates", "started", "ended with status 1"),
    ("minds-case", "fault-lower-case", "while its event was still listed"),
    ("leaves-no-marks", "approve", "{drain} or $FOREWARN_DRAIN, or append"),
]
"""By hand: `make prove AREA=breaks`, with the other tests of judges."""


Begun = dict[str, "Future[list[Result]]"]
"""What was begun, by its name. Handlers and their judge mostly wait, so several are run at once."""


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Begun]:
    """Each handler with a fault, in the scenario that is for it; right ones, the docs' in all."""
    new = tmp_path_factory.mktemp
    with ThreadPoolExecutor(len(FAULTS) + 3) as pool:
        hasty = pool.submit(judged, "polls-too-often", "idle")
        hasty.exception()  # how often it polls in a second shows where nothing else is done
        others = [(fault, scenario) for fault, scenario, _ in FAULTS if fault != "polls-too-often"]
        yield {fault: pool.submit(judged, fault, scenario) for fault, scenario in others} | {
            "polls-too-often": hasty,
            "forgetful": pool.submit(forgetful),
            "in python": pool.submit(by_itself, new("python"), in_python, *SOME),
            "in a namespace": pool.submit(in_a_namespace, new("namespace")),
        }


def test_a_handler_that_is_right_passes_what_concerns_it(begun: Begun) -> None:
    results = begun["in python"].result()
    assert told(results) == []
    skipped = [each.name for each in results if each.verdict is HandlerVerdict.SKIPPED]
    assert skipped == ["preview"]


@pytest.mark.soak
@pytest.mark.parametrize(("fault", "scenario", "word"), MORE)
def test_each_other_fault_is_found_and_is_not_there_without_it(
    fault: str, scenario: str, word: str
) -> None:
    [result] = judged(fault, scenario)
    assert result.verdict is HandlerVerdict.FAILED, result
    assert word in result.message
    [right] = judged("nothing", scenario)
    assert right.verdict is HandlerVerdict.PASSED, right


def test_a_handler_that_forgets_what_it_drained_fails_where_the_reboot_kills_it(
    begun: Begun,
) -> None:
    results = begun["forgetful"].result()
    assert [each.name for each in results] == list(REBOOTED)
    for each in results:
        assert each.verdict is HandlerVerdict.FAILED
        assert REBOOTED[each.name] in each.message


@pytest.mark.soak
@pytest.mark.parametrize(
    "made",
    [
        in_python,
        pytest.param(
            in_c_sharp,
            marks=pytest.mark.skipif(shutil.which("mcs") is None, reason="needs mono-mcs"),
        ),
        by_the_agent,
    ],
)
def test_the_other_handlers_pass_too(tmp_path: Path, made: Callable[[Path], str]) -> None:
    results = by_itself(tmp_path, made)
    wrong = [name for name, _ in told(results)]
    # Without peers the agent approves no event of several machines: each has to be prepared.
    assert wrong == (["two-machines"] if made is by_the_agent else []), told(results)


@pytest.mark.parametrize(("fault", "scenario", "word"), FAULTS)
def test_each_fault_is_found(begun: Begun, fault: str, scenario: str, word: str) -> None:
    [result] = begun[fault].result()
    assert (result.name, result.verdict) == (scenario, HandlerVerdict.FAILED), result
    assert word in result.message
    if fault != "leaves-zombies":
        assert result.exchange


@pytest.mark.skipif(sys.platform != "linux", reason="network namespaces are Linux's")
@NEEDS_CURL
def test_a_handler_with_the_address_in_it_runs_unchanged_in_a_namespace(begun: Begun) -> None:
    try:
        results = begun["in a namespace"].result()
    except handler_process.CannotIsolate as error:
        pytest.skip(str(error))
    assert len(results) == len(IN_A_NAMESPACE)
    assert told(results) == []

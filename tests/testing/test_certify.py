"""Handlers are judged: right ones pass, and each fault is found by the scenario that is for it."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

import patience
from forewarn.cli import main
from forewarn.cli import testing as testing_commands
from forewarn.cli.exits import ExitStatus
from forewarn.testing import Emulator, certify, handler_process, namespace
from forewarn.testing.certify import Handler, HandlerVerdict, Result
from forewarn.testing.wire import HEADER_WARNING
from house.tree import ROOT

BROKEN = Path(__file__).with_name("broken_handler.py")
SHELL = ROOT / "docs" / "examples" / "handle.sh"
SCENARIOS = {scenario.name: scenario for scenario in certify.SCENARIOS}
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


def by_itself(folder: Path, made: Callable[[Path], str]) -> list[Result]:
    command = ("sh", "-c", f"cd {{folder}} && {made(folder)}")
    return certify.run(Handler(command, patience_seconds=patience.SECONDS))


FORGETFUL = Path(__file__).with_name("forgetful_handler.py")
REBOOTED = {"rebooted": "has not gone back to work since", "rebooted-early": "drained again"}


def forgetful() -> list[Result]:
    command = ("sh", "-c", f"cd {{folder}} && exec {sys.executable} {FORGETFUL}")
    handler = Handler(command, patience_seconds=OFTEN_ENOUGH, patience_clock=requests)
    return certify.run(handler, [SCENARIOS[name] for name in REBOOTED])


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
    ("approves-others", "two-events", "other machines"),
    ("approves-twice", "approve", "again after it was confirmed"),
    ("dies-on-503", "fault-host-update", "ended with status 1"),
    ("reads-dates", "started", "ended with status 1"),
    ("minds-case", "fault-lower-case", "while its event was still listed"),
    ("polls-too-often", "idle", "polls too often"),
    ("leaves-zombies", "approve", "zombies"),
    ("stays-away", "approve", "$FOREWARN_UNDRAIN"),
    ("leaves-no-marks", "approve", "{drain} or $FOREWARN_DRAIN, or append"),
]


Begun = dict[str, "Future[list[Result]]"]
"""What was begun, by its name. Handlers and their judge mostly wait, so several are run at once."""


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Begun]:
    """Each handler with a fault, in the scenario that is for it; right ones, the docs' in all."""
    new = tmp_path_factory.mktemp
    with ThreadPoolExecutor(len(FAULTS) + 4) as pool:
        hasty = pool.submit(judged, "polls-too-often", "idle")
        hasty.exception()  # how often it polls in a second shows where nothing else is done
        others = [(fault, scenario) for fault, scenario, _ in FAULTS if fault != "polls-too-often"]
        yield {fault: pool.submit(judged, fault, scenario) for fault, scenario in others} | {
            "polls-too-often": hasty,
            "nothing": pool.submit(judged, "nothing", *{scenario for _, scenario, _ in FAULTS}),
            "forgetful": pool.submit(forgetful),
            "in python": pool.submit(by_itself, new("python"), in_python),
            "in a namespace": pool.submit(in_a_namespace, new("namespace")),
        }


def test_a_handler_that_is_right_passes_every_scenario_that_concerns_it(begun: Begun) -> None:
    results = begun["in python"].result()
    assert told(results) == []
    skipped = [each.name for each in results if each.verdict is HandlerVerdict.SKIPPED]
    assert skipped == ["preview"]


def test_without_a_fault_the_handler_passes_where_each_fault_is_found(begun: Begun) -> None:
    results = begun["nothing"].result()
    assert {each.verdict for each in results} == {HandlerVerdict.PASSED}


def test_a_handler_that_forgets_what_it_drained_fails_where_the_reboot_kills_it(
    begun: Begun,
) -> None:
    results = begun["forgetful"].result()
    assert [each.name for each in results] == list(REBOOTED)
    for each in results:
        assert each.verdict is HandlerVerdict.FAILED
        assert REBOOTED[each.name] in each.message


@pytest.mark.soak
@pytest.mark.parametrize("made", [in_c_sharp, by_the_agent])
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


def test_a_program_that_is_not_there_fails_its_scenarios() -> None:
    [result] = certify.run(Handler(("/no/such/handler",)), [SCENARIOS["approve"]])
    assert result.verdict is HandlerVerdict.FAILED
    assert "/no/such/handler" in result.message


@pytest.mark.skipif(sys.platform != "linux", reason="network namespaces are Linux's")
@NEEDS_CURL
def test_a_handler_with_the_address_in_it_runs_unchanged_in_a_namespace(begun: Begun) -> None:
    try:
        results = begun["in a namespace"].result()
    except handler_process.CannotIsolate as error:
        pytest.skip(str(error))
    assert len(results) == len(IN_A_NAMESPACE)
    assert told(results) == []


@pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="only root may become another user"
)
def test_an_ordinary_user_makes_a_namespace_in_a_user_namespace() -> None:
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    assert python is not None  # the tests' own may be for root alone
    tried = subprocess.run(
        [python, "-I", "-"],
        input=Path(namespace.__file__).read_bytes(),
        user=65534,
        group=65534,
        capture_output=True,
        check=False,
    )
    if b"Operation not permitted" in tried.stderr or b"PermissionError" in tried.stderr:
        pytest.skip("this system lets no ordinary user make namespaces")
    assert tried.returncode == 0, tried.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="network namespaces are Linux's")
def test_an_isolated_handler_reaches_the_ports_that_were_asked_for(tmp_path: Path) -> None:
    try:
        isolated = handler_process.isolation()
    except handler_process.CannotIsolate as error:
        pytest.skip(str(error))
    (tmp_path / "index.html").write_text("the host's own\n")
    served = subprocess.Popen(
        [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert served.stdout is not None
        port = int(served.stdout.readline().split(" port ")[1].split()[0])
        ask = f"import urllib.request as u; print(u.urlopen('http://127.0.0.1:{port}/').read())"
        handler = Handler((sys.executable, "-c", ask), isolated=isolated, ports=(port,))
        [result] = certify.run(handler, [SCENARIOS["approve"]])
    finally:
        served.kill()
        served.wait()
        assert served.stdout is not None
        served.stdout.close()
    assert "the host's own" in result.output


FOUND = [
    Result("approve", "first", HandlerVerdict.PASSED, seconds=1.5, warning="<warned>"),
    Result("preview", "second", HandlerVerdict.SKIPPED, "it does not ask so"),
    Result(
        "stops",
        "<third>",
        HandlerVerdict.FAILED,
        "it <did> not",
        "GET /x\n\x1b[31m",
        "its \0 output",
    ),
]


def test_junit_tells_every_result() -> None:
    suite = ET.fromstring(certify.junit(["handle", "<it>"], FOUND))
    counts = {name: suite.get(name) for name in ("tests", "failures", "skipped")}
    assert counts == {"tests": "3", "failures": "1", "skipped": "1"}
    assert [case.get("name") for case in suite] == ["approve", "preview", "stops"]
    assert suite.findtext(".//failure") == "GET /x\n[31m"


def test_the_command_prints_verdicts_and_ends_with_their_status(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    command = ["certify", "--only", "approve", "--json", "--junit", str(tmp_path / "j.xml")]
    right = main.execute([*command, "--", sys.executable, str(BROKEN), "nothing"])
    found = json.loads(capsys.readouterr().out)
    assert right == ExitStatus.OK
    assert [each["verdict"] for each in found["results"]] == ["passed"]
    assert ET.parse(tmp_path / "j.xml").getroot().get("failures") == "0"
    wrong = main.execute(
        ["certify", "--only", "approve", "--", sys.executable, str(BROKEN), "approves-twice"]
    )
    assert wrong == ExitStatus.NOT_CERTIFIED
    assert "POST " in capsys.readouterr().out


def test_a_handler_passes_with_a_warning_of_what_azure_may_refuse(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    command = ["certify", "--only", "approve", "--junit", str(tmp_path / "j.xml")]
    for fault, count in (("nothing", 0), ("says-true-in-capitals", 1)):
        assert main.execute([*command, "--", sys.executable, str(BROKEN), fault]) == ExitStatus.OK
        assert capsys.readouterr().out.count(HEADER_WARNING) == count
        assert len(ET.parse(tmp_path / "j.xml").findall(".//system-err")) == count


def test_the_command_counts_the_verdicts_of_a_handler_that_passes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = ["--only", "approve", "--only", "preview"]
    command = ["certify", *names, "--", sys.executable, str(BROKEN), "nothing"]
    assert main.execute(command) == ExitStatus.OK
    assert capsys.readouterr().out.splitlines()[-1] == "1 passed, 1 skipped"


def test_a_handler_that_asks_somebody_else_is_told_of_namespaces() -> None:
    handler = Handler(("sleep", "60"), patience_seconds=1.0)
    [result] = certify.run(handler, [SCENARIOS["approve"]])
    assert result.verdict is HandlerVerdict.FAILED
    assert all(word in result.message for word in ("FOREWARN_ENDPOINT", "--namespace"))


def test_what_several_scenarios_show_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    verdicts = testing_commands.Verdicts()
    for name in ("approve", "again", "stops"):
        shown = "it ends" if name == "stops" else "no drain was seen"
        verdicts.say(Result(name, "", HandlerVerdict.FAILED, shown, "GET /x", f"said in {name}"))
    told = capsys.readouterr().out
    assert told.count("no drain was seen") == 1
    assert told.count("| GET /x") == 2
    assert all(word in told for word in ("as in approve", "it ends", "said in again"))


def test_a_program_that_is_not_there_is_refused_before_anything_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main.execute(["certify", "--", "/no/such/handler"]) == ExitStatus.USAGE
    assert "/no/such/handler" in capsys.readouterr().err


@pytest.mark.parametrize("argument", ["{drian}", "{port}", "--drain={Drain}"])
def test_an_unknown_placeholder_is_refused(
    capsys: pytest.CaptureFixture[str], argument: str
) -> None:
    assert main.execute(["certify", "--", "true", argument]) == ExitStatus.USAGE
    told = capsys.readouterr().err
    assert all(f"{{{name}}}" in told for name in ("drain", "undrain", "folder"))


def test_braces_that_are_no_placeholders_are_left_alone() -> None:
    command = ("sh", "-c", "f() { true; }; echo ${drained} {printed}", "{undrain}", "{folder}/x")
    assert handler_process.unknown_placeholder(command) == ""


@pytest.mark.parametrize("arguments", [["--only", "aprove", "--", "true"], []])
def test_a_wrong_command_line_is_refused(arguments: list[str]) -> None:
    assert main.execute(["certify", *arguments]) == ExitStatus.USAGE


@pytest.mark.parametrize("attempt", range(5))
def test_a_handler_that_is_killed_does_not_see_the_end_of_its_drain(
    tmp_path: Path, attempt: int
) -> None:
    crowd = "for i in $(seq 200); do sleep 60 & done"
    command = f'"$0" & d=$!; {crowd}; wait $d; echo {attempt} > "$FOREWARN_FOLDER/went_on"'
    handler = handler_process.HandlerProcess(["sh", "-c", command, "{drain}"], tmp_path, {})
    handler.order("wait", on=True)
    handler.start()
    patience.until(lambda: len(handler.family()) > 200)
    handler.kill()
    assert not (tmp_path / "went_on").exists()


AS_NOBODY = (
    *("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"),
    *("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search", "--"),
)
REFUSING = (
    'read mapped; exec sh -ec \'echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"\' sh "$@"'
)
"""Once it is root of its own user namespace, nobody in there can make another one."""


def refused(*arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run Python as an ordinary user of a system that refuses namespaces to all of them."""
    command = (
        "unshare",
        "--user",
        "sh",
        "-ec",
        REFUSING,
        "sh",
        *AS_NOBODY,
        sys.executable,
        *arguments,
    )
    own = Path("/proc/self/ns/user").readlink()
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **variables},
        text=True,
    ) as inside:
        patience.until(lambda: Path(f"/proc/{inside.pid}/ns/user").readlink() != own)
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{inside.pid}/{name}").write_text("0 0 65536\n")
        output, errors = inside.communicate("go\n", patience.SECONDS)
    return subprocess.CompletedProcess(command, inside.returncode, output, errors)


needs_other_users = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="only root may become another user"
)


@needs_other_users
def test_who_may_make_no_namespace_is_told_what_to_do() -> None:
    ended = refused("-m", "forewarn", "certify", "--namespace", "--", "true", PATH="/usr/bin:/bin")
    assert ended.returncode == ExitStatus.REFUSED, ended.stderr
    assert "apparmor_restrict_unprivileged_userns" in ended.stderr


@needs_other_users
def test_sudo_makes_the_namespace_where_it_asks_for_no_password() -> None:
    asked = "from forewarn.testing import handler_process; print(*handler_process.isolation())"
    with tempfile.TemporaryDirectory() as folder:
        sudo = Path(folder, "sudo")
        sudo.write_text('#!/bin/sh\ntest "$1" = -n\n')
        for place in (sudo, sudo.parent):
            place.chmod(0o755)
        ended = refused("-c", asked, PATH=f"{folder}:/usr/bin:/bin")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("sudo -n ")

"""`forewarn certify`: its verdicts and command line; right handlers pass, and faults are found."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import requests
import yaml

import forked
import patience
from client.scripted import message, serving
from end_to_end import installed
from end_to_end.test_command_line import AS_NOBODY
from forewarn.cli import main
from forewarn.cli.exits import ExitStatus
from forewarn.testing import Emulator, certify, handler_process, namespace
from forewarn.testing.certify import Handler, HandlerVerdict, Result
from forewarn.testing.handler_process import HandlerProcess
from forewarn.testing.wire import HEADER_WARNING
from house.tree import ROOT
from recipes import pages

BROKEN = Path(__file__).with_name("broken_handler.py")
SCENARIOS = {scenario.name: scenario for scenario in certify.SCENARIOS}
needs_other_users = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="only root may become another user"
)


def test_of_any_output_the_end_is_shown(tmp_path: Path) -> None:
    with (tmp_path / "output.log").open("wb") as output:
        output.seek(2**40)
        output.write(b"the end")
    process = HandlerProcess(certify.Handler(("true",)), tmp_path, {})
    assert process.said().endswith("the end")


def test_a_program_that_is_not_there_fails_its_scenarios() -> None:
    [result] = certify.run(Handler(("/no/such/handler",)), [SCENARIOS["approve"]])
    assert result.verdict is HandlerVerdict.FAILED
    assert "/no/such/handler" in result.message


@pytest.mark.parametrize(
    ("body", "coding"),
    [
        ('{"startRequests":[{"eventId":"%s"}]}', "utf-8"),
        ('{"StartRequests":[{"EventId":"%s"}]}', "utf-16"),
        ('{"StartRequests":[{"EventId":"%s","Description":"für"}]}', "latin-1"),
    ],
    ids=["camel case", "UTF-16", "ISO 8859-1"],
)
def test_all_that_the_endpoint_takes_for_an_approval_is_judged(
    body: str, coding: str, tmp_path: Path
) -> None:
    handler = Handler(("true",))
    with Emulator() as emulator:
        machine = emulator.machine("web-0")
        event = emulator.schedule("Reboot", "web-0")
        run = certify.HandlerRun(emulator, HandlerProcess(handler, tmp_path, {}), "web-0", handler)
        answer = requests.post(
            f"{machine.endpoint}{certify.EVENTS}?api-version=2020-07-01",
            headers={"Metadata": "true"},
            data=(body % event.event_id).encode(coding),
            timeout=patience.SECONDS,
        )
        assert (answer.status_code, event.approved_by) == (200, "web-0")
        with pytest.raises(certify.Violation, match="before it drained"):
            run.judge()


@needs_other_users
def test_an_ordinary_user_makes_a_namespace_in_a_user_namespace() -> None:
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    assert python is not None  # the tests' own may be for root alone
    program = Path(namespace.__file__).read_text(encoding="utf-8")
    tried = forked.completed([python, "-I", "-"], input=program, user=65534, group=65534)
    if "Operation not permitted" in tried.stderr or "PermissionError" in tried.stderr:
        pytest.skip("this system lets no ordinary user make namespaces")
    assert tried.returncode == 0, tried.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="network namespaces are Linux's")
def test_an_isolated_handler_reaches_the_ports_that_were_asked_for() -> None:
    try:
        isolated = handler_process.isolation()
    except handler_process.CannotIsolate as error:
        pytest.skip(str(error))
    with serving(lambda *_: message(200, b"the host's own")) as server:
        ask = f"""import os, urllib.request as u
print(u.urlopen('{server.url}').read(), os.environ["FOREWARN_ENDPOINT"])"""
        handler = Handler((sys.executable, "-c", ask), isolated=isolated, ports=(server.port,))
        [result] = certify.run(handler, [SCENARIOS["approve"]])
    assert "the host's own" in result.output
    assert certify.ADDRESS in result.output


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


def test_the_command_prints_verdicts_and_warnings_and_ends_with_their_status(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def ran(fault: str, *options: str) -> tuple[int, str]:
        handler = ("--", sys.executable, str(BROKEN), fault)
        status = main.execute(["certify", "--only", "approve", *options, *handler])
        return status, capsys.readouterr().out

    file = tmp_path / "j.xml"
    status, told = ran("nothing", "--json", "--junit", str(file))
    assert status == ExitStatus.OK
    assert [each["verdict"] for each in json.loads(told)["results"]] == ["passed"]
    suite = ET.parse(file).getroot()
    assert (suite.get("failures"), suite.findall(".//system-err")) == ("0", [])
    status, told = ran("says-true-in-capitals", "--junit", str(file))  # Azure may refuse it
    assert (status, told.count(HEADER_WARNING)) == (ExitStatus.OK, 1)
    assert len(ET.parse(file).findall(".//system-err")) == 1
    status, told = ran("approves-twice")
    assert (status, "POST " in told) == (ExitStatus.NOT_CERTIFIED, True)


def test_a_handler_that_asks_somebody_else_is_told_of_namespaces() -> None:
    handler = Handler(("sleep", "60"), patience_seconds=1.0)
    [result] = certify.run(handler, [SCENARIOS["approve"]])
    assert result.verdict is HandlerVerdict.FAILED
    assert all(word in result.message for word in ("FOREWARN_ENDPOINT", "--namespace"))


def test_braces_that_are_no_placeholders_are_left_alone() -> None:
    command = ("sh", "-c", "f() { true; }; echo ${drained} {printed}", "{undrain}", "{folder}/x")
    assert handler_process.unknown_placeholder(command) == ""


def test_a_handler_that_is_killed_does_not_see_the_end_of_its_drain(tmp_path: Path) -> None:
    crowd = "for i in $(seq 200); do sleep 60 & done"
    command = f'"$0" & d=$!; {crowd}; wait $d; echo > "$FOREWARN_FOLDER/went_on"'
    handler = handler_process.HandlerProcess(
        Handler(("sh", "-c", command, "{drain}")), tmp_path, {}
    )
    handler.order("wait", on=True)
    handler.start()
    patience.until(lambda: len(handler.family()) > 200)
    handler.kill()
    assert not (tmp_path / "went_on").exists()


GENERATIONS = """
import os, signal, sys
folder = os.environ["FOREWARN_FOLDER"]
for number in range(2):
    open(f"{folder}/fork{number}").close()  # waits for who opens it to write
    if os.fork():
        break  # the next generation goes on
    if sys.argv[1] == "own-session":
        os.setsid()
    open(f"{folder}/forked{number}", "w").close()
signal.pause()
"""
"""Each generation forks the next one when a pipe is opened, and lives on."""


class Forking(handler_process.HandlerProcess):
    """A handler of which a process forks another just after somebody has looked who there is."""

    looks = 0
    folder = Path()

    def family(self, state: str = "") -> list[int]:
        found = super().family(state)
        if self.looks < 2:
            (self.folder / f"fork{self.looks}").open("w").close()
            patience.until((self.folder / f"forked{self.looks}").exists)
            self.looks += 1
        return found


@pytest.mark.parametrize("session", ["same-session", "own-session"])
def test_what_a_killed_handler_begins_meanwhile_is_killed_too(tmp_path: Path, session: str) -> None:
    tested = Handler((sys.executable, "-c", GENERATIONS, session))
    handler = Forking(tested, tmp_path, {})
    handler.folder = tmp_path
    for number in range(2):
        os.mkfifo(tmp_path / f"fork{number}")
    handler.start()
    handler.kill()
    assert handler.looks == 2
    mine = f"FOREWARN_FOLDER={tmp_path}".encode()

    def left() -> list[int]:
        environments = Path("/proc").glob("[0-9]*/environ")
        return [int(each.parent.name) for each in environments if mine in _read(each)]

    try:
        patience.until(lambda: not left())  # who is killed takes a moment to end
    finally:
        for pid in left():
            os.kill(pid, signal.SIGKILL)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:  # it has just ended
        return b""


REFUSING = (
    'read mapped; exec sh -ec \'echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"\' sh "$@"'
)
"""Once it is root of its own user namespace, nobody in there can make another one."""


def refused(*arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run Python as an ordinary user of a system that refuses namespaces to all of them."""
    within = ("unshare", "--user", "sh", "-ec", REFUSING, "sh")
    command = (*within, *AS_NOBODY, sys.executable, *arguments)
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


@needs_other_users
def test_who_may_make_no_namespace_is_told_what_to_do_unless_sudo_asks_for_no_password() -> None:
    ended = refused("-m", "forewarn", "certify", "--namespace", "--", "true", PATH="/usr/bin:/bin")
    assert ended.returncode == ExitStatus.REFUSED, ended.stderr
    assert "apparmor_restrict_unprivileged_userns" in ended.stderr
    asked = "from forewarn.testing import handler_process; print(*handler_process.isolation())"
    with tempfile.TemporaryDirectory() as folder:
        sudo = Path(folder, "sudo")
        sudo.write_text('#!/bin/sh\ntest "$1" = -n\n')
        for place in (sudo, sudo.parent):
            place.chmod(0o755)
        ended = refused("-c", asked, PATH=f"{folder}:/usr/bin:/bin")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("sudo -n ")


UNDER_SUDO = """
import sys
from pathlib import Path

import patience
from forewarn.testing import namespace
from forewarn.testing.certify import Handler
from forewarn.testing.handler_process import HandlerProcess

sudo, folder = sys.argv[1:]
isolated = sudo, "-n", sys.executable, "-I", namespace.__file__
asked = Path(folder, "asked")
command = "sh", "-c", f"trap 'exit 3' TERM; : >>{asked}; while :; do sleep 0.1; done"
handler = HandlerProcess(Handler(command, isolated=isolated), Path(folder), {})
for end in (handler.terminate, handler.kill):
    handler.start()
    patience.until(asked.exists)
    asked.unlink()
    end()
    patience.until(lambda: handler.status is not None and not handler.family())
    print(handler.status)
"""


@needs_other_users
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs cc")
def test_a_handler_under_sudo_is_stopped_and_killed_by_its_user() -> None:
    with tempfile.TemporaryDirectory() as folder:
        sudo, own = Path(folder, "sudo"), Path(folder, "own")
        source = Path(__file__).with_name("stand_ins") / "sudo.c"
        subprocess.run(["cc", "-o", sudo, source], check=True)
        for place, mode in ((sudo.parent, 0o755), (sudo, 0o4755), (own, 0o777)):
            own.mkdir(exist_ok=True)
            place.chmod(mode)
        as_root = subprocess.run([*AS_NOBODY, sudo, "-n", "true"], check=False)
        if as_root.returncode != 0:
            pytest.skip("the folder for temporary files lets no program become root")
        script = [*AS_NOBODY, sys.executable, "-c", UNDER_SUDO, str(sudo), str(own)]
        path = {"PYTHONPATH": str(ROOT / "tests"), "HOME": folder}
        ended = forked.completed(script, env=os.environ | path)
    assert (ended.returncode, ended.stdout.split()) == (0, ["3", "-9"]), ended.stderr


WORKFLOW = yaml.safe_load(pages.block("certify", "yaml"))
STEPS = WORKFLOW["jobs"]["certify"]["steps"]
LINES = [step["run"] for step in STEPS if "run" in step]
TOLD = '#!/bin/sh\necho "$(basename "$0") $*" >>"$TOLD"\n'
"""A program that changes nothing, and says how it was called."""


@pytest.mark.soak
@pytest.mark.skipif(
    sys.platform != "linux" or not (shutil.which("curl") and shutil.which("jq")),
    reason="needs Linux, curl and jq",
)
def test_the_lines_of_the_workflow_run_in_a_new_environment(tmp_path: Path) -> None:
    try:
        handler_process.isolation()
    except handler_process.CannotIsolate as error:
        pytest.skip(str(error))
    wheel = installed.built(tmp_path / "dist")
    machine = installed.Machine(tmp_path / "root", wheel, sys.executable)
    place, programs = tmp_path / "checkout", tmp_path / "programs"
    for folder in (place, programs):
        folder.mkdir()
    shutil.copy(ROOT / "docs" / "examples" / "handle.sh", place)
    for name in ("pip", "sudo"):
        (programs / name).write_text(TOLD)
        (programs / name).chmod(0o755)
    path = f"{programs}:{machine.environment}/bin:{os.environ['PATH']}"
    for line in LINES:
        ran = forked.completed(
            ["bash", "-e", "-c", line],
            cwd=place,
            env=os.environ | {"PATH": path, "TOLD": str(tmp_path / "told")},
        )
        assert ran.returncode == 0, (line, ran.stdout, ran.stderr)
    changed = (tmp_path / "told").read_text().splitlines()
    assert changed == [
        "pip install forewarn[testing] @ git+https://github.com/forewarn/forewarn",
        LINES[1],
    ]
    suite = ET.parse(place / "certify.xml").getroot()
    assert suite.get("tests") == str(len(certify.SCENARIOS))
    assert suite.get("failures") == "0"


# Right handlers pass, and each fault of a wrong one is found by the scenario that is for it.

SHELL = ROOT / "docs" / "examples" / "handle.sh"
NEEDS_CURL = pytest.mark.skipif(
    not (shutil.which("curl") and shutil.which("jq")), reason="needs curl and jq"
)
IN_VAIN = {
    *("stays-away", "leaves-no-marks", "asks-by-an-old-version"),
    *("notes-it-beside-the-drain", "drains-beside-its-watch"),
}
"""What such a handler does not do is waited for in vain: until it has asked often enough."""
OFTEN_ENOUGH = 20.0


def requests_so_far(emulator: Emulator) -> float:
    """Count a request as a second, in which a handler could have reacted."""
    emulator.end_waits()
    return float(len(emulator.requests))


def judged(fault: str, *names: str) -> list[Result]:
    chosen = [SCENARIOS[name] for name in names]
    command = (sys.executable, str(BROKEN), fault)
    if fault in IN_VAIN:
        handler = Handler(command, patience_seconds=OFTEN_ENOUGH, patience_clock=requests_so_far)
        return certify.run(handler, chosen)
    # This one asks no more, so no count of requests ends the wait.
    seconds = 20.0 if fault == "waits-for-ever" else patience.SECONDS
    return certify.run(Handler(command, patience_seconds=seconds), chosen)


def told(results: list[Result]) -> list[tuple[str, str]]:
    return [(each.name, each.message) for each in results if each.verdict is HandlerVerdict.FAILED]


EXAMPLES = ROOT / "docs" / "examples"
JSON_DLL = Path("/usr/lib/cli/Newtonsoft.Json-5.0/Newtonsoft.Json.dll")
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


def by_itself(folder: Path, made: Callable[[Path], str], *names: str) -> list[Result]:
    command = ("sh", "-c", f"cd {{folder}} && {made(folder)}")
    chosen = [SCENARIOS[name] for name in names] or certify.SCENARIOS
    return certify.run(Handler(command, patience_seconds=patience.SECONDS), chosen)


FORGETFUL = Path(__file__).with_name("forgetful_handler.py")
REBOOTED = {"rebooted": "has not gone back to work since", "rebooted-early": "drained again"}


def forgetful() -> list[Result]:
    command = ("sh", "-c", f"cd {{folder}} && exec {sys.executable} {FORGETFUL}")
    handler = Handler(command, patience_seconds=OFTEN_ENOUGH, patience_clock=requests_so_far)
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
    ("notes-it-beside-the-drain", "restarted", "did not approve"),
    ("trusts-a-drain-that-was-cut", "restarted", "without draining again"),
    ("drains-beside-its-watch", "drain-is-slow", "after the event and its drain ended"),
    ("drains-at-start", "idle", "no event was announced"),
    ("approves-first", "cancelled", "before it drained"),
    ("asks-by-an-old-version", "preempt", "2017-08-01, which shows no Preempt"),
]
MORE = [
    ("approves-others", "two-events", "other machines"),
    ("approves-twice", "approve", "again after it was confirmed"),
    ("reads-dates", "started", "ended with status 1"),
    ("minds-case", "fault-lower-case", "while its event was still listed"),
    ("leaves-no-marks", "approve", "{drain} or $FOREWARN_DRAIN, or append"),
    ("waits-for-ever", "fault-hanging", "did not approve"),
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


def test_patience_is_for_each_poll_and_not_for_several() -> None:
    polls = certify.HandlerScenario("polls", "", lambda run: run.more_polls(25))
    command = (sys.executable, str(BROKEN), "nothing")
    patient = Handler(command, patience_seconds=OFTEN_ENOUGH, patience_clock=requests_so_far)
    assert told(certify.run(patient, [polls])) == []


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
    ],
)
def test_the_other_handlers_pass_too(tmp_path: Path, made: Callable[[Path], str]) -> None:
    results = by_itself(tmp_path, made)
    assert told(results) == []


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

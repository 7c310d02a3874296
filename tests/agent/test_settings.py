"""The agent's settings: what is refused says in which file, where and why; what rules take."""

import operator
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import reference

import stories
from agent import bench
from agent.bench import event, rule
from client.scripted import without_files
from forewarn.agent import __main__ as program
from forewarn.agent import rules, settings
from forewarn.agent.actions.action import ActionRun
from forewarn.agent.settings import Loaded
from forewarn.cli.exits import ExitStatus
from forewarn.settings import SettingsError

EXAMPLE = """
[[rule]]
name    = "leave the pool for anything that stops us"
match   = { types = ["Reboot", "Redeploy", "Preempt", "Terminate"] }
prepare = [ { ready = { wait_seconds = 20 } }, { service = { stop = "web" } } ]
approve = "when-prepared"            # or "never", "at-once", "when-all-ready"

[[rule]]
name    = "short freezes are nothing"
match   = { types = ["Freeze"], max_duration_seconds = 10 }
approve = "at-once"
"""


def load(
    folder: Path, text: str, *drop_ins: str, platform: str = "linux", **environment: str
) -> Loaded:
    folder.mkdir(exist_ok=True)
    path = folder / "agent.toml"
    path.write_text(text, encoding="utf-8")
    (folder / "agent.d").mkdir(exist_ok=True)
    for number, drop_in in enumerate(drop_ins):
        (folder / "agent.d" / f"{number}.toml").write_text(drop_in, encoding="utf-8")
    return settings.load(path, {"STATE_DIRECTORY": str(folder), **environment}, platform=platform)


def refusal(folder: Path, text: str, *drop_ins: str, platform: str = "linux") -> str:
    with pytest.raises(SettingsError) as refused:
        load(folder, text, *drop_ins, platform=platform)
    return str(refused.value).replace(str(folder), "")


def step(text: str, approve: str = "when-prepared") -> str:
    return f"[[rule]]\nname = 'r'\napprove = '{approve}'\nprepare = [{{ {text} }}]\n"


def test_the_example_is_read_as_it_stands(tmp_path: Path) -> None:
    pool, freezes = load(tmp_path, EXAMPLE).settings.rule
    ready, service = pool.prepare
    assert (ready.kind, service.kind) == ("ready", "service")
    assert (ready.settings.repeatable, service.settings.effect) == (True, "service stop web")
    assert freezes.match.max_duration_seconds == 10
    assert freezes.approve == "at-once"


def test_drop_ins_that_cannot_be_read_are_refused_and_not_passed_over(tmp_path: Path) -> None:
    load(tmp_path, EXAMPLE, EXAMPLE)
    with without_files(), pytest.raises(SettingsError, match=r"agent\.d"):
        settings.load(tmp_path / "agent.toml", {"STATE_DIRECTORY": str(tmp_path)})


class Files:
    """A story so far: a user's folder `forewarn`, whose settings the agent finds by itself."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "forewarn"
        (self.folder / "agent.d").mkdir(parents=True)
        self.environment = {"XDG_CONFIG_HOME": str(folder), "STATE_DIRECTORY": str(folder)}
        self.loaded: Loaded

    def carry_out(self, row: str) -> None:
        told, _, follows = row.partition(" ->")
        verb, words, options = stories.split(told)
        if verb:
            said = getattr(self, verb.replace("-", "_"))(*words, **options) or ""
            found = said.replace(f"{self.folder}/", "").replace(str(self.folder.parent), "")
            place, *parts = follows.strip().split(" | ")
            assert found.startswith(place) if found.startswith("refused ") else found == place
            assert all(part in found for part in parts), found

    def file(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text.replace(" ; ", "\n"), encoding="utf-8")

    def make_folder(self, name: str) -> None:
        (self.folder / name).mkdir()

    def link(self, name: str, to: str) -> None:
        (self.folder / name).symlink_to(self.folder / to)

    def gone(self, *names: str) -> None:
        for name in names:
            (self.folder / name).rename(self.folder.parent / Path(name).name)

    def given(self, name: str, value: str) -> None:
        """Have a variable of the environment."""
        self.environment[name] = value

    def load(self, platform: str = "linux") -> str:
        """Load it, and return the names of the rules, or the refusal."""
        return self._read(lambda: settings.load(None, self.environment, platform=platform))

    def reload(self) -> str:
        return self._read(lambda: settings.load_again(self.loaded, self.environment))

    def _read(self, read: Callable[[], Loaded]) -> str:
        try:
            self.loaded = read()
        except SettingsError as error:
            return f"refused {error}"
        return " ".join(rule.name for rule in self.loaded.settings.rule)

    def files(self) -> str:
        return " ".join(path.name for path in self.loaded.files)

    def origins(self) -> str:
        """Return the file that each rule is of, and how that approves."""
        of = {name: path.name for name, path in self.loaded.origins.items()}
        rules = self.loaded.settings.rule
        return " ".join(f"{rule.name}={of[rule.name]}:{rule.approve}" for rule in rules)

    def has(self, place: str) -> str:
        """Return a setting."""
        return str(operator.attrgetter(place)(self.loaded.settings))


@pytest.mark.parametrize("rows", stories.stories_beside(__file__, "files.txt"))
def test_the_story_of_files_holds(tmp_path: Path, rows: stories.Rows) -> None:
    assert stories.play("files.txt", rows, Files(tmp_path).carry_out)


@pytest.mark.parametrize(("told", "verdict"), stories.lines_beside(__file__, "settings.txt"))
def test_settings_are_taken_or_refused_by_place(tmp_path: Path, told: str, verdict: str) -> None:
    expected, _, fact = verdict.partition("| ")
    kind, _, terms = told.partition(" ")
    place = expected.strip()
    if kind == "rule" and not terms.startswith("="):
        told = f"rule = [{{ name = 'r', {terms} }}]"
    elif not terms.startswith("="):
        told = f"rule = [{{ name = 'r', prepare = [{{ {kind} = {terms} }}] }}]"
        place = f"rule[0].prepare[0].{kind}.{place}".removesuffix(".")
    if expected == "taken":
        load(tmp_path, told)
        return
    said = refusal(tmp_path, told)
    assert said.startswith("/agent.toml: ")
    assert f": {place}: " in said or not place
    assert fact in said


def test_what_only_all_files_together_do_wrong_is_blamed_on_all(tmp_path: Path) -> None:
    half = "".join(f"[[rule]]\nname = 'NAME{number}'\n" for number in range(600))
    said = refusal(tmp_path, half.replace("NAME", "a"), half.replace("NAME", "b"))
    assert said.startswith("/agent.toml and /agent.d/0.toml: rule: ")


def test_the_agent_says_what_is_wrong_and_ends_with_the_status_for_mistakes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "agent.toml"
    path.write_text("margin_seconds = 'long'\n", encoding="utf-8")
    assert program.main(["--config", str(path)]) == ExitStatus.USAGE
    assert f"forewarn: {path}: margin_seconds: " in capsys.readouterr().err


def test_too_many_drop_ins_are_refused(tmp_path: Path) -> None:
    said = refusal(tmp_path, "", *([""] * (settings.MAX_DROP_INS + 1)))
    assert "101" in said


def test_the_table_names_what_an_action_is_told_and_nothing_else() -> None:
    step = msgspec.convert({"command": {"run": ["x"]}}, rules.RuleAction)
    work = ActionRun(bench.begin(step, bench.event()), "web-0", 0.0, print)
    page = reference.page("agent-settings.md")
    rows = re.findall(r"^\| (?:`\$(\w+)` )?\| `(FOREWARN_\w+)` \| `(\w+)` \|", page, re.MULTILINE)
    templates, variables, keys = zip(*rows, strict=True)
    assert list(filter(None, templates)) == list(rules.VARIABLES) == list(work.variables())
    assert list(variables) == list(work.environment())
    assert list(keys) == list(msgspec.json.decode(work.document()))


# Rules.


TABLE = re.compile(r"(\{.*\}) ?(.*)")
CONCERNS = {"me": True, "others": False, "nobody": None}


def said(told: str) -> str | bool:
    """Return what is so by a line of rules.txt."""
    kind, _, rest = told.partition(" ")
    settings, facts = TABLE.fullmatch(rest).groups()  # type: ignore[union-attr]
    terms = tomllib.loads(f"terms = {settings}")["terms"]
    if kind == "match":
        return is_taken(terms, dict(fact.split("=") for fact in facts.split()))
    if kind == "json":
        body = terms.pop("body")
        return msgspec.convert({"url": "http://a", **terms}, rules.HttpSettings).is_json(body)
    step = msgspec.convert(terms, rules.RuleAction)
    if kind == "named":
        return rules.action_name(step)
    return step.settings.undoes if kind == "undoes" else not rules.needs_posix(step)


def is_taken(match: dict[str, Any], facts: dict[str, str]) -> bool:
    """Return whether a rule takes an event of these facts."""
    notice = facts.get("notice", "900")
    seen = event(
        description="Virtual machine is being paused because of a Live Migration.",
        duration_seconds=int(facts.get("duration", "-1")),
        concerns_me=CONCERNS[facts.get("concerns", "me")],
        source=facts.get("source", "Platform") or None,
    )
    wanted = rule(match=match, approve="never")
    return rules.matches(wanted, seen, float(notice) if notice else None)


def test_a_rule_takes_what_it_asks_for_and_an_action_is_what_its_settings_say() -> None:
    for told, expected in stories.lines_beside(__file__, "rules.txt"):
        found = said(told)
        assert found == {"yes": True, "no": False}.get(expected, expected), told


def test_the_first_rule_that_matches_takes_the_event() -> None:
    first, second = rule(name="first"), rule(name="second")
    assert rules.choose((first, second), event(), 900.0) is first
    dropped = rule(name="first", enabled=False)
    assert rules.choose((dropped, second), event(), 900.0) is second


def test_the_last_rule_writes_a_line_and_approves_nothing() -> None:
    for seen in (event(event_type="Freeze"), event(concerns_me=None), event(event_type="New")):
        assert rules.choose((), seen, None) is rules.BUILT_IN
    assert rules.BUILT_IN.approve == "never"
    assert not rules.BUILT_IN.acts
    assert [step.kind for step in rules.BUILT_IN.prepare] == ["log"]


def test_a_rule_acts_that_prepares_or_approves() -> None:
    assert rule(approve="at-once").acts
    assert rule({"ready": {}}, approve="never").acts
    assert not rule({"log": {}}, approve="never").acts
    assert not rule(approve="never").acts


def test_the_choice_may_change_where_the_notice_passes_a_border() -> None:
    borders = (
        rule(match={"min_notice_seconds": 600, "max_notice_seconds": 800}),
        rule(match={"max_notice_seconds": 120}),
        rule(match={"max_notice_seconds": 850}, enabled=False),
    )
    assert rules.next_change_seconds(borders, 900.0) == 100
    assert rules.next_change_seconds(borders, 800.0) == 200
    assert rules.next_change_seconds(borders, 120.0) is None
    assert rules.next_change_seconds(borders, None) is None
    assert rules.next_change_seconds((), 900.0) is None


@pytest.mark.parametrize(
    ("length", "cut"),
    [(rules.COMMAND_LENGTH, False), (rules.COMMAND_LENGTH + 1, True), (4000, True)],
)
def test_a_long_program_is_cut_to_a_lines_length(length: int, *, cut: bool) -> None:
    program = "a" * length
    shown = rules.action_name(rules.RuleAction(command=rules.CommandSettings(run=(program,))))
    assert shown.removeprefix("command ") == (
        f"{program[: rules.COMMAND_LENGTH - 1]}\N{HORIZONTAL ELLIPSIS}" if cut else program
    )

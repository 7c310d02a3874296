"""The stories of this folder, each told by a service of its own.

What the rules make of a verb is proved below, without a service. Here each surface (API, command
line, a form of the page) reaches the plane with what was said (verbs.txt), leaves the same record,
and refuses with the same code (refused_verbs.txt).
"""

from pathlib import Path
from typing import Any

import pytest

from forewarn.clock import ManualClock
from forewarn.server.operator import routing, schemas, table
from server.exchange import Exchanges
from server.running import ME, Cli, Running
from stories import stories_beside

LONG_NAMES = [f"{n:04}{'x' * 76}" for n in range(schemas.MAX_REMOVED)]
BODIES = {
    "long": "h" * 300,
    "blanks": " " * (20 * 1024 * 1024),
    "long_key": {"k" * 10_000: 1},
    "long_tag": {"t" * 257: "y"},
    "blackouts": [{"opens": "2026-03-02T00:00:00Z", "closes": "2026-03-03T00:00:00Z"}] * 101,
    "tags": {f"t{n}": "" for n in range(51)},
    "many_targets": [f"m{n}" for n in range(100_000)],
    "removed": "&".join(["name=a"] * 1001),
    "most": {"machine": [{"name": name} for name in LONG_NAMES]},
    "most_names": "&".join(f"name={name}" for name in LONG_NAMES),
    "no_json": b'{"machine": [], }',
    "cut_short": b'{"machine": [{"name": "a"}',
    "no_text": b'{"machine": [{"name": "\xff"}]}',
    "nothing": b"",
    "nested": b'{"machine": [' + b"[" * 100_000,
    "objects": b'{"machine": [' + b"{}," * routing.MAX_OBJECTS + b"{}]}",
    "members": b'{"machine": [{"tags": {' + b'"t":"",' * 150_000 + b'"t":""}}]}',
    "padded": b"{}" + b" " * table.MAX_BODY,
    "large": {"machine": [{"name": f"m{n}", "host": "h" * 250} for n in range(5_000)]},
}
"""What is too long for a line, or no JSON."""

FILES = sorted(Path(__file__).with_name("stories").glob("*.txt"))
STORIES = [
    pytest.param(path.name, *each.values, id=f"{path.stem} {each.id}")
    for path in FILES
    for each in stories_beside(str(path), path.name)
]


@pytest.mark.parametrize(("name", "rows"), STORIES)
def test_the_story_holds(
    service: Running, clock: ManualClock, cli: Cli, name: str, rows: list[tuple[int, str]]
) -> None:
    story = Exchanges(service, clock, cli)
    token = Path(service.settings.operator.token_file).read_text(encoding="ascii").strip()
    story.bound |= {"its_token": token, "cut": token[:-1], "longer": f"{token}x", **BODIES}
    story.bound["url"] = service.opened.operators[1]
    assert story.play(name, rows)


# Each verb, on each surface.

FORM = {"Content-Type": "application/x-www-form-urlencoded"}
SURFACES = ("api", "cli", "page")


class Surfaces(Exchanges):
    """A story so far, of which the lines of some surfaces are carried out."""

    surfaces: tuple[str, ...] = SURFACES

    def carry_out(self, row: str) -> None:
        verb, _, told = row.partition(" ")
        if verb == "detail":
            (record,) = self.root.get("/v1/audit?limit=1")["records"]
            assert (record["by"], record["outcome"], record["detail"]) == (ME, "done", told)
        elif verb not in SURFACES:
            super().carry_out(row)
        elif verb in self.surfaces and verb == "page":
            self.send(*told.split(" -> "))
        elif verb in self.surfaces:
            super().carry_out(told)

    def send(self, form: str, expected: str) -> None:
        """Send a form of the page: its order, and its fields; a refusal has an alert."""
        order, _, fields = form.partition("?")
        path = f"/page/orders/{order}" if order else "/page/maintenance"
        answer = self.root.ask("POST", path, fields.encode(), FORM)
        if expected.isdigit():
            assert answer.status == int(expected), answer.body
            assert 'role="alert"' in answer.body.decode()
        else:
            assert (answer.status, answer.headers["Location"]) == (303, expected), answer.body

    def run(self, said: str, expected: str) -> None:
        """Run a command; one that is refused says why in a line, and nothing else."""
        if expected in {"refused", "not-found"}:
            expected += " {out: '', err.#: 1}"
        super().run(said, expected)

    def stuck(self, host: str) -> None:
        """The drain of a host gets stuck: an operator cancels the move of web-1."""
        self.carry_out(f"POST /v1/hosts/drain {{hosts: [{host}], reboot: true}}")
        self.carry_out("until GET /v1/events?machine=web-1 -> {events.0.operation: $move}")
        self.carry_out("POST /v1/cancellations {references: [$move]}")
        self.carry_out(f"until GET /v1/hosts/{host} -> {{host.status: stuck}}")

    def everything(self) -> list[Any]:
        """What these verbs may change."""
        places = ("history", "maintenances", "holds", "hosts", "fleet/machines")
        return [{**self.root.get(f"/v1/{place}"), "now": ""} for place in places]


@pytest.fixture
def story(service: Running, clock: ManualClock, cli: Cli) -> Surfaces:
    return Surfaces(service, clock, cli)


@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize("rows", stories_beside(__file__, "verbs.txt"))
def test_each_verb_does_the_same_on_each_surface(
    story: Surfaces, rows: list[tuple[int, str]], surface: str
) -> None:
    story.surfaces = (surface,)
    if any(row.startswith(f"{surface} ") for _, row in rows):
        assert story.play("verbs.txt", rows)


@pytest.mark.parametrize("rows", stories_beside(__file__, "refused_verbs.txt"))
def test_each_surface_refuses_with_the_same_code_and_nothing_changes(
    story: Surfaces, rows: list[tuple[int, str]]
) -> None:
    assert story.play("refused_verbs.txt", rows)

"""The gate's list and its second tries, and the areas of `make prove`."""

import subprocess
from pathlib import Path

import pytest

import proofs
from house import tree


def part(source: str) -> proofs.Run:
    return proofs.Run(("-S", "-c", source), {})


def flaky(folder: Path, name: str) -> proofs.Run:
    """Fail the first time, and pass afterwards."""
    marker = str(folder / name)
    return part(
        f"import os, sys; there = os.path.exists({marker!r}); open({marker!r}, 'w'); "
        "sys.exit(not there)"
    )


@pytest.mark.parametrize(("count", "status"), [(0, 0), (2, 0), (3, 1)])
def test_two_parts_of_the_smoke_test_may_need_a_second_try(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], count: int, status: int
) -> None:
    parts = {f"part{number}": flaky(tmp_path, str(number)) for number in range(count)}
    assert proofs.smoke({**parts, "sound": part("")}, 7, tmp_path) == status
    told = capsys.readouterr().out.splitlines()
    assert [line for line in told if line.startswith("FLAKY")] == [f"FLAKY {p} 7" for p in parts]


def test_what_fails_twice_is_no_break_or_skips_everything_has_failed(tmp_path: Path) -> None:
    parts = {"broken": part("raise SystemExit(3)"), "sound": part("")}
    assert proofs.smoke(parts, 7, tmp_path) == 1
    for run, failed in (
        (part("raise SystemExit(1)")._replace(seen=True), False),
        (part("")._replace(seen=True), True),
        (part("print('== 18 skipped in 1.0s ==')"), True),
        (part("print('== 17 skipped, 1 passed in 1.0s ==')"), False),
    ):
        assert proofs.carry_out("area", [run], 7, tmp_path).failed == failed, run


def test_the_page_of_proofs_keeps_the_last_lines_of_each_area() -> None:
    rows = [f"| {area} | {n} |\n" for n in range(proofs.KEPT + 1) for area in ("relay", "page")]
    head = ["# Proofs\n", "| area | commit |\n", "|---|---|\n"]
    assert proofs.latest("".join(head + rows)) == "".join(head + rows[2:])


def test_what_is_proven_is_there() -> None:
    named = [
        argument.removeprefix("--ignore=")
        for run in (*proofs.SMOKE.values(), *(r for a in proofs.AREAS.values() for r in a.runs))
        for argument in run.arguments
        if "tests/" in argument
    ]
    covered = [path for area in proofs.AREAS.values() for path in area.covers]
    assert named
    assert [path for path in (*named, *covered) if not (tree.ROOT / path).exists()] == []


def test_the_gate_names_tests_and_contributing_the_areas_that_are_there() -> None:
    begins = [begin.partition("::")[0].rstrip("/") for begin in proofs.MUST_RUN]
    assert begins
    assert [begin for begin in begins if not list(tree.ROOT.glob(f"{begin}*"))] == []
    page = (tree.ROOT / "CONTRIBUTING.md").read_text("utf-8")
    rows = "\n".join(line for line in page.splitlines() if line.startswith("| `"))
    assert [area for area in proofs.AREAS if f"`{area}`" not in rows] == []
    subprocess.run(["bash", "-n", str(tree.ROOT / ".ci" / "run")], check=True)

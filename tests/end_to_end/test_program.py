"""The `command` connector in a real service: the operator's program carries maintenance out."""

import json
import sys
from pathlib import Path
from typing import Any

import patience
from end_to_end.running import Running

FLEET = """
[[availability_set]]
name = "web"
update_domains = 2
machines = [{ name = "web-0", host = "h1" }, { name = "web-1", host = "h2" }]
"""
PROGRAM = """\
import json, os, sys
act = json.load(sys.stdin)
with open({log!r}, "a") as log:
    print(json.dumps([act["operation"], act["machine"], os.environ["FOREWARN_HOST"]]), file=log)
if os.environ["FOREWARN_MACHINE"] == "web-1":
    sys.exit("no route to " + os.environ["FOREWARN_HOST"])
print(json.dumps({{"hosts": {{act["machine"]: "h7"}}}}))
"""


def ended(service: Running, operation: str) -> dict[str, Any]:
    def entry() -> dict[str, Any] | None:
        found = service.operator.get("/v1/history")["operations"]
        (entry,) = [one for one in found if one["id"] == operation]
        return None if entry["status"] in {"Scheduled", "Started"} else dict(entry)

    return patience.until(entry)


def test_a_program_moves_machines_and_its_failure_stops_the_walk(tmp_path: Path) -> None:
    log, program = tmp_path / "acts.log", tmp_path / "maintain.py"
    program.write_text(PROGRAM.format(log=str(log)))
    argv = json.dumps([sys.executable, "-I", str(program)])
    service = Running(tmp_path, connector=f"[connector.command]\nprogram = {argv}\n")
    text = service.settings.read_text().replace(
        "[connector.simulated]", '[connector]\nkind = "command"'
    )
    service.settings.write_text(text)
    with service:
        service.apply(FLEET)
        service.document("schedule", "redeploy", "--scope", "web")
        assert service.call("approve", "1.1").returncode == 0
        assert ended(service, "1.1")["status"] == "Completed"
        shown = service.document("fleet", "show", "web-0")
        assert "h7" in json.dumps(shown)
        assert service.call("approve", "1.2").returncode == 0
        failed = ended(service, "1.2")
        assert failed["status"] == "Failed"
        assert "no route to h2" in failed["outcome"]
        acts = [json.loads(line) for line in log.read_text().splitlines()]
        assert acts == [["1.1", "web-0", "h1"], ["1.2", "web-1", "h2"]]

"""The tests' hands in the machine: runs what comes in by a virtio port, and tells what came of it.

One JSON object a line. It begins with the machine's boot id, so the other side knows that it is up;
then {"run": [...], "stdin": ""} is answered by {"status": 0, "stdout": "", "stderr": ""}.
"""

import json
import subprocess
import sys
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
PORTS = Path("/sys/class/virtio-ports")


def main(name: str) -> None:
    (number,) = [
        port.name for port in PORTS.iterdir() if (port / "name").read_text() == name + "\n"
    ]
    with open(f"/dev/{number}", "r+b", buffering=0) as port:  # noqa: PTH123
        port.write(line({"boot": BOOT_ID.read_text().strip()}))
        rest = b""
        while True:
            rest += port.read(65536) or b""
            *asked, rest = rest.split(b"\n")
            port.writelines(line(done(json.loads(each))) for each in asked)


def done(asked: dict[str, object]) -> dict[str, object]:
    ran = subprocess.run(
        asked["run"], input=asked["stdin"], capture_output=True, text=True, check=False
    )
    return {"status": ran.returncode, "stdout": ran.stdout, "stderr": ran.stderr}


def line(told: dict[str, object]) -> bytes:
    return b"\n" + json.dumps(told).encode() + b"\n"


main(sys.argv[1])

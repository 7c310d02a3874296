"""Runs in the machine what comes in by a virtio port, and tells what came of it.

One JSON object a line. {"run": [...], "stdin": ""} is answered by {"boot": "", "status": 0,
"stdout": "", "stderr": ""}. It begins with {"boot": ""} alone: the machine is up, by this boot.
"""

import io
import json
import subprocess
import sys
import threading
from pathlib import Path

BOOT = {"boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip()}
PORTS = Path("/sys/class/virtio-ports")


def main(name: str) -> None:
    (number,) = [
        port.name for port in PORTS.iterdir() if (port / "name").read_text() == name + "\n"
    ]
    with Path("/dev", number).open("r+b", buffering=0) as port:
        answers = io.BufferedWriter(port)  # which writes on where the port takes a part
        tell(answers, BOOT)
        rest = b""
        while True:
            came = port.read(65536)
            if not came:  # nobody is there
                threading.Event().wait(0.1)
                continue
            rest += came
            *asked, rest = rest.split(b"\n")
            for each in asked:
                tell(answers, done(json.loads(each)))


def done(asked: dict[str, object]) -> dict[str, object]:
    ran = subprocess.run(
        asked["run"], input=asked["stdin"], capture_output=True, text=True, check=False
    )
    return {**BOOT, "status": ran.returncode, "stdout": ran.stdout, "stderr": ran.stderr}


def tell(answers: io.BufferedWriter, told: dict[str, object]) -> None:
    answers.write(b"\n" + json.dumps(told).encode() + b"\n")
    answers.flush()


main(sys.argv[1])

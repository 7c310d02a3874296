"""`python -m attacks`: a storm of attacks from a seed, as `make prove AREA=storm` makes it."""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import machine
import networks
from attacks import storm
from seeds import SEED


def main() -> int:
    """Let attackers loose on a service, and print what was wrong; the status is 1 if anything."""
    parser = argparse.ArgumentParser(description="Attack the service at random, and judge it.")
    parser.add_argument("--seconds", type=float, default=25.0, help="how long attackers attack")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--break", dest="broken", default="", choices=["", *storm.BREAKS])
    parser.add_argument("--network", choices=["", "namespaces", "loopback"], default="")
    asked = parser.parse_args()
    if not asked.network:
        print(f"seed {asked.seed}: SEED={asked.seed} repeats its choices", flush=True)
        parting = networks.parting()
        if not parting:
            print("no network namespaces (as root, or as who may have them): all on loopback")
        command = [*parting, sys.executable, "-m", "attacks", *sys.argv[1:], f"--seed={asked.seed}"]
        form = "namespaces" if parting else "loopback"
        return subprocess.run([*command, f"--network={form}"], check=False).returncode
    network = networks.part() if asked.network == "namespaces" else networks.LOOPBACK
    machine.prepare()
    with tempfile.TemporaryDirectory(prefix="forewarn-storm-") as folder:
        outcome = storm.run(network, Path(folder), asked.seed, asked.seconds, asked.broken)
    print(", ".join(f"{name}: {fact}" for name, fact in outcome.facts.items()))
    for sentence in outcome.complaints:
        print(f"- {sentence}")
    print(f"{len(outcome.complaints)} complaints" if outcome.complaints else "Nobody was hindered.")
    return 1 if outcome.complaints else 0


if __name__ == "__main__":
    sys.exit(main())

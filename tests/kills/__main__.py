"""`python -m kills`: the rounds from the command line, as `make prove AREA=kills` runs them."""

import argparse
import sys
import tempfile
from pathlib import Path

from kills import rounds
from seeds import SEED


def main() -> int:
    """Run, print the counts and the complaints; the status is 1 if there are any."""
    parser = argparse.ArgumentParser(description="Kill the service under load, and judge it.")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--fresh", action="store_true", help="start processes anew")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--break", dest="broken", default="", help="one of breaks.toml")
    parser.add_argument("--keep", type=Path, help="keep every log in this folder")
    asked = parser.parse_args()
    print(f"seed {asked.seed}: --seed {asked.seed} repeats its choices", flush=True)
    with tempfile.TemporaryDirectory(prefix="fw-") as made:
        folder = asked.keep or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        outcome = rounds.run(folder, asked.seed, asked.kills, asked.broken, fresh=asked.fresh)
    print(outcome.report)
    wrong = outcome.complaints
    for sentence in wrong:
        print(f"- {sentence}")
    print(f"{len(wrong)} complaints" if wrong else "Nothing was lost, nothing was done twice.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

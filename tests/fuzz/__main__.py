"""Fuzzes the guest plane, led by what each program makes it run; README.md tells how."""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

import structlog


def main() -> int:
    parser = argparse.ArgumentParser(prog="fuzz")
    parser.add_argument("--seconds", type=int, default=600, help="how long (%(default)s)")
    parser.add_argument("--corpus", type=Path, help="where programs that found something new stay")
    parser.add_argument("--replay", type=Path, help="play this one program, and nothing else")
    chosen = parser.parse_args()
    # Nothing of a request that is refused is worth a line here; what is, is a failure.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    if chosen.replay is not None:
        from fuzz import harness

        harness.play(chosen.replay.read_bytes(), asyncio.new_event_loop())
        print("nothing is wrong with it")
        return 0
    try:
        import atheris
    except ImportError:
        print("atheris is missing: pip install atheris (tests/fuzz/README.md)", file=sys.stderr)
        return 2
    with atheris.instrument_imports(include=["forewarn"]):
        from fuzz import harness
    from fuzz import programs

    if chosen.corpus is None:
        chosen.corpus = Path(tempfile.mkdtemp(prefix="forewarn-fuzz-"))
    chosen.corpus.mkdir(parents=True, exist_ok=True)
    for number, program in enumerate(programs.seeds()):
        (chosen.corpus / f"seed-{number:03}").write_bytes(program)
    loop = asyncio.new_event_loop()
    arguments = (
        f"-max_total_time={chosen.seconds}",
        "-max_len=1200",
        "-len_control=20",
        "-timeout=120",
        f"-artifact_prefix={chosen.corpus.parent}/found-",
        str(chosen.corpus),
    )
    print(f"programs are kept in {chosen.corpus}", flush=True)
    atheris.Setup([sys.argv[0], *arguments], lambda program: harness.play(program, loop))
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())

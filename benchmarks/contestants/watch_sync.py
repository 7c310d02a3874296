"""A handler on the library: writes the time at which it is told of each change, first of all."""

import sys
import time

import forewarn

with forewarn.Client(sys.argv[1]) as client:
    for _change in client.watch():
        sys.stdout.write(f"{time.monotonic_ns()}\n")
        sys.stdout.flush()

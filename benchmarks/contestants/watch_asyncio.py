"""A handler on the library, for asyncio: the same."""

import asyncio
import sys
import time

import forewarn


async def main() -> None:
    async with forewarn.AsyncClient(sys.argv[1]) as client:
        async for _change in client.watch():
            sys.stdout.write(f"{time.monotonic_ns()}\n")
            sys.stdout.flush()


asyncio.run(main())

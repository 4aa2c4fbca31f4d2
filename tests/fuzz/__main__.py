"""Many random calls, ours against the stock operator; fails with a program that shows a difference.

The environment says how many (FUZZ_EXAMPLES), which (FUZZ_SEED) and in how many processes
(FUZZ_PROCESSES).
"""

import os
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context

from fuzz.search import Tally
from fuzz.slices import find_fatal_call, search_slice

SLICE = 250  # examples between two lines of progress


def _report(found: str) -> int:
    what, _, script = found.partition("\n\n")
    print(f"{script}\n# {what}\n# The program above shows it.", flush=True)
    return 1


def _print_progress(tally: Tally, seconds: float) -> None:
    counts = ", ".join(f"{count} by {who}" for who, count in sorted(tally.items()))
    print(f"{tally.total()} calls in {seconds:.0f} s; accepted: {counts}", flush=True)


def main() -> int:
    """Returns the exit status: 0 where nothing was found, else 1."""
    examples = int(os.environ.get("FUZZ_EXAMPLES", "20000"))
    first = int(os.environ.get("FUZZ_SEED", str(int(time.time()))))
    processes = int(os.environ.get("FUZZ_PROCESSES", str(os.cpu_count())))
    print(f"{examples} calls, FUZZ_SEED={first}", flush=True)
    sizes = [min(SLICE, examples - start) for start in range(0, examples, SLICE)]
    tally: Tally = Counter()
    begin = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(processes, get_context("spawn")) as pool,
    ):
        # Seeds of neighbouring runs do not overlap.
        slices = [
            pool.submit(search_slice, size, first * 1000 + i, folder)
            for i, size in enumerate(sizes)
        ]
        try:
            for finished in as_completed(slices):
                found = finished.result()
                if isinstance(found, str):
                    pool.shutdown(wait=False, cancel_futures=True)
                    return _report(found)
                tally += found
                _print_progress(tally, time.monotonic() - begin)
        except BrokenProcessPool:
            return _report(find_fatal_call(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Checks that nothing grows with steps: `make growth` takes 10,000 of them on two ranks, some minutes.

Prints what each rank holds after each tenth and fails if the last nine tenths have added 100 objects, a
descriptor or 16 MB: an allocator takes more memory now and then, a leak takes it again and again.
"""

from __future__ import annotations

import sys

import attach_state_jobs as jobs
import pool
from pool import WorkerPool


def main(steps: int) -> int:
    pool.TIMEOUT_S = steps * 0.5
    workers, grown = WorkerPool(), False
    try:
        for rank, found in enumerate(workers.run(2, jobs.tidy, steps, 10)):
            for part, usage in enumerate(found, start=1):
                print(
                    f"rank {rank}, step {part * steps // 10}: {usage.objects} objects, "
                    f"{usage.memory / 1e6:.1f} MB, {usage.descriptors} descriptors"
                )
            first, last = found[0], found[-1]
            grown |= last.memory - first.memory > 16e6 or last.objects - first.objects > 100
            grown |= last.descriptors > first.descriptors
    finally:
        workers.close()
    print("something grows" if grown else "nothing grows")
    return int(grown)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000))

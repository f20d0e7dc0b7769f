"""What checkpoints cost: `python -m benchmarks.checkpoints` times them, at the default interval."""

import argparse
import json
import tempfile
import time
from pathlib import Path

import kedge
from benchmarks.workloads import ALGORITHMS, WORKLOADS
from kedge.runs.live import Watch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", choices=WORKLOADS, default="w1")
    parser.add_argument("--algorithm", choices=ALGORITHMS, default="scaffold-m")
    parser.add_argument("--rounds", type=int, default=600)
    parser.add_argument("--every", default=None, help="as checkpoint_every of simulate")
    options = parser.parse_args()
    work = WORKLOADS[options.workload]
    federation, seen = work.federation(), set()
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "run"

        def watch(done: int, row: object) -> None:
            seen.update(file.name for file in (out / "checkpoint").glob("round-*.json"))

        began = time.perf_counter()
        kedge.simulate(
            work.build(), federation, ALGORITHMS[options.algorithm], options.rounds, work.cohort, work.steps,
            work.batch, eval_every=options.rounds, out=out, callbacks=[Watch(watch)], checkpoint_every=options.every,
        )  # fmt: skip
        seconds = time.perf_counter() - began
        spent = json.loads((out / "summary.json").read_text())["checkpoint_seconds"]
        seen.update(file.name for file in (out / "checkpoint").glob("round-*.json"))
        size = sum(file.stat().st_size for file in (out / "checkpoint").iterdir())
        last = json.loads(max((out / "checkpoint").glob("round-*.json")).read_text())
    print(f"{work.name}, {options.algorithm}, {options.rounds} rounds: {seconds:.1f} s, of which {spent:.2f} s")
    print(f"({spent / seconds:.1%}) in {len(seen)} checkpoints: {', '.join(sorted(seen))}")
    print(f"{size / 1e6:.0f} MB on the disk, {len(last['files'])} files in the last one")


if __name__ == "__main__":
    main()

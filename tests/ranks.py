"""Runs of every algorithm, as one of several processes or alone: `python -m tests.ranks FILE` writes what they came to.

The launcher's variables RANK and WORLD_SIZE, and MASTER_ADDR and MASTER_PORT or KEDGE_SOCKETS, make it one of several.
"""

import os
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

import kedge
from kedge.runs.joining import joined
from kedge.simulator.ranks import current_processes
from tests.cases import CASES
from tests.simulator.test_simulation import model, small
from tests.test_contract import algorithm, cohorts_of, named


def normed() -> nn.Module:
    """Return a model whose buffers are averaged, and which draws random numbers."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.2), nn.ReLU(), nn.Linear(5, 3))


def results(directory: Path) -> dict[str, torch.Tensor]:
    """Run everything; stop each run in the middle and go on from its checkpoint."""
    found = {}
    cases = [(case, cohort, model()) for case in CASES for cohort in cohorts_of(case)]
    cases += [(case, 3, normed()) for case in CASES if case.id == "scaffold-m"]
    for number, (case, cohort, module) in enumerate(cases):
        name = f"{number}-{named(case)}"
        options = {"cohort": cohort, "local_steps": 3, "batch_size": 4, "eval_every": 2, "weights": "size"}
        if cohort is not None:
            options["lost_replies"] = 0.2
        run = {"out": directory / name, "checkpoint_every": 0, "threads": 1, **options}
        data = small(sizes=[12, 7, 9, 12, 5, 8, 10])
        kedge.simulate(module, data, algorithm(case), 2, **run)
        result = kedge.simulate(module, data, algorithm(case), 4, resume=True, **run)
        found |= {f"{name}.{field}": vector for field, vector in result.server.items()}
        found[f"{name}.buffers"] = result.simulation.moment.buffers
        rows = [[row[key] for key in row if key != "seconds"] for row in result.history]
        found[f"{name}.history"] = torch.tensor(rows, dtype=torch.float64)
    return found


def main() -> None:
    """Write the results; of several processes the first one does."""
    torch.set_num_threads(1)
    with joined(), tempfile.TemporaryDirectory() as directory:
        found = results(Path(directory))
        if current_processes().leads:
            save_file({name: vector.contiguous().clone() for name, vector in found.items()}, sys.argv[1])


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()

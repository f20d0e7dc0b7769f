"""Imported by the process from which `tests.faults` forks: what a first round loads lazily is loaded then."""

import torch

import kedge
import kedge.cli

torch.set_num_threads(1)
kedge.simulate(
    kedge.build_model("mlp", (64,), 10), kedge.load_federation("digits", clients=12), kedge.ScaffoldM(eta=0.1),
    rounds=1, cohort=2, local_steps=1, batch_size=4, threads=1,
)  # fmt: skip

"""pfl-research 0.6.0 with PyTorch: `FederatedAveraging`, and `SCAFFOLD` (option II) on request, in one process.

As its tutorials do it: users are made by a function, iterated in slices by pfl's own `Dataset`, no DataLoader. pfl
takes slices in order, so the function that makes a user draws this round's samples, of exactly `steps` batches; one
local epoch is then the workload's K steps (SCAFFOLD of pfl counts in epochs only). Evaluation is off but for iteration
0, which pfl always evaluates: a warm-up round. One process, with torch's threads;
pfl can also share the users out over processes (torch.distributed), which is not timed here.

Shims: none.
"""

import time
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.algorithm.scaffold import SCAFFOLD, SCAFFOLDParams
from pfl.callback.base import TrainingProcessCallback
from pfl.data import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.user_state import InMemoryUserStateStorage
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.peers.common import network, read_workload, report, tensors


class Network(nn.Module):
    """A module with the two methods that pfl asks for."""

    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        self.layers = network(sizes)

    def loss(self, features: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(self.layers(features), labels)

    @torch.no_grad()
    def metrics(self, features: Tensor, labels: Tensor) -> dict[str, Weighted]:
        return {"loss": Weighted(self.loss(features, labels).item() * len(labels), len(labels))}


class Clock(TrainingProcessCallback):
    """Notes when the rounds end."""

    def __init__(self) -> None:
        self.marks: list[float] = []

    def on_train_begin(self, *, model: Any) -> Metrics:
        self.marks.append(time.perf_counter())
        return Metrics()

    def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
        self.marks.append(time.perf_counter())
        return False, Metrics()


def main() -> None:
    work = read_workload()
    features, labels = tensors(work.data)
    random = np.random.default_rng(1)
    waiting: list[int] = []

    def make_user(client: int) -> PyTorchTensorDataset:
        drawn = torch.randperm(work.samples)[: work.steps * work.batch]
        return PyTorchTensorDataset((features[client][drawn], labels[client][drawn]), user_id=str(client))

    def next_user() -> int:
        if not waiting:
            waiting.extend(random.choice(work.clients, work.cohort, replace=False).tolist())
        return waiting.pop()

    module = Network(work.sizes)
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    users = FederatedDataset(make_user, next_user)
    settings = {
        "central_num_iterations": work.rounds,
        "evaluation_frequency": 10**9,
        "train_cohort_size": work.cohort,
        "val_cohort_size": 0,
    }
    if work.algorithm == "fedavg":
        algorithm, parameters = FederatedAveraging(), NNAlgorithmParams(**settings)
    else:
        store = {"user_state_storage": InMemoryUserStateStorage(), "use_gradient_as_control_variate": False}
        algorithm, parameters = SCAFFOLD(), SCAFFOLDParams(population=work.clients, **store, **settings)
    training = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=work.eta, local_batch_size=work.batch)
    clock = Clock()
    algorithm.run(
        parameters,
        SimulatedBackend(training_data=users, val_data=users),
        model,
        training,
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    report(work, clock.marks, "pfl", "torch")


if __name__ == "__main__":
    main()

"""The workloads of the speed benchmark, the loop that people write by hand, and the bare products that bound it."""

import copy
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, cross_entropy

import kedge
from kedge.problem import Federation, build_model


@dataclass(frozen=True)
class Workload:
    name: str
    model: str
    shape: tuple[int, ...]
    clients: int
    cohort: int
    steps: int
    batch: int
    samples: int
    options: dict[str, Any]

    def build(self) -> nn.Module:
        return build_model(self.model, self.shape, 10, **self.options)

    def federation(self) -> Federation:
        generator = torch.Generator().manual_seed(0)
        count = self.clients * self.samples
        features = torch.randn(count, *self.shape, generator=generator)
        labels = torch.randint(0, 10, (count,), generator=generator)
        return Federation.from_indices(features, labels, torch.arange(count).view(self.clients, -1))


WORKLOADS = {
    "w1": Workload("MLP 784-200-10, 10 of 100 clients", "mlp", (784,), 100, 10, 16, 32, 600, {"widths": [200]}),
    "w1-all": Workload("MLP 784-200-10, 100 of 100 clients", "mlp", (784,), 100, 100, 16, 32, 600, {"widths": [200]}),
    "narrow": Workload("MLP 784-64-10, 10 of 100 clients", "mlp", (784,), 100, 10, 16, 32, 600, {"widths": [64]}),
    "w2": Workload(
        "MLP 3072-512-256-10, 10 of 10 clients", "mlp", (3072,), 10, 10, 32, 32, 5000, {"widths": [512, 256]}
    ),
    "cnn": Workload("LeNet on 3x32x32, 10 of 100 clients", "lenet", (3, 32, 32), 100, 10, 16, 32, 500, {}),
    "resnet": Workload("ResNet-18, 1 of 2 clients, 2 steps", "resnet18", (3, 32, 32), 2, 1, 2, 32, 64, {}),
}


def naive_round(work: Workload, federation: Federation, second: bool = False) -> Callable[[], None]:
    """Return a round as written by hand: a copy of the module and an SGD optimiser per client, constants added.

    ``second``: with a second gradient of every minibatch, as variance reduction needs.
    """
    server, before = work.build(), work.build()
    constants = [[1e-3 * torch.randn_like(p) for p in server.parameters()] for _ in range(work.cohort)]
    generator = torch.Generator().manual_seed(1)

    def run() -> None:
        states = []
        for number, client in enumerate(torch.randperm(work.clients, generator=generator)[: work.cohort].tolist()):
            model = copy.deepcopy(server)
            optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
            own = federation.indices[client]
            for _ in range(work.steps):
                batch = own[torch.randint(0, work.samples, (work.batch,), generator=generator)]
                x, y = federation.features[batch], federation.labels[batch]
                optimiser.zero_grad()
                cross_entropy(model(x), y).backward()
                if second:
                    before.zero_grad()
                    cross_entropy(before(x), y).backward()
                    for p, q in zip(model.parameters(), before.parameters(), strict=True):
                        p.grad.sub_(q.grad, alpha=0.9)
                for p, constant in zip(model.parameters(), constants[number], strict=True):
                    p.grad.add_(constant)
                optimiser.step()
            states.append(model.state_dict())
        mean = {name: torch.stack([s[name] for s in states]).float().mean(0) for name in states[0]}
        server.load_state_dict(mean)

    return run


def bare_round(work: Workload, threads: int, turned: bool = False) -> Callable[[], None] | None:
    """Return only the products of a round, each client with its own weights; turned ones have inputs first.

    ``threads`` 1: one client after the other on all cores; else this many clients at once, on one core each.
    """
    if work.model == "mlp":
        jobs = [_mlp_products(work, turned) for _ in range(work.cohort)]
    elif work.model == "lenet" and not turned:
        jobs = [_lenet_products(work) for _ in range(work.cohort)]
    else:
        return None
    pool = ThreadPoolExecutor(threads, initializer=lambda: torch.set_num_threads(1)) if threads > 1 else None

    def run() -> None:
        cores = torch.get_num_threads()
        with torch.no_grad():
            if pool is None:
                for job in jobs:
                    job()
                return
            torch.set_num_threads(1)
            list(pool.map(lambda job: job(), jobs))
            torch.set_num_threads(cores)

    return run


def _linear(batch: int, inputs: int, outputs: int, first: bool, turned: bool = False) -> Callable[[], None]:
    h, delta = torch.randn(batch, inputs), torch.randn(batch, outputs)
    w, dw = ((torch.randn(inputs, outputs).t() if turned else torch.randn(outputs, inputs)) for _ in range(2))
    z, dh = torch.empty(batch, outputs), torch.empty(batch, inputs)

    def run() -> None:
        torch.mm(h, w.t(), out=z)
        torch.mm(delta.t(), h, out=dw)
        if not first:
            torch.mm(delta, w, out=dh)

    return run


def _mlp_products(work: Workload, turned: bool) -> Callable[[], None]:
    sizes = [work.shape[0], *work.options["widths"], 10]
    layers = [_linear(work.batch, a, b, i == 0, turned) for i, (a, b) in enumerate(itertools.pairwise(sizes))]
    return _repeated(layers, work.steps)


def _lenet_products(work: Workload) -> Callable[[], None]:
    layers = [_conv(work.batch, 3, 6, 32, True), _conv(work.batch, 6, 16, 14, False)]
    layers += [_linear(work.batch, a, b, False) for a, b in ((400, 120), (120, 84), (84, 10))]
    return _repeated(layers, work.steps)


def _conv(batch: int, inputs: int, outputs: int, side: int, first: bool) -> Callable[[], None]:
    x = torch.randn(batch, inputs, side, side).to(memory_format=torch.channels_last)
    w = torch.randn(outputs, inputs, 5, 5).to(memory_format=torch.channels_last)
    y: Tensor = conv2d(x, w)
    mask = [not first, True, False]

    def run() -> None:
        conv2d(x, w)
        torch.ops.aten.convolution_backward(y, x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, mask)

    return run


def _repeated(layers: list[Callable[[], None]], steps: int) -> Callable[[], None]:
    def run() -> None:
        for _ in range(steps):
            for layer in layers:
                layer()

    return run


def kedge_round(
    work: Workload, federation: Federation, algorithm: Any, engine: str = "auto"
) -> tuple[Callable[[], None], Any]:
    """Return a round of the simulator, in its steady state, and the simulation."""
    from kedge.simulator import Settings, Simulation

    settings = Settings(cohort=work.cohort, local_steps=work.steps, batch_size=work.batch)
    simulation = Simulation(work.build(), federation, algorithm, settings, engine=engine)
    return simulation.advance, simulation


ALGORITHMS = {
    "fedavg": kedge.FedAvg(eta=0.01),
    "fedavg-m": kedge.FedAvgM(eta=0.01),
    "scaffold-m": kedge.ScaffoldM(eta=0.01),
    "scaffold-m-vr": kedge.ScaffoldMVR(eta=0.01),
}

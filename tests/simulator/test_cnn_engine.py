"""The convolutional engine: the numbers of autograd, without it."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

import kedge
from kedge.problem import Federation
from kedge.simulator.engines.cnn import stages
from tests.simulator.test_engines import gap, play

ENGINES = ("module", "fused-cnn")


def images(blank: bool = False, targets: bool = False) -> Federation:
    generator = torch.Generator().manual_seed(0)
    data = []
    for _ in range(5):
        features = torch.randn(9, 3, 8, 8, generator=generator, dtype=torch.float64)
        if blank:
            features[:, :, 2:] = 0
        labels = torch.randint(0, 4, (9,), generator=generator)
        data.append((features, torch.randn(9, 4, generator=generator).double() if targets else labels))
    return Federation(data)


def network(*between: nn.Module, head: tuple[nn.Module, ...] = (), first: nn.Module | None = None) -> nn.Module:
    """A small network: 3 channels, then 5, then whatever ``between`` makes of them."""
    torch.manual_seed(1)
    layers = [first or nn.Conv2d(3, 5, 3, padding=1), *between, nn.Flatten(), *head]
    shape = nn.Sequential(*layers)(torch.zeros(1, 3, 8, 8)).shape[1]
    return nn.Sequential(*layers, nn.Linear(shape, 4)).double()


NETWORKS = {
    "pooled": lambda: network(nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(5, 8, 3), nn.ReLU()),
    "activated before pooling": lambda: network(nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(5, 6, 2), nn.Tanh()),
    "sigmoid, whose zero is not zero": lambda: network(nn.Sigmoid(), nn.Conv2d(5, 6, 3), nn.Sigmoid()),
    "no bias, strides, dilation": lambda: network(
        nn.ReLU(), nn.Conv2d(5, 4, 3, 2, bias=False), first=nn.Conv2d(3, 5, 3, dilation=2, bias=False)
    ),
    "groups": lambda: network(nn.ReLU(), nn.Conv2d(6, 4, 3, groups=2), first=nn.Conv2d(3, 6, 3, groups=3)),
    "odd pooling": lambda: network(nn.MaxPool2d(3, 2, 1, ceil_mode=True), nn.ReLU()),
    "several linear layers": lambda: network(head=(nn.Linear(320, 7), nn.ReLU(), nn.Linear(7, 6, bias=False))),
    "dropout of rows": lambda: network(
        nn.ReLU(), head=(nn.Dropout(0.3), nn.Linear(320, 7), nn.Tanh(), nn.Dropout(0.5))
    ),
    "dropout of nothing": lambda: network(nn.Dropout(0.0), nn.ReLU(), head=(nn.Dropout(0.0), nn.Dropout(0.5))),
    "pooling first": lambda: network(nn.ReLU(), first=nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(3, 5, 3))),
}


@pytest.mark.parametrize("kind", kedge.ALGORITHMS.values(), ids=lambda kind: kind.__name__)
def test_it_equals_autograd_for_every_algorithm(kind):
    module = NETWORKS["pooled"]()
    one, other = (play(kind(eta=0.05), engine, module, images()) for engine in ENGINES)
    assert gap(one, other) < 1e-12
    assert one.history[-1]["gradients"] == other.history[-1]["gradients"]


@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1, "batch_size": None}], ids=["minibatches", "full, decay"])
@pytest.mark.parametrize("name", NETWORKS)
def test_it_equals_autograd_on_every_network(name, options):
    module = NETWORKS[name]()
    one, other = (play(kedge.ScaffoldMVR(eta=0.05), engine, module, images(), **options) for engine in ENGINES)
    assert gap(one, other) < 1e-12


def test_of_equal_numbers_the_maximum_is_the_one_that_torch_takes():
    # Blank parts of images make windows of equal numbers; ReLU before pooling makes more of them.
    module = NETWORKS["activated before pooling"]()
    one, other = (play(kedge.FedAvgM(eta=0.05), engine, module, images(blank=True)) for engine in ENGINES)
    assert gap(one, other) < 1e-12


def test_it_knows_the_squared_error():
    options = {"module": NETWORKS["pooled"](), "federation": images(targets=True), "loss": mse_loss}
    one, other = (play(kedge.ScaffoldM(eta=0.05), engine, **options) for engine in ENGINES)
    assert gap(one, other) < 1e-12


@pytest.mark.parametrize("name", ["pooled", "dropout of rows"])
def test_the_number_of_threads_changes_no_bit(name):
    module = NETWORKS[name]().float()
    runs = [play(kedge.ScaffoldM(eta=0.05), "auto", module, images(), threads=threads) for threads in (1, 2, 5)]
    for other in runs[1:]:
        for vector in runs[0].server:
            assert torch.equal(runs[0].server[vector], other.server[vector])


@pytest.mark.parametrize(
    "model",
    [
        network(nn.ReLU(), nn.ReLU()),  # the second would overwrite what the first needs
        network(nn.LeakyReLU()),
        network(nn.Dropout(0.4)),  # its numbers depend on the layout of the images
        network(nn.BatchNorm2d(5)),
        network(nn.AvgPool2d(2)),
        network(first=nn.Conv2d(3, 5, 3, padding="same")),
        network(first=nn.Conv2d(3, 5, 3, padding=1, padding_mode="reflect")),
        network(nn.Flatten(2)),
        nn.Sequential(nn.Conv2d(3, 4, 8), nn.Flatten()),  # the output is not that of a linear layer
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.Linear(6, 4)),
    ],
)
def test_what_it_cannot_run_is_left_to_autograd(model):
    assert stages(model, cross_entropy, images()) is None


def test_a_dropout_of_nothing_leaves_the_random_numbers_of_the_process_alone():
    module = network(nn.ReLU(), head=(nn.Dropout(0.0),))
    before = torch.get_rng_state()
    play(kedge.FedAvg(eta=0.1), "fused-cnn", module, images())
    assert torch.equal(torch.get_rng_state(), before)


def test_what_it_runs_is_said():
    with pytest.raises(kedge.UsageError, match="engine is fused-cnn, but it runs only stacks of Conv2d"):
        play(kedge.FedAvg(eta=0.1), "fused-cnn", network(nn.GELU()), images())

"""`measure` against brute force on problems where every constant is computable."""

import math
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd.functional import hessian
from torch.nn.functional import cross_entropy

import kedge
from kedge.theory import measure
from kedge.theory.oracle import power_iteration

CLIENTS, SAMPLES, INPUTS, CLASSES, BATCH = 6, 48, 5, 3, 8


def problem(weight=1.0):
    """Logistic regression on clients that differ in features and labels, at a point that is not special."""
    rng = np.random.default_rng(1)
    clients = []
    for i in range(CLIENTS):
        x = rng.normal(size=(SAMPLES, INPUTS)) * (1 + i / 3) + rng.normal(size=INPUTS)
        clients.append((x, rng.choice(CLASSES, SAMPLES, p=rng.dirichlet([0.3] * CLASSES))))
    torch.manual_seed(0)
    model = nn.Linear(INPUTS, CLASSES).double()
    with torch.no_grad():
        model.weight.mul_(weight)
    return model, kedge.Federation(clients)


def flat(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def loss_of(x, features, labels):
    weight, bias = x[: INPUTS * CLASSES].view(CLASSES, INPUTS), x[INPUTS * CLASSES :]
    return cross_entropy(features @ weight.T + bias, labels)


def gradient(x, *samples):
    return torch.func.grad(loss_of)(x, *samples)


def brute(federation, x):
    """Every constant at a point, by definition."""
    data = [federation.client(i) for i in range(CLIENTS)]
    own = torch.stack([gradient(x, *some) for some in data])
    hessians = torch.stack([hessian(lambda y, some=some: loss_of(y, *some), x) for some in data])
    noise = []
    for (features, labels), mean in zip(data, own, strict=True):
        each = torch.stack([gradient(x, features[j : j + 1], labels[j : j + 1]) for j in range(SAMPLES)])
        spread = (each - mean).square().sum(1).mean()
        noise.append(spread / BATCH * (SAMPLES - BATCH) / (SAMPLES - 1))  # minibatches without replacement
    apart = hessians - hessians.mean(0)
    return {
        "sigma": float(torch.stack(noise).mean().sqrt()),
        "zeta": float((own - own.mean(0)).square().sum(1).mean().sqrt()),
        "L": float(torch.linalg.eigvalsh(hessians).abs().max()),
        "L_mean": float(torch.linalg.eigvalsh(hessians.mean(0)).abs().max()),
        "hessian_dissimilarity": float(torch.linalg.eigvalsh((apart @ apart).mean(0)).max().sqrt()),
        "G0": float(own.square().sum(1).mean()),
        "G": float(own.norm(dim=1).max()),
    }


def least(federation, x):
    """The smallest f, by Newton's method with backtracking."""

    def f(point):
        return torch.stack([loss_of(point, *federation.client(i)) for i in range(CLIENTS)]).mean()

    for _ in range(100):
        g, h = torch.func.grad(f)(x), hessian(f, x) + 1e-9 * torch.eye(len(x))
        step = torch.linalg.solve(h, g)
        while f(x - step) > f(x) and step.norm() > 1e-12:
            step = step / 2
        x = x - step
    return float(f(x))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_every_constant_at_the_start_agrees_with_brute_force(seed):
    model, federation = problem()
    found = measure(model, federation, batch_size=BATCH, seed=seed, points=1)
    expected = brute(federation, flat(model))
    for name, value in expected.items():
        assert getattr(found, name) == pytest.approx(value, rel=0.1), name
    for name in ("zeta", "G0", "G"):
        assert getattr(found, name) == pytest.approx(expected[name], rel=1e-9), name
    for name in ("sigma", "L", "L_mean"):
        low, high = found.intervals[name]
        assert low <= expected[name] * 1.02
        assert expected[name] <= high * 1.02
    assert found.delta == pytest.approx(cross_value(federation, model) - least(federation, flat(model)), rel=0.1)


def cross_value(federation, model):
    return float(torch.stack([loss_of(flat(model), *federation.client(i)) for i in range(CLIENTS)]).mean())


def test_the_largest_value_on_the_trajectory_counts_and_the_first_point_is_the_start():
    model, federation = problem(weight=3.0)
    found = measure(model, federation, batch_size=BATCH)
    assert [at.round for at in found.points] == [0, 5, 10]
    start = brute(federation, flat(model))
    for name in ("sigma", "zeta", "L", "L_mean"):
        assert getattr(found.points[0], name) == pytest.approx(start[name], rel=0.1)
        assert getattr(found, name) == max(getattr(at, name) for at in found.points)
    assert found.points[-1].loss < found.points[0].loss
    assert found.L_sample >= found.L


class Named(nn.Module):
    """Takes its input in two named parts, and returns its scores as `.logits`."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, left, right):
        return {"logits": self.inner(torch.cat([left, right], 1))}


def test_inputs_in_several_parts_are_measured_like_one():
    model, federation = problem()
    clients = [federation.client(i) for i in range(CLIENTS)]
    parts = kedge.Federation([({"left": x[:, :2], "right": x[:, 2:]}, y) for x, y in clients])
    whole, named = (measure(*case, batch_size=8, points=1) for case in ((model, federation), (Named(model), parts)))
    for name in ("L", "sigma", "zeta", "delta"):
        assert getattr(named, name) == pytest.approx(getattr(whole, name), rel=1e-6)


def test_the_constants_of_quadratics_are_found():
    made = kedge.quadratics(8, 10, heterogeneity="large", sigma=3.0, samples=64)
    found = measure(made.model, made.federation, batch_size=16, loss=made.loss)
    assert pytest.approx(made.smoothness, rel=0.03) == found.L
    assert found.L_sample == pytest.approx(made.smoothness, rel=0.03)
    assert found.sigma == pytest.approx(3.0 / 4 * math.sqrt(48 / 63), rel=0.1)
    with torch.no_grad():
        before = float(made.model(made.federation.test[0]).mean())
        made.model.x.copy_(made.optimum)
        after = float(made.model(made.federation.test[0]).mean())
    assert found.delta == pytest.approx(before - after, rel=0.01)
    assert math.isinf(found.intervals["delta"][1])  # such a loss may be negative


def test_whole_batches_have_no_noise_and_weight_decay_adds_curvature():
    model, federation = problem()
    plain = measure(model, federation, batch_size=None, points=1)
    decayed = measure(model, federation, batch_size=None, points=1, weight_decay=2.0)
    assert plain.sigma == decayed.sigma == 0
    assert decayed.L_mean == pytest.approx(plain.L_mean + 2, rel=0.05)


def test_weights_by_size_change_the_objective():
    rng = np.random.default_rng(0)
    clients = [(rng.normal(size=(n, INPUTS)), rng.choice(CLASSES, n)) for n in (8, 80)]
    model = nn.Linear(INPUTS, CLASSES).double()
    found = measure(model, kedge.Federation(clients), batch_size=8, points=1, weights="size")
    pooled = [torch.from_numpy(np.concatenate(parts)) for parts in zip(*clients, strict=True)]
    assert found.points[0].gradient_norm2 == pytest.approx(float(gradient(flat(model), *pooled).square().sum()))


def test_of_many_clients_a_sample_is_measured_with_an_interval():
    rng = np.random.default_rng(0)
    clients = [(rng.normal(size=(8, 3)) + rng.normal(size=3), rng.choice(2, 8)) for _ in range(150)]
    model = nn.Linear(3, 2).double()
    found = measure(model, kedge.Federation(clients), batch_size=4, points=1)
    x = [torch.from_numpy(c[0]) for c in clients]
    own = []
    for features, (_, labels) in zip(x, clients, strict=True):
        loss = cross_entropy(model(features), torch.from_numpy(labels))
        own.append(torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, [*model.parameters()])]))
    exact = float((torch.stack(own) - torch.stack(own).mean(0)).square().sum(1).mean().sqrt())
    low, high = found.intervals["zeta"]
    assert low < exact < high
    assert low < found.zeta < high


def test_a_model_with_dropout_and_batchnorm_is_measured_the_same_twice_and_left_alone():
    torch.manual_seed(0)
    layers = [nn.Linear(INPUTS, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, CLASSES)]
    model = nn.Sequential(*layers).double()
    federation = problem()[1]
    before = pickle.dumps([t.tolist() for t in model.state_dict().values()])
    one, two = (measure(model, federation, batch_size=BATCH, points=1, seed=4) for _ in range(2))
    assert one == two
    assert pickle.dumps([t.tolist() for t in model.state_dict().values()]) == before


def test_the_cost_is_counted_and_measured_constants_give_settings():
    model, federation = problem()
    found = measure(model, federation, batch_size=BATCH, cohort=2, local_steps=4)
    assert found.gradients > 3 * 400  # the minibatches alone
    assert measure(model, federation, batch_size=BATCH, points=1).gradients < found.gradients
    constants = found.constants()
    assert (constants.S, constants.N, constants.K, constants.G0) == (2, CLIENTS, 4, found.G0)
    assert kedge.theory.settings("scaffold-m", found, rounds=100).bound > 0


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"cohort": 7}, "cohort is 7, but the federation has 6 clients"),
        ({"points": 0}, "points is 0, but must be a whole number from 1 to 11"),
        ({"weights": "no"}, "weights is 'no', but must be uniform or size"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_bad_settings_get_a_sentence(wrong, sentence):
    with pytest.raises(kedge.UsageError, match=sentence):
        measure(*problem(), **{"batch_size": BATCH} | wrong)


def test_a_client_with_fewer_samples_than_a_minibatch_has_no_noise():
    model, federation = problem()
    small = kedge.Federation([(x[:4], y[:4]) for x, y in (federation.client(i) for i in range(3))])
    with pytest.warns(match="3 of 3 clients have fewer samples") as said:
        assert measure(model, small, batch_size=BATCH, points=2).sigma < 1e-9
    assert len(said) == 1


def test_a_start_without_a_finite_loss_gets_a_sentence():
    model, federation = problem()
    with torch.no_grad():
        model.weight.fill_(math.inf)
    with pytest.raises(kedge.UsageError, match="the loss at the model's initial parameters is nan"):
        measure(model, federation, batch_size=BATCH)


def test_power_iteration_finds_the_largest_size_and_gives_up_below_a_floor():
    matrix = torch.diag(torch.tensor([1.0, -5.0, 3.0]))
    found = power_iteration(lambda v: matrix @ v, torch.ones(3), steps=100)
    assert found.value == pytest.approx(5.0, rel=1e-3)
    calls = []
    power_iteration(lambda v: calls.append(1) or matrix @ v, torch.ones(3), steps=100, tolerance=0, floor=100)
    assert len(calls) == 4
    assert power_iteration(lambda v: 0 * v, torch.ones(3)).value == 0

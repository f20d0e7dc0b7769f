import copy

import pytest
import torch

from kedge.errors import UsageError
from kedge.problem import quadratics

SPECTRA = {"shared": (0.1, 1.0), "mild": (0.3, 1.0), "large": (0.02, 1.0)}


@pytest.mark.parametrize("heterogeneity", SPECTRA)
def test_the_gradient_of_a_batch_is_the_quadratic_s_plus_its_mean_noise(heterogeneity):
    problem = quadratics(5, 4, heterogeneity=heterogeneity, sigma=2.0, samples=7)
    with torch.no_grad():
        problem.model.x.copy_(torch.arange(4.0, dtype=torch.float64))
    for i in range(5):
        X, y = problem.federation.client(i)
        batch = slice(0, 3)
        problem.model.zero_grad()
        problem.loss(problem.model(X[batch]), y[batch]).backward()
        exact = problem.hessians[i] @ (problem.model.x.detach() - problem.centers[i])
        torch.testing.assert_close(problem.model.x.grad, exact + X[batch, 1:].mean(0), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("heterogeneity", SPECTRA)
def test_the_optimum_has_no_gradient_and_zeta_is_the_spread_of_the_clients_there(heterogeneity):
    problem = quadratics(6, 5, heterogeneity=heterogeneity, sigma=1.0)
    with torch.no_grad():
        problem.model.x.copy_(problem.optimum)
    gradients = []
    for i in range(6):
        X, y = problem.federation.client(i)
        gradients.append(torch.autograd.grad(problem.loss(problem.model(X), y), problem.model.x)[0])
    gradients = torch.stack(gradients)
    assert gradients.mean(0).norm() < 1e-12
    assert float(gradients.square().sum(1).mean().sqrt()) == pytest.approx(problem.zeta, rel=1e-10)
    assert problem.zeta > 0.1


@pytest.mark.parametrize("sigma", [0.0, 0.3, 10.0])
def test_the_noise_of_every_client_has_mean_zero_and_mean_square_sigma_squared(sigma):
    problem = quadratics(3, 4, sigma=sigma, samples=9)
    for i in range(3):
        noise = problem.federation.client(i)[0][:, 1:]
        assert noise.mean(0).abs().max() <= 1e-14 * max(sigma, 1)
        assert float(noise.square().sum(1).mean()) == pytest.approx(sigma**2, rel=1e-12)


@pytest.mark.parametrize("heterogeneity", SPECTRA)
def test_hessians_are_symmetric_with_the_promised_spectrum(heterogeneity):
    low, high = SPECTRA[heterogeneity]
    problem = quadratics(8, 6, heterogeneity=heterogeneity, seed=3)
    spectra = torch.linalg.eigvalsh(problem.hessians)
    torch.testing.assert_close(problem.hessians, problem.hessians.mT, rtol=0, atol=1e-12)
    assert low - 1e-12 <= spectra.min()
    assert spectra.max() <= high + 1e-12
    assert problem.smoothness == pytest.approx(float(spectra.max()))


def test_large_heterogeneity_is_larger_and_shared_has_one_hessian():
    shared, mild, large = (quadratics(heterogeneity=name) for name in SPECTRA)
    assert (shared.hessians == shared.hessians[0]).all()

    def spread(problem):
        return float((problem.hessians - problem.hessians.mean(0)).norm(dim=(1, 2)).mean())

    assert 0 < spread(mild) < spread(large)
    assert large.zeta > 5 * mild.zeta


def test_the_test_loss_is_the_objective():
    problem = quadratics(4, 3, sigma=5.0)
    X, y = problem.federation.test
    offsets = problem.model.x.detach() - problem.centers
    objective = (offsets * (problem.hessians @ offsets.unsqueeze(-1)).squeeze(-1)).sum(1).mean() / 2
    assert problem.loss(problem.model(X), y).item() == pytest.approx(float(objective), rel=1e-12)


def test_the_model_has_one_parameter_in_double_precision_and_no_other_state():
    problem = quadratics(4, 3)
    assert list(problem.model.state_dict()) == ["x"]
    assert problem.model.x.dtype == problem.federation.features.dtype == torch.float64
    assert not problem.model.x.any()
    assert problem.optimum.norm() > 0.1


def test_the_model_can_be_copied_and_cast():
    problem = quadratics(4, 3, sigma=1.0)
    X = problem.federation.features
    twin = copy.deepcopy(problem.model)
    with torch.no_grad():
        twin.x.add_(1)
    assert not problem.model.x.any()
    twin.to(torch.float32)
    assert twin.hessians.dtype == twin.centers.dtype == torch.float32
    assert problem.model.hessians.dtype == torch.float64
    assert twin(X.float()).dtype == torch.float32


def test_the_seed_alone_decides():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = quadratics(3, 3, sigma=1.0, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(7)
    again, other = quadratics(3, 3, sigma=1.0, seed=1), quadratics(3, 3, sigma=1.0, seed=2)
    assert torch.equal(first.optimum, again.optimum)
    assert torch.equal(first.federation.features, again.federation.features)
    assert not torch.equal(first.optimum, other.optimum)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clients": 0}, "clients is 0, but must be a whole number of at least 1"),
        ({"dim": 0}, "dim is 0, but must be a whole number of at least 1"),
        ({"sigma": -1.0}, "sigma is -1.0, but must be finite and at least 0"),
        ({"sigma": 1.0, "samples": 1}, "samples .*is 1, but must be a whole number of at least 2"),
        ({"heterogeneity": "huge"}, "heterogeneity 'huge' does not exist"),
        ({"clients": 10**12}, "quadratics of 1000000000000 clients and dim 20 needs .* PB of memory, but this machine"),
        ({"dim": 10**7}, "quadratics of 10 clients and dim 10000000 needs .* of memory, but this machine has"),
        ({"samples": 10**5000}, "samples .*is a number with about 5000 digits, but must be a whole number from 1 to"),
        ({"dim": -(10**5000)}, "dim is a number with about 5000 digits, but must be a whole number of at least 1"),
        ({"sigma": 10**5000}, "sigma is a number with about 5000 digits, but must be finite and at least 0"),
    ],
)
def test_wrong_requests_are_refused_with_the_rule(options, message):
    with pytest.raises(UsageError, match=message):
        quadratics(**options)

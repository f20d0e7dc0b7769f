"""Engines: different ways to the same numbers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

import kedge
from kedge.problem import Federation
from kedge.runs.live import Watch
from kedge.simulator.engines import ENGINES, TABLE, make_engines, mlp
from kedge.simulator.engines.layers import plan
from tests.simulator.test_simulation import small

CLASSES = torch.tensor([0, 1])


def network(activation=nn.ReLU, dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(1)
    between = [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(4, 6),
        activation(),
        *between,
        nn.Linear(6, 5, bias=False),
        activation(),
        nn.Linear(5, 3),
    ).double()


def play(algorithm, engine="auto", module=None, federation=None, **options):
    settings = {"rounds": 3, "cohort": 3, "local_steps": 4, "batch_size": 4, "eval_every": 3} | options
    if algorithm.full_participation:
        settings["cohort"] = None
    return kedge.simulate(module or network(), federation or small(), algorithm, engine=engine, **settings)


def gap(one, other) -> float:
    vectors = [(one.server[name], other.server[name]) for name in one.server]
    vectors += [(one.client(0)[name], other.client(0)[name]) for name in one.client(0)]
    return max(float((a - b).abs().max() / a.abs().max().clamp(min=1e-3)) for a, b in vectors)


@pytest.mark.parametrize("narrow", [mlp.NARROW, 0], ids=["turned", "not turned"])
@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1}, {"batch_size": None}], ids=["plain", "decay", "full"])
@pytest.mark.parametrize("kind", kedge.ALGORITHMS.values(), ids=lambda kind: kind.__name__)
def test_the_fused_engine_equals_autograd(kind, options, narrow, monkeypatch):
    monkeypatch.setattr(mlp, "NARROW", narrow)
    one, other = (play(kind(eta=0.05), engine, **options) for engine in ("module", "fused-mlp"))
    assert gap(one, other) < 1e-12
    assert one.history[-1]["gradients"] == other.history[-1]["gradients"]


@pytest.mark.parametrize("kind", [kedge.FedAvg, kedge.ScaffoldMVR, kedge.CELSGD], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh, nn.Sigmoid])
def test_the_fused_engine_draws_the_dropout_masks_of_torch(kind, activation):
    one, other = (play(kind(eta=0.05), engine, network(activation, 0.4)) for engine in ("module", "fused-mlp"))
    assert gap(one, other) < 1e-12


def test_a_layer_without_dropout_draws_nothing():
    torch.manual_seed(1)
    layers = [nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Dropout(0.4), nn.Linear(5, 3)]
    module = nn.Sequential(*layers).double()
    one, other = (play(kedge.ScaffoldMVR(eta=0.05), engine, module) for engine in ("module", "fused-mlp"))
    assert gap(one, other) < 1e-12


@pytest.mark.parametrize("loss", [mse_loss, nn.MSELoss()])
def test_the_fused_engine_knows_the_squared_error(loss):
    generator = torch.Generator().manual_seed(0)
    data = [(torch.randn(8, 4, generator=generator), torch.randn(8, 3, generator=generator)) for _ in range(4)]
    settings = {"federation": Federation(data), "loss": loss}
    one, other = (play(kedge.ScaffoldMVR(eta=0.05), engine, **settings) for engine in ("module", "fused-mlp"))
    assert gap(one, other) < 1e-12


@pytest.mark.parametrize("engine", ["module", "fused-mlp"])
@pytest.mark.parametrize("kind", [kedge.ScaffoldM, kedge.FedAvgMVR, kedge.Stem], ids=lambda kind: kind.__name__)
def test_the_number_of_workers_changes_no_bit(kind, engine):
    runs = [play(kind(eta=0.05), engine, network().float(), threads=threads) for threads in (1, 2, 5)]
    for other in runs[1:]:
        for name, vector in runs[0].server.items():
            assert torch.equal(vector, other.server[name])


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(4, 3), nn.ReLU()),  # an activated output
        nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 3)),  # an activation whose backward needs its input
        nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)),
        nn.Sequential(nn.Dropout(0.1), nn.Linear(4, 3)),
        nn.Sequential(nn.Linear(4, 4), nn.Dropout(1.0), nn.Linear(4, 3)),
        nn.Sequential(nn.ReLU(), nn.Linear(4, 3)),
        nn.Bilinear(4, 4, 3),
    ],
)
def test_what_the_fused_engine_cannot_run_is_left_to_autograd(model):
    assert plan(model, cross_entropy, CLASSES) is None


def test_frozen_shared_and_watched_parameters_are_left_to_autograd():
    frozen, shared, *watched = (nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)) for _ in range(5))
    assert plan(frozen, cross_entropy, CLASSES) is not None
    frozen[0].weight.requires_grad_(False)
    shared[2] = shared[0]
    watched[0][0].register_forward_hook(lambda *_: None)
    watched[1].register_forward_hook(lambda *_: None)
    watched[2][2].register_full_backward_pre_hook(lambda *_: None)
    for model in (frozen, shared, *watched):
        assert plan(model, cross_entropy, CLASSES) is None


def test_parameters_in_another_order_or_beside_the_layers_are_left_to_autograd():
    turned, more, own = (nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)) for _ in range(3))
    weight = turned[0].weight
    del turned[0].weight
    turned[0].register_parameter("weight", weight)  # as pruning leaves it: the bias first
    more[1].extra = nn.Parameter(torch.zeros(3))
    own[2].forward = lambda h: 2 * h
    for model in (turned, more, own):
        assert plan(model, cross_entropy, CLASSES) is None


def test_losses_whose_gradient_is_unknown_are_left_to_autograd():
    model = nn.Linear(4, 3)
    assert plan(model, nn.CrossEntropyLoss(), CLASSES) is not None
    assert plan(model, nn.CrossEntropyLoss(label_smoothing=0.1), CLASSES) is None
    assert plan(model, nn.MSELoss(reduction="sum"), torch.zeros(2, 3)) is None
    assert plan(model, mse_loss, torch.zeros(2)) is None
    assert plan(model, lambda output, labels: output.sum(), CLASSES) is None


def test_an_engine_is_named_in_what_it_cannot_do():
    with pytest.raises(kedge.UsageError, match="engine 'quick' does not exist"):
        play(kedge.FedAvg(eta=0.1), "quick")
    with pytest.raises(kedge.UsageError, match="engine is fused-mlp, but it runs only stacks of Linear"):
        play(kedge.FedAvg(eta=0.1), "fused-mlp", nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 3)))


@pytest.mark.parametrize(("eta", "beta"), [(0.1, 0.5), (0.05, 0.1), (0.001, 0.1), (0.001, 0.001)])
def test_control_variables_keep_single_precision_at_small_rates(eta, beta):
    """Found from the displacement, c_i gathers the rounding of x over eta K beta; where that is small, it is summed."""
    exact = play(kedge.ScaffoldM(eta=eta, beta=beta), "module", network()).client(1)["c_i"]
    found = play(kedge.ScaffoldM(eta=eta, beta=beta), "fused-mlp", network().float()).client(1)["c_i"]
    assert float((found - exact).norm() / exact.norm()) < 1e-4


@settings(max_examples=25, deadline=None)
@given(
    inputs=st.integers(1, 40), hidden=st.integers(1, 40) | st.just(mlp.NARROW + 1), batch=st.integers(1, 9),
    steps=st.integers(2, 4), threads=st.integers(2, 6), seed=st.integers(0, 99),
)  # fmt: skip
def test_whom_a_client_is_grouped_with_changes_no_bit(inputs, hidden, batch, steps, threads, seed):
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    data = [
        (torch.randn(9, inputs, generator=generator), torch.randint(0, 3, (9,), generator=generator)) for _ in range(7)
    ]
    module = nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, 3))
    options = {"cohort": 6, "local_steps": steps, "batch_size": batch, "rounds": 2, "eval_every": 2}
    one, other = (
        kedge.simulate(module, Federation(data), kedge.ScaffoldMVR(eta=0.1), threads=count, **options)
        for count in (1, threads)
    )
    assert all(torch.equal(one.server[name], other.server[name]) for name in one.server)


def test_clients_of_a_small_model_are_grouped():
    federation, module = small(), network()
    (engine,) = make_engines("fused-mlp", 1, module, federation, cross_entropy, torch.device("cpu"))
    assert engine.group(4) == mlp.GROUP
    assert engine.group(None) == 1


def normalised(*, affine: bool = True) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6, affine=affine), nn.Tanh(), nn.Linear(6, 3))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_statistics_of_another_dtype_than_the_model_are_averaged(dtype):
    module = normalised(affine=False).to(dtype)
    module[1].float()
    final = play(kedge.FedAvg(eta=0.01), module=module).model[1]
    exact = play(kedge.FedAvg(eta=0.01), module=normalised(affine=False)).model[1]
    assert final.running_mean.dtype == torch.float32
    torch.testing.assert_close(final.running_mean, exact.running_mean, rtol=0.05, atol=0.05)
    torch.testing.assert_close(final.running_var, exact.running_var, rtol=0.05, atol=0.05)
    assert exact.running_mean.abs().min() > 0


def test_parameters_of_several_dtypes_are_refused_by_name():
    mixed = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3).double())
    message = r"the parameter 1\.weight of the model has dtype torch\.float64, but 0\.weight has torch\.float32"
    with pytest.raises(kedge.UsageError, match=message):
        play(kedge.FedAvg(eta=0.1), module=mixed)
    with pytest.raises(
        kedge.UsageError, match=r"the parameter weight of the model has dtype torch\.complex64, but must be"
    ):
        play(kedge.FedAvg(eta=0.1), module=nn.Linear(4, 3, dtype=torch.complex64))


def test_statistics_of_several_dtypes_are_refused_by_name():
    class Counting(nn.Linear):
        def __init__(self):
            super().__init__(4, 3)
            self.register_buffer("seen", torch.zeros((), dtype=torch.float64))

        def forward(self, x):
            self.seen += len(x)
            return super().forward(x)

    message = r"the buffer seen of the model has dtype torch\.float64 and changes in training, but .* torch\.float32"
    with pytest.raises(kedge.UsageError, match=message):
        play(kedge.FedAvg(eta=0.1), module=Counting())


def test_statistics_frozen_by_eval_stay_as_they_are_and_are_used():
    module = normalised()
    module[1].running_mean.fill_(0.3)
    module[1].eval()
    result = play(kedge.FedAvg(eta=0.05), module=module, batch_size=1)  # one sample has no statistics of its own
    assert torch.equal(result.model[1].running_mean, torch.full((6,), 0.3))
    assert not torch.equal(result.model[1].weight, module[1].weight)
    assert module[0].training


def test_a_module_that_freezes_itself_when_it_is_trained_stays_frozen():
    class Own(nn.Sequential):
        def train(self, mode=True):
            super().train(mode)
            self[1].eval()
            return self

    module = Own(*normalised())
    assert module[1].training
    assert torch.equal(play(kedge.FedAvg(eta=0.05), module=module).model[1].running_mean, torch.zeros(6))


def test_a_model_that_is_wholly_in_evaluation_mode_is_trained_as_a_whole():
    one, other = (play(kedge.FedAvg(eta=0.05), module=module) for module in (normalised(), normalised().eval()))
    assert torch.equal(one.server["x"], other.server["x"])
    assert torch.equal(one.model[1].running_mean, other.model[1].running_mean)


def test_a_frozen_dropout_drops_nothing_on_any_engine():
    module = network(dropout=0.4)
    module[3].eval()
    plain, auto = play(kedge.FedAvg(eta=0.05), "module", network()), play(kedge.FedAvg(eta=0.05), "auto", module)
    assert gap(plain, auto) < 1e-12
    with pytest.raises(kedge.UsageError, match="engine is fused-mlp, but it runs only"):
        play(kedge.FedAvg(eta=0.05), "fused-mlp", module)


def test_a_sum_that_overflows_in_half_precision_is_no_divergence():
    module = nn.Linear(4, 30, bias=False).half()
    nn.init.constant_(module.weight, 1000.0)  # the sum is 120,000, beyond float16
    result = play(kedge.FedAvg(eta=0.01), module=module)
    assert result.server["x"].isfinite().all()
    assert not result.server["x"].sum().isfinite()


def test_a_parameter_that_is_not_finite_is_a_divergence():
    with pytest.raises(kedge.DivergedError):
        play(kedge.FedAvg(eta=1e30), "module", network().float())


def test_sparse_gradients_are_those_of_a_dense_embedding():
    generator = torch.Generator().manual_seed(0)
    data = [
        (torch.randint(0, 9, (6, 2), generator=generator), torch.randint(0, 3, (6,), generator=generator))
        for _ in range(4)
    ]
    runs = []
    for sparse in (False, True):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Embedding(9, 4, sparse=sparse), nn.Flatten(), nn.Linear(8, 3))
        runs.append(play(kedge.ScaffoldM(eta=0.05), module=module, federation=Federation(data)))
    assert all(torch.equal(runs[0].server[name], runs[1].server[name]) for name in runs[0].server)


def test_a_client_of_one_sample_under_batch_norm_is_named_before_the_run_starts(tmp_path):
    sizes = [6, 5, 1, 6]
    data = [(torch.randn(size, 4), torch.zeros(size, dtype=torch.int64)) for size in sizes]
    options = {"federation": Federation(data), "module": normalised()}
    seen = []
    message = "client 2 has 1 sample, but BatchNorm needs more than one value per channel to train"
    with pytest.raises(kedge.UsageError, match=message):
        play(kedge.FedAvg(eta=0.1), batch_size=None, callbacks=[Watch(lambda *row: seen.append(row))], **options)
    with pytest.raises(kedge.UsageError, match="batch_size is 1, but BatchNorm needs more than one value per channel"):
        play(kedge.FedAvg(eta=0.1), batch_size=1, **options)
    assert seen == []


def test_one_image_has_values_enough_for_batch_norm():
    data = [(torch.randn(size, 1, 4, 4), torch.zeros(size, dtype=torch.int64)) for size in (3, 1, 2)]
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))
    result = play(kedge.FedAvg(eta=0.1), module=module, federation=Federation(data), batch_size=None)
    assert result.server["x"].isfinite().all()


def test_the_table_of_engines_says_what_each_runs():
    assert ENGINES == ("auto", "fused-mlp", "fused-cnn", "module")
    for kind in TABLE[:-1]:
        with pytest.raises(kedge.UsageError, match=f"engine is {kind.name}, but it runs only {kind.runs}"):
            play(kedge.FedAvg(eta=0.1), kind.name, nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 3)))
    assert play(kedge.FedAvg(eta=0.1), TABLE[-1].name).simulation.computes_with()["engine"] == "module"
    assert play(kedge.FedAvg(eta=0.1), "auto").simulation.computes_with()["engine"] == TABLE[0].name

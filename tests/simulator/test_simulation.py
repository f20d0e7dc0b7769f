"""The simulator keeps its promises whatever the algorithm."""

import gc
import json
import weakref

import numpy as np
import pytest
import torch
from torch import nn

import kedge
from kedge.keyed import draw_minibatches
from kedge.problem import Federation, build_model
from kedge.simulator import Settings, Simulation


def small(clients: int = 6, samples: int = 12, seed: int = 0, sizes: list[int] | None = None) -> Federation:
    rng = np.random.default_rng(seed)
    counts = sizes or [samples] * clients
    data = [(rng.standard_normal((n, 4)).astype(np.float32), rng.integers(0, 3, n)) for n in counts]
    return Federation(data, test=(rng.standard_normal((20, 4)).astype(np.float32), rng.integers(0, 3, 20)))


def with_own_tests(label: int) -> Federation:
    """Return a federation whose clients have test sets, the last with this label."""
    data = small()
    tests = [(torch.zeros(2, 4), torch.tensor([0, 1]))] * 5 + [(torch.zeros(2, 4), torch.tensor([0, label]))]
    return Federation([data.client(i) for i in range(6)], client_tests=tests)


def model(seed: int = 0, **options) -> nn.Module:
    return build_model("mlp", (4,), 3, seed=seed, widths=(5,), **options)


def flat(module: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(module.parameters()).detach()


def play(algorithm=None, module=None, federation=None, **options):
    length = {} if "local_epochs" in options else {"local_steps": 3}
    settings = {"rounds": 4, "cohort": 3, "batch_size": 4} | length | options
    return kedge.simulate(
        module or model(), federation or small(), algorithm or kedge.ScaffoldM(eta=0.1, beta=0.5), **settings
    )


def test_the_model_and_the_global_random_state_are_left_alone():
    module, state = model(dropout=0.5), torch.get_rng_state()
    before = flat(module).clone()
    result = play(module=module)
    assert torch.equal(flat(module), before)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(flat(result.model), before)
    assert torch.equal(flat(result.model), result.server["x"])


@pytest.mark.parametrize("test", [True, False])
def test_the_final_model_is_ready_to_predict(test):
    federation = small()
    federation.test = federation.test if test else None
    assert not play(module=model(dropout=0.5), federation=federation).model.training


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not(dropout):
    runs = [play(module=model(dropout=dropout), seed=seed).server["x"] for seed in (3, 3, 4)]
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def test_fewer_rounds_are_the_beginning_of_more():
    long, short = play(rounds=4), play(rounds=2)
    assert long.cohorts[:2] == short.cohorts
    for early, late in zip(short.history, long.history, strict=False):
        assert {k: v for k, v in early.items() if k != "seconds"} == {k: v for k, v in late.items() if k != "seconds"}


def test_history_has_a_row_per_evaluated_round_and_one_for_the_last():
    result = play(rounds=5, eval_every=2)
    assert [row["round"] for row in result.history] == [2, 4, 5]
    assert set(result.history[0]) == {
        "round", "test_loss", "test_accuracy", "bytes_down", "bytes_up", "gradients", "seconds", "step_norm",
        "train_loss",
    }  # fmt: skip


def test_cohorts_are_drawn_without_replacement_and_everyone_takes_part_without_a_cohort():
    assert all(len(set(cohort)) == 3 for cohort in play().cohorts)
    assert all(sorted(cohort) == list(range(6)) for cohort in play(cohort=None).cohorts)


def test_the_evaluation_is_that_of_the_model():
    federation = small()
    result = play(federation=federation)
    features, labels = federation.test
    output = result.model.eval()(features).detach()
    assert result.history[-1]["test_loss"] == pytest.approx(
        float(nn.functional.cross_entropy(output, labels)), rel=1e-6
    )
    assert result.history[-1]["test_accuracy"] == pytest.approx(float((output.argmax(1) == labels).float().mean()))


def test_clients_are_evaluated_on_their_own_data_when_asked():
    federation = small()
    result = play(federation=federation, eval_clients=True)
    accuracies = []
    for i in range(6):
        features, labels = federation.client(i)
        accuracies.append(float((result.model.eval()(features).argmax(1) == labels).float().mean()))
    row = result.history[-1]
    assert row["clients_accuracy"] == pytest.approx(np.mean(accuracies))
    assert row["clients_accuracy_worst_decile"] == pytest.approx(min(accuracies))


def test_an_ignored_label_of_a_clients_test_set_changes_no_bit_of_the_run():
    plain, ignored = (play(federation=with_own_tests(label), eval_clients=True) for label in (2, -100))
    assert torch.equal(plain.server["x"], ignored.server["x"])
    assert ignored.simulation.loss is nn.functional.cross_entropy


def test_a_run_that_has_ended_answers_questions():
    asked = [play(threads=threads).simulation.ask(kedge.FullGradient()).mean["gradient"] for threads in (1, 2)]
    assert torch.equal(*asked)


def test_weight_decay_is_the_gradient_of_its_quadratic():
    class Decayed(nn.Module):
        """The same network whose output carries the penalty, so that autograd makes the decay."""

        def __init__(self):
            super().__init__()
            self.network = model().double()

        def forward(self, x):
            penalty = sum((p**2).sum() for p in self.network.parameters())
            return self.network(x), penalty

    def loss(output, labels):
        return nn.functional.cross_entropy(output[0], labels) + 0.05 * output[1]

    federation = small()
    for method in (kedge.FedAvgMVR(eta=0.1, beta=0.3), kedge.ScaffoldM(eta=0.1)):
        ours = play(method, model().double(), federation, weight_decay=0.1)
        theirs = play(method, Decayed(), Federation([federation.client(i) for i in range(6)]), loss=loss)
        torch.testing.assert_close(ours.server["x"], theirs.server["x"], rtol=0, atol=1e-12)


def test_local_epochs_give_every_client_its_own_number_of_steps():
    """FedAvg is the plain mean of the local models, FedAvg-M normalises each client by its own steps."""
    federation = small(sizes=[4, 8, 12])
    start = model().double()
    result = play(
        kedge.FedAvg(eta=0.1), start, federation, rounds=1, cohort=None, local_epochs=2, seed=5,
    )  # fmt: skip
    local = []
    for client, steps in enumerate([2, 4, 6]):
        module = model().double()
        (rows,) = draw_minibatches(5, 0, 0, [client], [federation.sizes[client]], [steps], 4)
        features, labels = federation.client(client)
        for row in rows:
            loss = nn.functional.cross_entropy(module(features[row].double()), labels[row])
            grads = torch.autograd.grad(loss, list(module.parameters()))
            with torch.no_grad():
                for p, g in zip(module.parameters(), grads, strict=True):
                    p -= 0.1 * g
        local.append(flat(module))
    torch.testing.assert_close(result.server["x"], torch.stack(local).mean(0), rtol=0, atol=1e-12)
    assert result.history[-1]["gradients"] == 12


def test_size_weights_make_the_objective_that_of_all_samples():
    """With full batches and one step, data-size weights are gradient descent on the pooled data."""
    federation = small(sizes=[3, 6, 12])
    pooled = Federation([(federation.features, federation.labels)])
    run = {"rounds": 3, "cohort": None, "local_steps": 1, "batch_size": None, "module": model().double()}
    weighted = play(kedge.FedAvg(eta=0.1), federation=federation, weights="size", **run)
    together = play(kedge.FedAvg(eta=0.1), federation=pooled, **run)
    torch.testing.assert_close(weighted.server["x"], together.server["x"], rtol=0, atol=1e-12)


def test_size_weights_keep_the_control_variables_consistent():
    federation = small(sizes=[4, 8, 12])
    result = play(kedge.ScaffoldM(eta=0.1, beta=0.5), model().double(), federation, weights="size", cohort=2)
    share = torch.tensor(federation.sizes, dtype=torch.float64) / sum(federation.sizes)
    mean = sum(share[i] * result.client(i)["c_i"] for i in range(3))
    torch.testing.assert_close(result.server["c"], mean, rtol=0, atol=1e-12)


def test_the_second_gradient_sees_the_same_dropout_mask():
    """In the first round x^{-1} = x^0, so with one step the two gradients differ by their weight alone."""
    module = model(dropout=0.5).double()
    run = {"rounds": 1, "local_steps": 1, "cohort": None, "module": module}
    vr = play(kedge.FedAvgMVR(eta=0.1, beta=0.25, opening_batches=0), **run)
    plain = play(kedge.FedAvg(eta=0.025), **run)
    torch.testing.assert_close(vr.server["x"], plain.server["x"], rtol=0, atol=1e-14)


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.out = nn.BatchNorm1d(4), nn.Linear(4, 3)

    def forward(self, x):
        return self.out(self.norm(x))


def test_batch_norm_statistics_are_averaged_apart_and_frozen_in_second_gradients():
    run = {"rounds": 1, "local_steps": 2, "cohort": None, "seed": 2}
    federation = small()
    vr = play(kedge.FedAvgMVR(eta=1e-9, beta=0.5, opening_batches=0), Normed(), federation, **run)
    plain = play(kedge.FedAvg(eta=1e-9), Normed(), federation, **run)
    expected = []
    for client in range(6):
        norm = nn.BatchNorm1d(4)
        (rows,) = draw_minibatches(2, 0, 0, [client], [12], [2], 4)
        for row in rows:
            norm(federation.client(client)[0][row])
        expected.append(norm.running_mean)
    for result in (vr, plain):
        torch.testing.assert_close(result.model.norm.running_mean, torch.stack(expected).mean(0), rtol=0, atol=1e-6)
    assert vr.server["x"].numel() == sum(p.numel() for p in Normed().parameters())


def test_frozen_parameters_stay():
    module = model()
    module[1].weight.requires_grad_(False)
    result = play(module=module)
    assert torch.equal(result.model[1].weight, module[1].weight)
    assert result.server["x"].numel() == flat(module).numel() - module[1].weight.numel()


def test_lost_replies_move_neither_c_i_nor_c():
    result = play(kedge.ScaffoldM(eta=0.1, opening_batches=0), model().double(), lost_replies=0.7, rounds=3)
    states = torch.stack([result.client(i)["c_i"] for i in range(6)])
    torch.testing.assert_close(result.server["c"], states.mean(0), rtol=0, atol=1e-12)
    taken = {client for cohort in result.cohorts for client in cohort}
    heard = {i for i in range(6) if states[i].abs().sum() > 0}
    assert heard < taken


def test_a_round_in_which_nobody_answers_changes_nothing():
    result = play(kedge.FedAvgM(eta=0.1), cohort=1, rounds=3, lost_replies=0.999)
    assert torch.equal(result.server["x"], flat(model()))
    assert result.history[-1]["bytes_up"] == 0
    assert result.history[-1]["bytes_down"] > 0


def test_divergence_says_when_and_why_and_keeps_what_was_recorded(tmp_path):
    with pytest.raises(
        kedge.DivergedError, match=r"FedAvg diverged.*round \d+.*learning rate.*eta is 1e\+18"
    ) as caught:
        play(kedge.FedAvg(eta=1e18), rounds=50, weight_decay=1.0, out=tmp_path / "run")
    rows = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines() if caught.value.result.history else []
    assert [json.loads(row)["round"] for row in rows] == [row["round"] for row in caught.value.result.history]
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["diverged_in_round"] >= 1


def test_a_run_directory_has_metrics_model_and_summary(tmp_path):
    from safetensors.torch import load_file

    result = play(out=tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows == result.history
    saved = load_file(tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(saved[name], value) for name, value in result.model.state_dict().items())
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["round"] == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cohort": 7}, "cohort is 7, but the federation has 6 clients"),
        ({"cohort": 0}, "cohort is 0, but must be a whole number of at least 1"),
        ({"cohort": "all"}, "cohort is 'all', but must be a whole number"),
        ({"rounds": 1.5}, "rounds is 1.5, but must be a whole number"),
        ({"device": "cpux"}, "device is 'cpux', but torch cannot use it"),
        ({"local_epochs": float("inf")}, "local_epochs is inf"),
        ({"federation": [1]}, "federation is .1., but must be a kedge.problem.federation.Federation"),
        ({"algorithm": kedge.FedAvg}, "algorithm is FedAvg, which is a class; pass an object, as in"),
        ({"algorithm": kedge.Stem(eta=0.1), "cohort": None, "lost_replies": 0.1}, "Stem needs every client's reply"),
        ({"algorithm": kedge.Stem(eta=0.1)}, "Stem is defined only for full participation, but cohort is 3 of 6"),
        ({"loss": lambda output, labels: output}, "is not a scalar tensor, but must be one number"),
        ({"rounds": 0}, "rounds is 0"),
        ({"local_steps": 0}, "local_steps is 0"),
        ({"eval_every": 0}, "eval_every is 0"),
        ({"lost_replies": 1.0}, "lost_replies is 1, but must be below 1"),
        ({"weight_decay": -1.0}, "weight_decay is -1.0"),
        ({"weights": "big"}, "weights is 'big'"),
        ({"seed": -1}, "seed is -1"),
        ({"module": nn.Linear(5, 3)}, r"fails on a minibatch of shape \(4, 4\)"),
        ({"module": nn.Linear(4, 2)}, "label 2 is out of range: the model has 2 outputs"),
        ({"module": nn.Linear(4, 2), "loss": nn.CrossEntropyLoss()}, "label 2 is out of range"),
        ({"federation": with_own_tests(7)}, "label 7 is out of range: the model has 3 outputs"),
        ({"module": nn.ReLU()}, "no parameter to train"),
    ],
)
def test_a_wrong_setting_is_one_sentence(change, message):
    with pytest.raises(kedge.UsageError, match=message):
        play(**change)


def test_a_client_that_does_not_exist_is_named():
    with pytest.raises(kedge.UsageError, match="client is 6, but the federation has clients 0 to 5"):
        play().client(6)


def test_full_batches_are_counted_as_the_passes_they_are():
    run = {"module": model(), "cohort": None, "batch_size": None, "rounds": 2}
    assert play(kedge.FedAvg(eta=0.1), **run).history[-1]["gradients"] == 2 * 6 * 3
    storm = play(kedge.MBStorm(eta=0.1, opening_batches=7), **run).history
    assert [row["gradients"] for row in storm] == [6, 6 + 12]


class Tabled(Normed):
    """A model with a constant table of another dtype, and one of its own."""

    def __init__(self):
        super().__init__()
        self.register_buffer("wide", torch.full((4,), 0.1, dtype=torch.float64))
        self.register_buffer("own", torch.full((4,), 0.1))

    def forward(self, x):
        return super().forward(x + self.own + self.wide.float())


def test_constant_buffers_stay_to_the_bit():
    result = play(module=Tabled(), rounds=7)
    assert torch.equal(result.model.wide, Tabled().wide)
    assert torch.equal(result.model.own, Tabled().own)
    assert int(result.model.norm.num_batches_tracked) == 0


def test_an_exchange_without_computation_sends_no_statistics():
    with_statistics = play(kedge.FedGATE(eta=0.1), Normed(), rounds=1)
    size = result_size(with_statistics)
    assert with_statistics.history[-1]["bytes_up"] == 3 * 4 * (size + 8)
    assert with_statistics.history[-1]["bytes_down"] == 3 * 4 * (2 * size + 8)


def result_size(result) -> int:
    return result.server["x"].numel()


def test_counters_are_restored_beyond_single_precision():
    made = kedge.quadratics(clients=3, dim=2)
    one, other = (
        Simulation(made.model, made.federation, kedge.FedAvg(eta=0.1), Settings(cohort=2), made.loss) for _ in range(2)
    )
    spent = {"bytes_down": 2**40 + 1, "bytes_up": 2**33 + 1, "gradients": 2**30 + 1 / 3}
    one.moment = one.moment._replace(**spent)
    other.restore(one.server_state())
    assert {name: getattr(other.moment, name) for name in spent} == spent


@pytest.mark.parametrize("engine", ["module", "fused-mlp"])
def test_a_run_that_nobody_holds_leaves_no_data_in_memory(engine, tmp_path):
    gc.collect()
    gc.disable()  # many runs in one process would keep a data set each until cycles are looked for
    try:
        result = play(engine=engine, out=tmp_path / "run", checkpoint_every=1)
        run = weakref.ref(result.simulation)
        del result
        assert run() is None
    finally:
        gc.enable()


def test_a_row_has_the_length_of_the_last_step():
    clients = [(torch.randn(4, 3), torch.randint(0, 2, (4,))) for _ in range(3)]
    ends = {}
    for rounds in (1, 2, 3):
        torch.manual_seed(0)
        method = kedge.FedAvgM(eta=0.1, beta=0.3)
        ends[rounds] = kedge.simulate(nn.Linear(3, 2), kedge.Federation(clients), method, rounds, None, batch_size=2)
    for rounds in (2, 3):
        step = (ends[rounds].server["x"] - ends[rounds - 1].server["x"]).norm()
        assert ends[rounds].history[-1]["step_norm"] == pytest.approx(float(step))

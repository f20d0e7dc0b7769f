"""What clients do differently in their local steps, and the loss of what they train on."""

import csv
import dataclasses
import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import kedge
from kedge.cli.program import execute
from kedge.errors import RunWarning
from kedge.local_update import LocalUpdate, norms
from kedge.runs.config import check, resolved
from kedge.simulator import Simulation
from tests.cases import CASES
from tests.oracles import QuadraticOracle, saved
from tests.test_contract import BATCH, PROBLEM, SEED, STEPS, algorithm, assert_equal_to, named, start

ROUNDS = 3


def quadratic(case, update, cohort=3, **options):
    cohort = None if kedge.ALGORITHMS[case.id].full_participation else cohort
    return kedge.simulate(
        PROBLEM.model, PROBLEM.federation, algorithm(case), rounds=ROUNDS, cohort=cohort, local_steps=STEPS,
        batch_size=BATCH, loss=PROBLEM.loss, seed=SEED, local_update=update, **options,
    )  # fmt: skip


class Changed:
    """An oracle whose gradients are changed; a pass over all the data is a gradient like any other."""

    def __init__(self, oracle, change):
        self.oracle, self.change, self.clients, self.seed = oracle, change, oracle.clients, oracle.seed

    def grad(self, i, x, r, e, j):
        return self.change(lambda point: self.oracle.grad(i, point, r, e, j), x)

    def full(self, i, x):
        return self.change(lambda point: self.oracle.full(i, point), x)


def clipped(at, x):
    gradient = at(x)
    return gradient * min(1.0, 0.3 / np.linalg.norm(gradient))


def sharp(at, x):
    gradient = at(x)
    return at(x + 0.2 * gradient / np.linalg.norm(gradient))


# A step on the union of several minibatches clips their mean, where the loops clip each: they are compared with one.
SINGLE = [case for case in CASES if case.id not in ("mb-storm", "ce-lsgd", "bvr-l-sgd")]


@pytest.mark.parametrize(
    ("update", "change"), [(kedge.Clip(0.3), clipped), (kedge.SAM(0.2), sharp)], ids=["clip", "sam"]
)
@pytest.mark.parametrize("case", SINGLE, ids=named)
def test_a_changed_gradient_is_the_gradient_of_every_algorithm(case, update, change):
    one = {"opening_batches": 1} if "opening_batches" in case.hyper else {}
    case = dataclasses.replace(case, hyper=case.hyper | one)
    result = quadratic(case, update)
    oracle = Changed(QuadraticOracle(PROBLEM, SEED, BATCH), change)
    assert_equal_to(case, result, case.literal(oracle, start(), result.cohorts, STEPS))


ANY = {case.id: case for case in CASES if kedge.ALGORITHMS[case.id].any_solver}


def test_algorithms_that_average_models_take_any_solver():
    averaging = {"fedavg", "fedprox", "fednova", "feddyn", "fedpd", "slowmo", "server-momentum"}
    assert set(ANY) == averaging | {"fedadagrad", "fedadam", "fedyogi"}


@pytest.mark.parametrize("case", [case for case in CASES if case.id not in ANY], ids=named)
def test_where_the_mean_step_is_taken_for_a_gradient_another_solver_is_refused(case):
    with pytest.raises(
        kedge.UsageError, match=r"local_update is chain\(Clip.*, but its rules take the mean of the local"
    ):
        quadratic(case, [kedge.Clip(1.0), kedge.Adam()])


def torch_steps(optimizer, steps=5):
    """FedAvg of one round, with torch's own optimiser on every client."""
    oracle, ends = QuadraticOracle(PROBLEM, SEED, BATCH), []
    for client in range(oracle.clients):
        x = torch.tensor(start(), requires_grad=True)
        chosen = optimizer([x], client)
        for k in range(steps):
            x.grad = torch.tensor(oracle.grad(client, x.detach().numpy(), 0, 0, k))
            chosen.step()
        ends.append(x.detach())
    return torch.stack(ends).mean(0)


RATES = tuple(0.5 + 0.25 * client for client in range(7))
OPTIMIZERS = {
    kedge.Adam(0.8, 0.9, 1e-3): lambda p, _: torch.optim.Adam(p, 0.05, (0.8, 0.9), 1e-3),
    kedge.AdamW(0.1): lambda p, _: torch.optim.AdamW(p, 0.05, weight_decay=0.1),
    kedge.HeavyBall(0.7): lambda p, _: torch.optim.SGD(p, 0.05, momentum=0.7),
    kedge.ClientRates(RATES): lambda p, client: torch.optim.SGD(p, 0.05 * RATES[client]),
}


@pytest.mark.parametrize("update", OPTIMIZERS, ids=lambda update: type(update).__name__)
def test_local_optimisers_are_those_of_torch(update):
    result = kedge.simulate(
        PROBLEM.model, PROBLEM.federation, kedge.FedAvg(eta=0.05), rounds=1, cohort=None, local_steps=5,
        batch_size=BATCH, loss=PROBLEM.loss, seed=SEED, local_update=update,
    )  # fmt: skip
    torch.testing.assert_close(result.server["x"], torch_steps(OPTIMIZERS[update]), rtol=0, atol=1e-12)


# ---- on a real model: engines, threads, resuming

MODEL = kedge.build_model("mlp", (64,), 10, widths=[8])
FEDERATION = kedge.load_federation("digits", clients=8, partition="dirichlet", alpha=0.5, seed=0)
UPDATES = {
    "clip": kedge.Clip(0.5),
    "sam": kedge.SAM(0.1),
    "adam": kedge.Adam(),
    "rates": kedge.ClientRates(tuple(1 + client / 8 for client in range(8))),
    "personal": kedge.Personal("3."),
    "all": [kedge.Clip(0.5), kedge.SAM(0.1), kedge.AdamW(0.01), kedge.Personal("3.")],
}
RUN = {"rounds": 4, "cohort": 5, "local_steps": 4, "batch_size": 8, "seed": 2}


def play(update, method=None, **options):
    options = RUN | options
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "with personal layers no client has")
        return kedge.simulate(
            options.pop("model", MODEL), FEDERATION, method or kedge.FedAvg(eta=0.05), local_update=update, **options
        )


@pytest.fixture
def tested():
    """A federation with a test set for each client."""
    return kedge.load_federation("digits", clients=8, alpha=0.5, seed=0, client_tests=0.25)


def same(one, other):
    wanted, found = saved(one.simulation), saved(other.simulation)
    return wanted.keys() == found.keys() and all(torch.equal(value, found[name]) for name, value in wanted.items())


def timeless(result):
    return [{key: value for key, value in row.items() if key != "seconds"} for row in result.history]


class Stop:
    """Stops a run in the middle."""

    def on_round(self, run):
        if run.round == 2:
            run.stop()


@pytest.mark.parametrize("name", UPDATES)
def test_the_bits_do_not_depend_on_threads_or_interruptions(name, tmp_path):
    update = UPDATES[name]
    whole = play(update, threads=1)
    for threads in (2, 3, 5):
        other = play(update, threads=threads)
        assert same(whole, other)
        assert timeless(whole) == timeless(other)
    play(update, out=tmp_path / "run", callbacks=[Stop()])
    resumed = play(update, out=tmp_path / "run", resume=True)
    assert same(whole, resumed)
    assert timeless(whole) == timeless(resumed)


@pytest.mark.parametrize("name", UPDATES)
def test_engines_agree(name):
    model = kedge.build_model("mlp", (64,), 10, widths=[8]).double()
    fused, general = (play(UPDATES[name], model=model, engine=engine) for engine in ("fused-mlp", "module"))
    torch.testing.assert_close(fused.server["x"], general.server["x"], rtol=0, atol=1e-10)
    for one, other in zip(fused.history, general.history, strict=True):
        assert one["train_loss"] == pytest.approx(other["train_loss"], abs=1e-10)
        assert one["gradients"] == other["gradients"]


def test_sam_takes_two_gradients_where_the_algorithm_takes_one():
    assert play(kedge.SAM(0.1)).history[-1]["gradients"] == 2 * play(None).history[-1]["gradients"]


def test_a_personal_head_stays_with_its_client_and_costs_no_bytes():
    head = sum(p.numel() for name, p in MODEL.named_parameters() if name.startswith("3."))
    initial = torch.cat([p.detach().flatten() for p in MODEL.parameters()])
    for method in (kedge.FedAvg(eta=0.1), kedge.ScaffoldM(eta=0.1), kedge.FedAdam(eta=0.1), kedge.Mime(eta=0.1)):
        result, plain = play(kedge.Personal("3."), method), play(None, method)
        assert torch.equal(result.server["x"][-head:], initial[-head:])
        assert not torch.equal(result.server["x"][:-head], initial[:-head])
        own = [result.client(client)["personal"] for client in result.cohorts[-1]]
        assert all(len(vector) == head for vector in own)
        assert not torch.equal(own[0], own[1])
        shared = 1 - head / len(initial)
        for row, other in zip(result.history, plain.history, strict=True):
            assert row["bytes_up"] == round(other["bytes_up"] * shared)
            assert row["bytes_down"] == round(other["bytes_down"] * shared)


def test_a_client_that_is_alone_learns_its_head_as_if_it_were_shared():
    alone = {"cohort": 1, "rounds": 1}
    shared, personal = play(None, **alone), play(kedge.Personal("3."), **alone)
    (client,) = personal.cohorts[0]
    head = personal.client(client)["personal"]
    together = torch.cat([personal.server["x"][: -len(head)], head])
    torch.testing.assert_close(together, shared.server["x"], rtol=1e-5, atol=1e-6)


def test_the_model_of_a_client_has_its_own_head():
    result = play(kedge.Personal("3."))
    client = result.cohorts[-1][0]
    model = result.simulation.client_model(client)
    found = torch.cat([p.flatten() for name, p in model.named_parameters() if name.startswith("3.")])
    assert torch.equal(found, result.client(client)["personal"])


@pytest.mark.parametrize("update", [kedge.Personal("3."), [kedge.Clip(1.0), kedge.Personal("3.")]])
def test_with_personal_layers_each_clients_own_model_is_evaluated_on_its_own_test_set(update, tested):
    with pytest.warns(RunWarning, match="no client has the server's model: each client's own is evaluated") as said:
        result = kedge.simulate(MODEL, tested, kedge.FedAvg(eta=0.1), local_update=update, **RUN)
    assert len(said) == 1
    row = result.history[-1]
    assert not any(name.startswith("test_") for name in row)
    right = []
    for client in range(len(tested)):
        features, labels = tested.client_tests.client(client)
        outputs = result.simulation.client_model(client)(features)
        right.append(float((outputs.argmax(1) == labels).double().mean()))
    assert row["clients_test_accuracy"] == pytest.approx(sum(right) / len(right))
    assert [each["accuracy"] for each in result.evaluate_clients()] == pytest.approx(right)
    with pytest.raises(kedge.UsageError, match="evaluate_clients evaluates each client's own"):
        result.simulation.evaluate()


def test_without_test_sets_of_their_own_the_run_says_what_to_do():
    run = {"local_update": kedge.Personal("3."), **RUN}
    with pytest.warns(RunWarning, match=r"nothing is evaluated; give the clients their own test sets \(client_tests\)"):
        row = kedge.simulate(MODEL, FEDERATION, kedge.FedAvg(eta=0.1), **run).history[-1]
    assert not any("accuracy" in name or name == "test_loss" for name in row)
    with pytest.warns(RunWarning, match="each client's own is evaluated, on the data that it trains on"):
        row = kedge.simulate(MODEL, FEDERATION, kedge.FedAvg(eta=0.1), eval_clients=True, **run).history[-1]
    assert "clients_accuracy" in row
    with pytest.raises(kedge.UsageError, match="metrics is given, but with personal layers no client has"):
        kedge.simulate(MODEL, FEDERATION, kedge.FedAvg(eta=0.1), metrics={"own": lambda outputs, targets: 0.0}, **run)


def test_a_clients_own_layers_that_diverge_end_the_run(tested):
    run = {"local_update": kedge.Personal("3."), **RUN}
    with pytest.warns(RunWarning, match="personal"), pytest.raises(kedge.DivergedError):
        kedge.simulate(MODEL, tested, kedge.FedAvg(eta=1e30), **run)


def test_personal_layers_are_evaluated_alike_from_the_command_line_and_in_two_processes(tmp_path, capsys):
    options = ["--local-update", "Personal('3.')", "--client-tests", "0.25", "--clients", "8", "--cohort", "3"]
    options += ["--rounds", "2", "--local-steps", "2", "--batch-size", "4", "--widths", "8", "--eval-every", "1"]
    for workers in ("1", "2"):
        out = str(tmp_path / workers)
        assert execute(["run", *options, "--algorithm", "scaffold", "--workers", workers, "--out", out]) == 0
    one, two = (kedge.read_run(tmp_path / workers).rows for workers in ("1", "2"))
    assert "clients_test_accuracy_worst_decile" in one[-1]
    assert [{k: v for k, v in row.items() if k != "seconds"} for row in one] == [
        {k: v for k, v in row.items() if k != "seconds"} for row in two
    ]
    assert "rounds: mean clients test loss" in capsys.readouterr().out
    many = [*options, "--jobs", "1", "--seeds", "2"]
    assert execute(["compare", *many, "--algorithms", "fedavg,scaffold", "--out", str(tmp_path / "both")]) == 0
    printed = capsys.readouterr()
    assert printed.err.count("each client's own is evaluated, on its own test set") == 1
    with (tmp_path / "both" / "summary.csv").open(newline="") as table:
        assert all(float(row["final_clients_test_accuracy"]) > 0 for row in csv.DictReader(table))
    assert "clients test accuracy" in (tmp_path / "both" / "curves.svg").read_text()
    grid = ["sweep", *many, "--grid", "algorithm.eta=0.01,0.1", "--out", str(tmp_path / "grid")]
    assert execute(grid) == 2
    assert "metric is test_accuracy, but with personal layers only the clients' own" in capsys.readouterr().err
    assert execute([*grid, "--metric", "clients_test_accuracy"]) == 0
    assert "Best: --set algorithm.eta=" in capsys.readouterr().out


def test_questions_outside_the_rounds_get_true_gradients():
    asked = []

    class Ask:
        def on_start(self, run):
            asked.append(run.ask(kedge.FullGradient()).mean)

    play(None, callbacks=[Ask()])
    play([kedge.Clip(1e-6), kedge.Adam()], callbacks=[Ask()])
    for name, vector in asked[0].items():
        assert torch.equal(vector, asked[1][name])


# ---- the loss of the minibatches


def test_the_training_loss_is_the_mean_over_the_minibatches_at_the_local_models():
    seen = []

    def loss(output, target):
        value = nn.functional.cross_entropy(output, target)
        if torch.is_grad_enabled() and value.requires_grad:
            seen.append(float(value.detach()))
        return value

    result = play(None, rounds=1, loss=loss, engine="module", threads=1)
    count = RUN["cohort"] * RUN["local_steps"]
    assert result.history[0]["train_loss"] == pytest.approx(np.mean(seen[-count:]), rel=1e-6)
    assert result.history[0]["train_loss"] == pytest.approx(play(None, rounds=1).history[0]["train_loss"], rel=1e-5)


@pytest.mark.parametrize("name", kedge.ALGORITHMS)
def test_every_algorithm_reports_it_and_measuring_changes_no_bit(name):
    method = kedge.ALGORITHMS[name](eta=0.05)
    cohort = None if method.full_participation else 3
    options = {"cohort": cohort, "rounds": 3, "local_steps": 3}
    often, seldom = play(None, method, **options), play(None, method, eval_every=3, **options)
    assert same(often, seldom)
    assert often.history[-1]["train_loss"] == seldom.history[-1]["train_loss"]
    # MB-STORM's opening is its first round: it has no minibatch of its own.
    losses = [row["train_loss"] for row in often.history if "train_loss" in row]
    assert len(losses) >= 2
    assert all(0 < value < 5 for value in losses)


def test_a_convolutional_engine_and_a_squared_error_report_it_too():
    images = torch.rand(40, 1, 6, 6)
    labels = torch.randint(0, 3, (40,))
    federation = kedge.Federation(clients=[(images[:20], labels[:20]), (images[20:], labels[20:])])
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3))
    options = {"rounds": 2, "cohort": 2, "local_steps": 2, "batch_size": 4}
    losses = [
        kedge.simulate(model, federation, kedge.FedAvg(eta=0.1), engine=engine, **options).history[-1]["train_loss"]
        for engine in ("fused-cnn", "module")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    points = kedge.Federation(clients=[(torch.rand(9, 3), torch.rand(9, 2))])
    linear = nn.Linear(3, 2)
    squares = [
        kedge.simulate(
            linear, points, kedge.FedAvg(eta=0.1), loss=nn.MSELoss(), engine=engine, **options | {"cohort": None}
        ).history[-1]["train_loss"]
        for engine in ("fused-mlp", "module")
    ]
    assert squares[0] == pytest.approx(squares[1], rel=1e-5)


def test_a_round_that_is_not_measured_has_none():
    simulation = Simulation(MODEL, FEDERATION, kedge.FedAvg(eta=0.1), kedge.Settings(cohort=3, batch_size=8))
    simulation.advance()
    assert math.isnan(simulation.train_loss)
    simulation.advance(measured=True)
    assert simulation.train_loss > 0


# ---- configuration and mistakes


def test_a_configuration_names_local_updates(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ["--clients", "10", "--cohort", "3", "--rounds", "2", "--algorithm", "fedavg"]
    assert execute(["run", *options, "--local-update", "chain(Clip(1.0), Adam(beta1=0.8))", "--out", "a"]) == 0
    config = check({"run": {"local_update": ["Clip(1.0)", "Adam(beta1=0.8)"]}, "algorithm": {"name": "fedavg"}})
    text = resolved(config)["run"]["local_update"]
    assert text == "chain(Clip(norm=1.0), Adam(beta1=0.8, beta2=0.999, eps=1e-08))"
    assert f'local_update = "{text}"' in (tmp_path / "a" / "config.toml").read_text()
    assert check({"run": {"local_update": text}, "algorithm": {"name": "fedavg"}}).run == config.run
    assert execute(["run", "a/config.toml", "--out", "b"]) == 0
    rows = [kedge.read_run(tmp_path / name).rows for name in ("a", "b")]
    assert [row["test_loss"] for row in rows[0]] == [row["test_loss"] for row in rows[1]]
    play("Clip(1.0)", out=tmp_path / "c", callbacks=[Stop()])
    with pytest.raises(kedge.UsageError, match=r"local update is 'Clip\(norm=1\.0\)' there, but 'SAM"):
        play("SAM(0.1)", out=tmp_path / "c", resume=True)


@dataclasses.dataclass(frozen=True)
class Wrong(LocalUpdate):
    """Clips by the norm of the whole group."""

    def gradient(self, x, at):
        gradient = at(x)
        return gradient / gradient.norm()


@pytest.mark.parametrize(
    ("update", "message"),
    [
        ("Clop(1.0)", "local update 'Clop' does not exist; did you mean 'Clip'"),
        ("Clip()", "local update Clip was given the wrong arguments: .*Clip.* missing 1 required"),
        ("Clip(0)", "norm of Clip is 0, but must be finite and above 0"),
        ("Adam(beta1=1)", "beta1 of Adam is 1, but must be finite and at least 0 and below 1"),
        ("Clip('a')", "norm of Clip is 'a', but must be finite and above 0"),
        (3, "local_update is 3, but must be one of Clip, SAM"),
        (kedge.ClientRates((1.0,)), "ClientRates has 1 factors, but there is a client"),
        (kedge.Personal("head"), "parameters that begin with 'head', but none of the model's do: 1.weight"),
        (kedge.Personal(""), "but all of the model's do"),
        ([kedge.Personal("3."), kedge.Personal("1.")], "two local updates keep 'personal'"),
        (Wrong(), r"Wrong gives two clients together .*norm\(dim=-1, keepdim=True\)"),
    ],
)
def test_a_wrong_local_update_is_one_sentence(update, message):
    with pytest.raises(kedge.UsageError, match=message):
        play(update)


def test_a_negative_rate_is_named():
    with pytest.raises(kedge.UsageError, match=r"factor 1 of ClientRates is -1\.0"):
        kedge.ClientRates((1.0, -1.0))


def test_norms_are_those_of_each_row_to_the_bit():
    rows = torch.randn(5, 1003)
    together = norms(rows)
    assert together.shape == (5, 1)
    for number, row in enumerate(rows):
        assert torch.equal(together[number], norms(row[None])[0])
        assert torch.equal(together[number], norms(row))

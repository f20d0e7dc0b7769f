"""Hyper-parameters that change from round to round."""

import copy
import dataclasses
import pickle
import tomllib

import numpy as np
import pytest

import kedge
from kedge import schedules
from kedge.cli.program import execute
from kedge.forming import formed
from kedge.runs.config import algorithm_of, check, resolved, run_config
from kedge.schedules import Schedule
from tests.cases import CASES
from tests.oracles import QuadraticOracle
from tests.test_contract import BATCH, PROBLEM, SEED, STEPS, assert_equal_to, cohorts_of, named, start

ROUNDS = 6


class Clock(list):
    """Cohorts that know which round a loop has reached."""

    round = 0

    def __iter__(self):
        for self.round, cohort in enumerate(list.__iter__(self)):  # noqa: B020
            yield cohort


class Varying:
    """A number whose value is that of the clock's round; with numbers it makes others like it, with arrays, arrays."""

    __array_ufunc__ = None  # numpy then leaves arithmetic to this class

    def __init__(self, clock, value):
        self.clock, self.value = clock, value

    def now(self):
        return self.value(self.clock.round)

    def _with(self, other, combine):
        if isinstance(other, np.ndarray):
            return combine(self.now(), other)
        value = other.value if isinstance(other, Varying) else lambda _: other
        return Varying(self.clock, lambda r: combine(self.value(r), value(r)))

    def __mul__(self, other):
        return self._with(other, lambda a, b: a * b)

    def __truediv__(self, other):
        return self._with(other, lambda a, b: a / b)

    def __rtruediv__(self, other):
        return self._with(other, lambda a, b: b / a)

    def __sub__(self, other):
        return self._with(other, lambda a, b: a - b)

    def __rsub__(self, other):
        return self._with(other, lambda a, b: b - a)

    def __add__(self, other):
        return self._with(other, lambda a, b: a + b)

    def __pow__(self, power):
        return self._with(power, lambda a, b: a**b)

    __rmul__, __radd__ = __mul__, __add__


FIXED = {"skip", "b", "tau"}  # tau is also the server's first state
SHAPES = {
    "eta": lambda value: schedules.cosine(value, value / 5, rounds=ROUNDS),
    "beta": lambda value: schedules.step(value, 0.5, every=2),
    "gamma": lambda value: schedules.warmup(value, rounds=4),
}


def scheduled(hyper):
    """Every number of a case as a schedule."""
    shape = {**dict.fromkeys(hyper, SHAPES["beta"]), **SHAPES}
    return {
        name: shape[name](value) if isinstance(value, float) and name not in FIXED else value
        for name, value in hyper.items()
    }


RUNS = [pytest.param(case, cohort, id=f"{named(case)}-{cohort}") for case in CASES for cohort in cohorts_of(case)]


@pytest.mark.parametrize(("case", "cohort"), RUNS)
def test_every_algorithm_equals_its_literal_loop_with_the_hyper_parameters_of_each_round(case, cohort):
    hyper = scheduled(case.hyper)
    result = kedge.simulate(
        PROBLEM.model, PROBLEM.federation, kedge.ALGORITHMS[case.id](**hyper), rounds=ROUNDS, cohort=cohort,
        local_steps=STEPS, batch_size=BATCH, loss=PROBLEM.loss, seed=SEED,
    )  # fmt: skip
    clock = Clock(list(result.cohorts))
    varying = {name: Varying(clock, value) if isinstance(value, Schedule) else value for name, value in hyper.items()}
    literal = dataclasses.replace(case, hyper=varying).literal(
        QuadraticOracle(PROBLEM, SEED, BATCH), start(), clock, STEPS
    )
    assert_equal_to(case, result, literal)


QUICK = {"scaffold-m": {"beta": 0.7}, "scaffold-m-vr": {"beta": 0.7}, "feddyn": {"alpha": 1.0}}
EXACT = ["scaffold", "scaffold-m", "scaffold-m-vr", "fedgate", "feddyn", "vrl-sgd", "led"]


@pytest.mark.parametrize("name", EXACT)
def test_at_the_optimum_a_new_eta_moves_nobody(name):
    """The control variates are gradients in every unit of eta: what has converged stays where it is."""
    made = kedge.quadratics(clients=3, dim=2, heterogeneity="mild", seed=1)
    optimum = np.linalg.solve(
        made.hessians.mean(0).numpy(), (made.hessians @ made.centers[..., None]).mean(0)[:, 0].numpy()
    )
    eta = lambda round: 0.2 if round < 150 else 0.05  # noqa: E731
    run = {"rounds": 152, "cohort": None, "local_steps": 2, "batch_size": None, "loss": made.loss, "eval_every": 200}
    result = kedge.simulate(made.model, made.federation, kedge.ALGORITHMS[name](eta=eta, **QUICK.get(name, {})), **run)
    assert np.abs(result.server["x"].numpy() - optimum).max() < 1e-7
    if (correction := {"led": "z_i", "vrl-sgd": "D_i"}.get(name)) is not None:
        assert float(result.client(0)[correction].abs().max()) > 1e-3  # there was something to get wrong


def test_the_shapes_are_what_they_are_called():
    assert [schedules.constant(0.1)(r) for r in (0, 9)] == [0.1, 0.1]
    assert [schedules.step(1.0, 0.5, every=2)(r) for r in range(5)] == [1, 1, 0.5, 0.5, 0.25]
    cosine = schedules.cosine(1.0, 0.0, rounds=4)
    assert [cosine(r) for r in (0, 2, 4, 9)] == pytest.approx([1, 0.5, 0, 0])
    assert [schedules.warmup(1.0, rounds=4)(r) for r in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]
    assert schedules.warmup(cosine, rounds=2)(0) == pytest.approx(0.5)
    assert cosine(-1) == cosine(0)  # the exchanges before the first round


def halved(round):
    return 0.1 / (1 + round)


@pytest.mark.parametrize(
    "text", ["cosine(0.1, 0.001, rounds=100)", "step(0.3, 0.5, every=7)", "warmup(cosine(1, 0.5, rounds=9), rounds=3)"]
)
def test_a_schedule_is_its_text(text):
    made = schedules.read(text)
    assert str(made) == repr(made) == f"{made:g}" == text
    for twin in (schedules.read(str(made)), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert twin == made
        assert hash(twin) == hash(made)
        assert [twin(r) for r in range(20)] == [made(r) for r in range(20)]
    assert kedge.FedAvg(eta=text) == kedge.FedAvg(eta=made) != kedge.FedAvg(eta=0.1)
    assert pickle.loads(pickle.dumps(schedules.read(halved))) == schedules.read(halved)


def test_the_algorithm_of_a_round_has_numbers_only():
    plain = kedge.FedAvg(eta=0.1)
    assert plain.at(7) is plain
    method = kedge.ScaffoldM(eta=halved, beta="step(0.4, 0.5, every=1)")
    assert method.at(1) == kedge.ScaffoldM(eta=0.05, beta=0.2)
    assert method.at(-1) == method.at(0)
    assert kedge.cost(method) == kedge.cost(method.at(0))


def test_what_clients_form_from_the_last_message_they_form_with_schedules_too():
    for name in ("fedavg-m", "fedavg-m-vr", "scaffold-m"):
        kind = kedge.ALGORITHMS[name]
        assert formed(kind(eta=schedules.cosine(0.1, 0.01, rounds=1000))) == formed(kind(eta=0.1)), name


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: kedge.FedAvg(eta="cosine(0.1, 0.0, rounds=5)"), "eta of FedAvg is 0, but must be above 0"),
        (lambda: kedge.FedAvgM(eta=0.1, beta="warmup(2, rounds=5)"), "beta of FedAvgM is 2, but must be above 0 and"),
        (lambda: kedge.FedAvg(eta="cosin(0.1)"), "schedule 'cosin' does not exist; did you mean 'cosine'"),
        (lambda: kedge.FedAvg(eta="cosine(0.1)"), "schedule cosine was given the wrong arguments: cosine"),
        (lambda: kedge.FedAvg(eta="step(0.1, 0.5, every=0)"), "every is 0, but must be a whole number of at least 1"),
        (lambda: kedge.FedAvg(eta="cosine"), "must be a finite number or a schedule such as"),
        (lambda: kedge.FedAvg(eta="__import__('os').system('true')"), "must be a finite number or a schedule"),
        (lambda: kedge.FedAvg(eta="exec('1')"), "schedule 'exec' does not exist"),
        (lambda: kedge.FedAvg(eta="(" * 200 + ")" * 200), "must be a finite number"),
        (lambda: kedge.FedAvg(eta="cosine(True, 1, rounds=2)"), "start of a schedule is True, but must be a finite"),
        (lambda: kedge.FedAvg(eta=lambda r: -r).at(1), "in round 1, eta of FedAvg is -1, but must be above 0"),
        (lambda: kedge.FedAvg(eta=lambda r: "x").at(1), "is 'x' in round 1, but must be a finite number"),
        (lambda: kedge.Scaffold(eta=0.1, opening_batches=halved), "must be the same number in all rounds"),
        (lambda: kedge.FedPD(eta=0.1, skip="constant(0.1)"), "skip of FedPD is constant.*, but must be the same"),
        (lambda: kedge.Settings(weight_decay="cosine(1, -1, rounds=2)"), "weight_decay is -1.0, but must be finite"),
        (lambda: schedules.warmup(halved, rounds=2), "warmup takes a number or a schedule"),
    ],
)
def test_a_wrong_schedule_is_one_sentence(make, message):
    with pytest.raises(kedge.UsageError, match=message):
        make()


def test_weight_decay_may_be_a_schedule_in_every_engine():
    federation = kedge.load_federation("digits", clients=10)
    model = kedge.build_model("mlp", (64,), 10, widths=[8]).double()

    def run(decay, **options):
        return kedge.simulate(
            model, federation, kedge.Scaffold(eta=0.1), rounds=3, cohort=4, local_steps=3, batch_size=8,
            weight_decay=decay, **options,
        ).server["x"]  # fmt: skip

    decay = schedules.step(0.5, 0.1, every=1)
    fused, general, plain = run(decay), run(decay, engine="module"), run(0.5)
    assert float((fused - general).abs().max()) < 1e-12
    assert float((fused - plain).abs().max()) > 1e-4


SECTIONS = {
    "data": {"clients": 10},
    "algorithm": {"name": "fedavg-m", "eta": "cosine(0.1, 0.01, rounds=6)", "beta": "step(0.5, 0.5, every=2)"},
    "run": {"rounds": 6, "cohort": 3, "local_steps": 2, "weight_decay": "warmup(0.01, rounds=3)", "eval_every": 1},
}


def test_a_configuration_holds_schedules_as_text(tmp_path):
    config = check(SECTIONS)
    whole = resolved(config)
    assert whole["algorithm"]["eta"] == "cosine(0.1, 0.01, rounds=6)"
    assert whole["run"]["weight_decay"] == "warmup(0.01, rounds=3)"
    assert algorithm_of(check({"algorithm": whole["algorithm"]})) == algorithm_of(config)
    python = kedge.FedAvgM(eta=schedules.cosine(0.1, 0.01, rounds=6), beta=schedules.step(0.5, 0.5, every=2))
    assert algorithm_of(config) == python


def test_the_command_line_takes_schedules_and_resumes_them_to_the_bit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ["--clients", "10", "--cohort", "3", "--rounds", "4", "--beta", "step(0.5, 0.5, every=2)"]
    options += ["--weight-decay", "warmup(0.01, rounds=3)", "--algorithm", "fedavg-m"]
    assert execute(["run", "--eta", "cosine(0.1, 0.01, rounds=4)", *options, "--out", "a"]) == 0
    written = tomllib.loads((tmp_path / "a" / "config.toml").read_text())
    assert written["algorithm"]["eta"] == "cosine(0.1, 0.01, rounds=4)"
    assert execute(["run", "a/config.toml", "--out", "b"]) == 0
    rows = [
        [{key: value for key, value in row.items() if key != "seconds"} for row in kedge.read_run(tmp_path / name).rows]
        for name in ("a", "b")
    ]
    assert rows[0] == rows[1]


class Stop:
    """Stops a run in a round."""

    def on_round(self, run):
        if run.round == 3:
            run.stop()


def test_a_stopped_run_resumes_its_schedules_to_the_bit_and_refuses_others(tmp_path):
    config = check(SECTIONS)
    whole = run_config(config)
    run_config(config, out=tmp_path / "run", callbacks=[Stop()])
    other = SECTIONS | {"algorithm": SECTIONS["algorithm"] | {"eta": "cosine(0.1, 0.02, rounds=6)"}}
    with pytest.raises(kedge.UsageError, match=r"cosine\(0\.1, 0\.02, rounds=6\)"):
        run_config(check(other), out=tmp_path / "run", resume=True)
    second = run_config(config, out=tmp_path / "run", resume=True)
    assert all((second.server[name] == vector).all() for name, vector in whole.server.items())
    assert len(second.history) == 6


def test_the_code_of_a_function_is_part_of_the_fingerprint(tmp_path):
    made = kedge.quadratics(clients=3, dim=2)

    def run(eta, **options):
        kedge.simulate(
            made.model, made.federation, kedge.FedAvg(eta=eta), rounds=4, cohort=2, local_steps=2, batch_size=None,
            loss=made.loss, out=tmp_path / "run", **options,
        )  # fmt: skip

    run(lambda round: 0.1 / (1 + round), callbacks=[Stop()])
    with pytest.raises(kedge.UsageError, match="eta code"):
        run(lambda round: 0.1 / (2 + round), resume=True)
    run(lambda round: 0.1 / (1 + round), resume=True)

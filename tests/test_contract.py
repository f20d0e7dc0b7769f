"""What every algorithm promises, whatever it computes."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

import kedge
from kedge.cost import Size
from kedge.exchange import Effort, Needs, Round
from kedge.local_steps import local_steps
from kedge.simulator import Settings, Simulation
from tests.cases import CASES, Case
from tests.oracles import QuadraticOracle

PROBLEM = kedge.quadratics(clients=7, dim=5, heterogeneity="mild", sigma=1.0, samples=12, seed=3)
ROUNDS, STEPS, BATCH, SEED = 6, 4, 3, 11
ALL = Needs(mean_grad=True, last_direction=True)


def named(case: Case) -> str:
    options = [str(value) for value in case.hyper.values() if isinstance(value, str)]
    return "-".join([case.id, *options])


def algorithm(case: Case) -> Any:
    return kedge.ALGORITHMS[case.id](**case.hyper)


def run(case: Case, cohort: int | None, batch_size: int | None = BATCH, rounds: int = ROUNDS, **options: Any) -> Any:
    return kedge.simulate(
        PROBLEM.model, PROBLEM.federation, algorithm(case), rounds=rounds, cohort=cohort, local_steps=STEPS,
        batch_size=batch_size, loss=PROBLEM.loss, seed=SEED, **options,
    )  # fmt: skip


def start() -> np.ndarray:
    return PROBLEM.model.x.detach().numpy()


def cohorts_of(case: Case) -> list[int | None]:
    return [None] if kedge.ALGORITHMS[case.id].full_participation else [None, 3]


RUNS = [pytest.param(case, cohort, id=f"{named(case)}-{cohort}") for case in CASES for cohort in cohorts_of(case)]


def test_every_algorithm_has_a_case():
    assert {case.id for case in CASES} == set(kedge.ALGORITHMS)


@pytest.mark.parametrize("batch_size", [BATCH, None])
@pytest.mark.parametrize(("case", "cohort"), RUNS)
def test_equals_a_literal_loop_of_its_pseudo_code(case, cohort, batch_size):
    result = run(case, cohort, batch_size)
    trace = case.literal(QuadraticOracle(PROBLEM, SEED, batch_size), start(), result.cohorts, STEPS)
    np.testing.assert_allclose(result.server["x"].numpy(), trace.x, rtol=0, atol=1e-10)
    for name in set(result.server) & set(trace.server):
        np.testing.assert_allclose(result.server[name].numpy(), trace.server[name], rtol=0, atol=1e-10, err_msg=name)
    for ours, theirs in case.client.items():
        for client in range(len(PROBLEM.federation)):
            expected = trace.clients[theirs][client]
            np.testing.assert_allclose(result.client(client)[ours].numpy(), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("case", "cohort"), RUNS)
def test_a_cohort_equals_its_clients_one_by_one(case, cohort):
    """The rules serve (S, d) as they serve (d,)."""
    method, clients, size = algorithm(case), 4, 5
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(size, generator=generator, dtype=torch.float64)
    hessians = torch.rand(clients, size, generator=generator, dtype=torch.float64) + 0.5
    noise = torch.randn(50, clients, size, generator=generator, dtype=torch.float64)
    server, rows = method.init_server(x), [method.init_client(x) for _ in range(clients)]
    for exchange in [*method.opening(), *method.exchanges(0), *method.exchanges(1)]:
        effort = exchange.effort(Effort(STEPS))
        down = exchange.broadcast(server)

        def play(own, start, many, exchange=exchange, down=down, effort=effort):
            return exchange.reply(
                down, own,
                local_steps(exchange.direction(down, own), start, method.eta, effort.steps, many, ALL),
            )  # fmt: skip

        singles = [
            play(own, exchange.start(down, own), lambda p, k, _, i=i: hessians[i] * p + noise[k, i])
            for i, own in enumerate(rows)
        ]
        stacked = type(rows[0])(*(torch.stack(field) for field in zip(*rows, strict=True)))
        ups, states = play(
            stacked, exchange.start(down, stacked).expand(clients, size), lambda p, k, _: hessians * p + noise[k]
        )
        for i, (up, state) in enumerate(singles):
            for one, many in zip([*up, *state], [*ups, *states], strict=True):
                torch.testing.assert_close(one, many[i] if many.ndim else many, rtol=0, atol=1e-14)
        rows = [state for _, state in singles]
        mean = type(singles[0][0])(*(sum(f) / clients for f in zip(*(up for up, _ in singles), strict=True)))
        server = exchange.fold(server, mean, Round(share=1.0, local_steps=STEPS))


@pytest.mark.parametrize("case", CASES, ids=named)
def test_rules_change_nothing_that_they_are_given(case):
    method = algorithm(case)
    x = torch.randn(5, dtype=torch.float64)
    server, client = method.init_server(x), method.init_client(x)
    for exchange in [*method.opening(), *method.exchanges(0), *method.exchanges(1)]:
        down = exchange.broadcast(server)
        before = [value.clone() for value in [*server, *client, *down]]
        rule = exchange.direction(down, client)
        steps = exchange.effort(Effort(STEPS)).steps
        local = local_steps(
            rule,
            exchange.start(down, client),
            0.1,
            steps,
            lambda p, k, _: p + k,
            ALL,
        )
        up, new = exchange.reply(down, client, local)
        folded = exchange.fold(server, up, Round(share=0.5, local_steps=STEPS))
        for value, copy in zip([*server, *client, *down], before, strict=True):
            assert torch.equal(value, copy)
        server, client = folded, new


@pytest.mark.parametrize(("case", "cohort"), RUNS)
def test_the_traced_cost_is_what_a_run_counts(case, cohort):
    model_size, clients = 5, 7
    people = {"sampled": cohort or clients, "everyone": clients, "first": 1}
    spent = run(case, cohort, rounds=3).history
    for late, early, round in [(1, 0, 1), (2, 1, 2)]:
        cost = kedge.cost(algorithm(case), model_size, STEPS, round=round, everyone=cohort is None)
        down = sum(people[e.cohort] * e.down.numbers * 8 for e in cost.round)
        up = sum(people[e.cohort] * e.up.numbers * 8 for e in cost.round)
        full = 12 / BATCH
        gradients = sum(people[e.cohort] * (e.gradients + e.full_passes * full) for e in cost.round)
        assert spent[late]["bytes_down"] - spent[early]["bytes_down"] == down
        assert spent[late]["bytes_up"] - spent[early]["bytes_up"] == up
        assert spent[late]["gradients"] - spent[early]["gradients"] == pytest.approx(gradients)


@pytest.mark.parametrize("case", CASES, ids=named)
def test_state_is_what_the_cost_says(case):
    cost = kedge.cost(algorithm(case), 5, STEPS)
    result = run(case, None, rounds=2)
    assert Size.of(result.server.values(), 5) == cost.server
    assert Size.of(result.client(0).values(), 5) == cost.client


@pytest.mark.parametrize(("case", "cohort"), RUNS)
def test_a_run_goes_on_from_its_saved_state_to_the_bit(case, cohort):
    settings = Settings(cohort=cohort, local_steps=STEPS, batch_size=BATCH, seed=SEED)
    whole, first, second = (
        Simulation(PROBLEM.model, PROBLEM.federation, algorithm(case), settings, PROBLEM.loss) for _ in range(3)
    )
    for _ in range(5):
        whole.advance()
    for _ in range(2):
        first.advance()
    second.restore(load(save(first.state())))
    for _ in range(3):
        second.advance()
    assert second.cohorts == whole.cohorts
    assert second.counters == whole.counters
    assert whole.state().keys() == second.state().keys()
    assert all(torch.equal(value, second.state()[name]) for name, value in whole.state().items())


@pytest.mark.parametrize("case", CASES, ids=named)
def test_hyper_parameters_are_frozen_and_explained(case):
    method = algorithm(case)
    with pytest.raises(dataclasses.FrozenInstanceError):
        method.eta = 1.0
    assert all(field.metadata["help"] for field in dataclasses.fields(method))
    assert type(method).__doc__


@pytest.mark.parametrize(("case", "cohort"), [run for run in RUNS if run.values[1]])
def test_a_lost_reply_leaves_the_client_and_its_share_untouched(case, cohort):
    """Half of the replies are lost: whoever was never heard keeps the initial state."""
    result = run(case, cohort, lost_replies=0.5, rounds=3)
    assert torch.isfinite(result.server["x"]).all()
    if "c" in result.server:
        mean = torch.stack([result.client(i)["c_i"] for i in range(len(PROBLEM.federation))]).mean(0)
        torch.testing.assert_close(result.server["c"], mean, rtol=0, atol=1e-12)

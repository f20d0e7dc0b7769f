"""What every algorithm promises, whatever it computes."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save

import kedge
from kedge.costs import Size
from kedge.exchange import Effort, Heard, Needs
from kedge.keyed import sample_cohort
from kedge.local_steps import local_steps
from kedge.simulator import Settings, Simulation
from tests.cases import CASES, Case
from tests.literal import Trace
from tests.oracles import QuadraticOracle, heard, saved

PROBLEM = kedge.quadratics(clients=7, dim=5, heterogeneity="mild", sigma=1.0, samples=12, seed=3)
ROUNDS, STEPS, BATCH, SEED = 4, 3, 3, 13  # of this seed FedPD skips rounds 0 and 3 of the first four
ALL = Needs(mean_grad=True, last_direction=True)


def named(case: Case) -> str:
    options = [str(value) for value in case.hyper.values() if isinstance(value, str)]
    return "-".join([case.id, *options])


def algorithm(case: Case) -> Any:
    return kedge.ALGORITHMS[case.id](**case.hyper)


def run(case: Case, cohort: int | None, batch_size: int | None = BATCH, rounds: int = ROUNDS, **options: Any) -> Any:
    return kedge.simulate(
        PROBLEM.model, PROBLEM.federation, algorithm(case), rounds=rounds, cohort=cohort, local_steps=STEPS,
        batch_size=batch_size, loss=PROBLEM.loss, **({"seed": SEED} | options),
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
    assert_equal_to(
        case, result, case.literal(QuadraticOracle(PROBLEM, SEED, batch_size), start(), result.cohorts, STEPS)
    )


def assert_equal_to(case: Case, result: Any, trace: Trace) -> None:
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
    for exchange in [*method.opening(), *method.exchanges(0, SEED), *method.exchanges(1, SEED)]:
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
        server = exchange.fold(server, mean, Heard(share=1.0, local_steps=STEPS))


@pytest.mark.parametrize("case", CASES, ids=named)
def test_rules_change_nothing_that_they_are_given(case):
    method = algorithm(case)
    x = torch.randn(5, dtype=torch.float64)
    server, client = method.init_server(x), method.init_client(x)
    for exchange in [*method.opening(), *method.exchanges(0, SEED), *method.exchanges(1, SEED)]:
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
        folded = exchange.fold(server, up, Heard(share=0.5, local_steps=STEPS))
        for value, copy in zip([*server, *client, *down], before, strict=True):
            assert torch.equal(value, copy)
        server, client = folded, new


@pytest.mark.parametrize(("case", "cohort"), RUNS)
def test_the_traced_cost_is_what_a_run_counts(case, cohort):
    model_size, clients = 5, 7
    people = {"sampled": cohort or clients, "everyone": clients, "first": 1}
    spent = run(case, cohort, rounds=3).history
    for late, early, round in [(1, 0, 1), (2, 1, 2)]:
        cost = kedge.cost(algorithm(case), model_size, STEPS, round=round, seed=SEED, everyone=cohort is None)
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
    for _ in range(3):
        whole.advance()
    for _ in range(2):
        first.advance()
    second.restore(load(save(first.server_state())), [load(save(rows)) for rows in first.client_rows(changed=False)])
    second.advance()
    assert second.cohorts == whole.cohorts
    wanted, found = saved(whole), saved(second)
    assert wanted.keys() == found.keys()
    assert all(torch.equal(value, found[name]) for name, value in wanted.items())


@pytest.mark.parametrize("case", CASES, ids=named)
def test_hyper_parameters_are_frozen_and_explained(case):
    method = algorithm(case)
    with pytest.raises(dataclasses.FrozenInstanceError):
        method.eta = 1.0
    assert all(field.metadata["help"] for field in dataclasses.fields(method))
    assert type(method).__doc__


# --------------------------------------------------------------------------------------------------
# Lost replies
# --------------------------------------------------------------------------------------------------

LOSSY = [case for case in CASES if not kedge.ALGORITHMS[case.id].full_participation]
LOST = 0.4


def seed_with_replies() -> int:
    """The first seed of which the opening loses nothing, and no round everything, but some round something."""
    clients = range(len(PROBLEM.federation))
    for seed in range(1000):
        replies = [heard(seed, r, sample_cohort(seed, r, len(clients), 3), LOST) for r in range(ROUNDS)]
        if len(heard(seed, -1, clients, LOST)) == len(clients) and {1, 2} <= {*map(len, replies)} <= {1, 2, 3}:
            return seed
    raise AssertionError("no such seed")


@pytest.mark.parametrize("case", LOSSY, ids=named)
def test_a_round_with_lost_replies_is_the_round_of_those_who_were_heard(case):
    seed = seed_with_replies()
    result = run(case, 3, lost_replies=LOST, seed=seed)
    cohorts = [heard(seed, round, cohort, LOST) for round, cohort in enumerate(result.cohorts)]
    assert_equal_to(case, result, case.literal(QuadraticOracle(PROBLEM, seed, BATCH), start(), cohorts, STEPS))


SUMS = {
    "c_i": lambda server, c_i: server["c"] - c_i.mean(0),  # SCAFFOLD: c is the mean of all c_i
    "q_i": lambda server, q_i: server["h"] - q_i.mean(0),  # FedDyn: h is the mean of all q_i
    "delta_i": lambda server, delta_i: delta_i.sum(0),  # FedGATE: the corrections cancel
}
KEEPING = [case for case in LOSSY if case.client]


def test_every_algorithm_that_may_lose_replies_and_keeps_state_has_its_sum():
    stateful = {case.id for case in LOSSY if kedge.cost(algorithm(case)).client.vectors}
    assert {case.id for case in KEEPING} == stateful
    assert {name for case in KEEPING for name in case.client} == set(SUMS)


@pytest.mark.parametrize("case", KEEPING, ids=named)
@given(seed=st.integers(0, 10_000), lost=st.floats(0.05, 0.95), cohort=st.integers(1, 7))
@settings(max_examples=12)
def test_the_unheard_keep_their_state_to_the_bit_and_the_sums_stay_true(case, seed, lost, cohort):
    chosen = Settings(cohort=cohort, local_steps=2, batch_size=BATCH, seed=seed, lost_replies=lost)
    simulation = Simulation(PROBLEM.model, PROBLEM.federation, algorithm(case), chosen, PROBLEM.loss)
    (name,) = case.client
    everyone = range(len(PROBLEM.federation))

    def states() -> torch.Tensor:
        return torch.stack([getattr(simulation.clients[client], name) for client in everyone])

    before = states()
    for round in range(4):
        simulation.advance()
        after = states()
        moved = {*heard(seed, round, simulation.cohorts[-1], lost)}
        if round == 0 and algorithm(case).opening():
            moved |= {*heard(seed, -1, everyone, lost)}
        changed = {client for client in everyone if not torch.equal(before[client], after[client])}
        # Who is alone heard does not differ from the mean: FedGATE then corrects nothing.
        assert changed == moved or (changed < moved and len(moved) == 1)
        error = SUMS[name](simulation.server._asdict(), after).abs().max()
        assert float(error) <= 1e-12 * max(1.0, float(after.abs().max()))
        before = after

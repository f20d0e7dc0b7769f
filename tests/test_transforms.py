"""Replies that are compressed or hidden on their way, with any algorithm."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

import kedge
from kedge.algorithms.proximal import Normalized
from kedge.cli.program import execute
from kedge.client import Client
from kedge.keyed import PRIVACY, keyed
from kedge.round import Question, Rounds, Total
from kedge.transforms import SERVER, packed, unpacked
from tests.cases import CASES
from tests.test_contract import named
from tests.test_local_updates import FEDERATION, MODEL, RUN, Stop, same, timeless

SIZE = sum(p.numel() for p in MODEL.parameters())
INITIAL = torch.cat([p.detach().flatten() for p in MODEL.parameters()])


def play(transforms, method=None, **options):
    method = method or kedge.FedAvg(eta=0.05)
    return kedge.simulate(MODEL, FEDERATION, method, reply_transforms=transforms, **RUN | options)


SEVERAL = {
    "top-k": kedge.TopK(0.1),
    "central": kedge.Privacy(1.0, 0.5),
    "local": kedge.Privacy(1.0, 0.01, "local"),
    "both": [kedge.TopK(0.2), kedge.Privacy(1.0, 0.5)],
}


@pytest.mark.parametrize("name", SEVERAL)
def test_the_bits_do_not_depend_on_threads_or_interruptions(name, tmp_path):
    whole = play(SEVERAL[name], kedge.ScaffoldM(eta=0.05), threads=1)
    for threads in (2, 3):
        other = play(SEVERAL[name], kedge.ScaffoldM(eta=0.05), threads=threads)
        assert same(whole, other)
        assert timeless(whole) == timeless(other)
    play(SEVERAL[name], kedge.ScaffoldM(eta=0.05), out=tmp_path / "run", callbacks=[Stop()])
    resumed = play(SEVERAL[name], kedge.ScaffoldM(eta=0.05), out=tmp_path / "run", resume=True)
    assert same(whole, resumed)
    assert timeless(whole) == timeless(resumed)


@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.parametrize("case", CASES, ids=named)
def test_they_compose_with_every_algorithm(case, name):
    method = kedge.ALGORITHMS[case.id](**case.hyper)
    cohort = None if method.full_participation else 3
    result = play(SEVERAL[name], method, cohort=cohort, rounds=2, local_steps=2)
    assert all(bool(vector.isfinite().all()) for vector in result.server.values())


# ---- top-k with error feedback


def test_sending_everything_is_sending_it_whole_and_costs_no_more():
    method = kedge.ScaffoldM(eta=0.05)
    whole, all_of_it = play(None, method), play(kedge.TopK(1.0), method)
    assert all(torch.equal(value, all_of_it.server[name]) for name, value in whole.server.items())
    assert whole.history[-1]["bytes_up"] == all_of_it.history[-1]["bytes_up"]


def test_a_tenth_of_the_numbers_costs_their_values_and_their_places():
    kept = math.ceil(0.1 * SIZE)
    result = play(kedge.TopK(0.1))
    assert result.history[-1]["bytes_up"] == RUN["rounds"] * RUN["cohort"] * kept * (4 + 4)
    assert result.history[-1]["bytes_down"] == play(None).history[-1]["bytes_down"]


def test_what_was_not_sent_is_sent_later():
    """The sum of what was sent and the residual are the sum of what should have been sent."""
    federation = kedge.Federation(clients=[FEDERATION.client(0)])
    options = RUN | {"cohort": None, "rounds": 1}
    method = kedge.FedAvg(eta=0.05)
    whole = kedge.simulate(MODEL, federation, method, **options)
    some = kedge.simulate(MODEL, federation, method, reply_transforms=kedge.TopK(0.1), **options)
    (residual,) = some.client(0).values()
    sent = INITIAL - some.server["x"]
    assert int((sent != 0).sum()) <= math.ceil(0.1 * SIZE)
    torch.testing.assert_close(sent + residual, INITIAL - whole.server["x"], rtol=0, atol=1e-6)
    assert float(residual.abs().max()) <= float(sent[sent != 0].abs().min()) + 1e-6


@pytest.mark.parametrize(
    "method", [kedge.BVRLSGD(eta=0.01), kedge.BVRLSGD(eta=kedge.schedules.constant(0.01))], ids=str
)
def test_a_residual_is_kept_for_what_only_later_rounds_send(method):
    result = play(kedge.TopK(0.1), method, cohort=None, local_steps=1, rounds=method.stage_rounds + 2)
    assert float(result.client(0)["residual_MeanGradient_direction"].norm()) > 0


def test_a_packed_vector_is_the_same_and_as_large_as_it_counts():
    vector = torch.zeros(1000)
    vector[[3, 999]] = torch.tensor([1.5, -2.0])
    places, values = packed(vector)
    assert places.nbytes + values.nbytes == 2 * (4 + 4)
    assert torch.equal(unpacked(places, values, 1000), vector)


# ---- differential privacy


def test_central_noise_is_keyed_and_added_once_to_the_mean_of_clipped_replies():
    clip, noise = 0.01, 0.7
    quiet, noisy = (play(kedge.Privacy(clip, level), rounds=1).server["x"] for level in (0.0, noise))
    drawn = keyed(RUN["seed"], PRIVACY, 0, 0, SERVER).standard_normal(SIZE)
    expected = quiet - torch.from_numpy(noise * clip / RUN["cohort"] * drawn).float()
    torch.testing.assert_close(noisy, expected, rtol=0, atol=1e-6)
    assert float((INITIAL - quiet).norm()) <= clip * (1 + 1e-4)


def test_local_noise_is_each_clients_own():
    clip, noise = 0.01, 0.7
    cohort = play(None, rounds=1).cohorts[0]
    quiet, noisy = (play(kedge.Privacy(clip, level, "local"), rounds=1).server["x"] for level in (0.0, noise))
    drawn = np.mean([keyed(RUN["seed"], PRIVACY, 0, 0, client).standard_normal(SIZE) for client in cohort], axis=0)
    torch.testing.assert_close(noisy, quiet - torch.from_numpy(noise * clip * drawn).float(), rtol=0, atol=1e-6)


def moved(transforms):
    """Return how far one round moves a model of one parameter."""
    made = kedge.quadratics(clients=4, dim=1)
    run = {"rounds": 1, "cohort": 1, "local_steps": 2, "loss": made.loss, "reply_transforms": transforms}
    result = kedge.simulate(made.model, made.federation, kedge.FedNova(eta=0.1), **run)
    return abs(float(result.server["x"] - made.model.x.detach()))


@pytest.mark.parametrize("mode", ["central", "local"])
def test_the_only_parameter_of_a_model_is_clipped_and_hidden_too(mode):
    assert moved(kedge.Privacy(1e-3, 0.0, mode)) == pytest.approx(0.1 * 2 * 1e-3)
    assert moved(kedge.Privacy(1e-3, 1e6, mode)) > 1


@dataclass(frozen=True)
class Half(kedge.ReplyTransform):
    """Sends half of everything."""

    def client(self, up, kept, at):
        """Halve it."""
        return {name: vector / 2 for name, vector in up.items()}, kept


def test_the_only_parameter_of_a_model_is_a_vector_and_a_number_of_steps_is_none():
    assert moved(Half()) == pytest.approx(moved(None) / 2)


@dataclass(frozen=True)
class Talkative(kedge.FedNova):
    """Tells the server more than a direction."""

    def reply(self, down, client, local):
        """Send a norm in place of the number of steps."""
        return Normalized(local.mean_direction, kedge.norms(local.mean_direction)), client


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        (kedge.FedNova(eta=0.05), {"local_epochs": 1}, "FedNova's .* field steps, .* client's data with local_epochs$"),
        (Talkative(eta=0.05), {}, "Talkative's replies also have the field steps, .* on the client's data$"),
    ],
    ids=["its size", "a norm"],
)
def test_privacy_refuses_replies_with_numbers_that_depend_on_a_clients_data(method, options, message):
    private = kedge.Privacy(1.0, 1.0)
    settings = kedge.Settings(reply_transforms=private, **options)
    with pytest.raises(kedge.UsageError, match=message):
        play(private, method, **options)
    with pytest.raises(kedge.UsageError, match=message):
        Client(0, MODEL, *FEDERATION.client(0), method, settings)
    assert play(kedge.TopK(0.5), method, rounds=1, **options).history


def test_privacy_takes_replies_with_numbers_that_all_clients_share():
    assert play(kedge.Privacy(1.0, 1.0), kedge.FedNova(eta=0.05), rounds=1).history


def test_a_small_reply_is_not_scaled():
    assert torch.equal(play(kedge.Privacy(1e6, 0.0)).server["x"], play(None).server["x"])


def test_epsilon_comes_from_the_accountant():
    pytest.importorskip("dp_accounting")
    run = {"rounds": 50, "clients": 1000, "cohort": 50, "delta": 1e-5}
    method = kedge.FedAvg(eta=0.1)
    few, many = (kedge.Privacy(1.0, 4.0).epsilon(method, **run | {"rounds": rounds}) for rounds in (5, 50))
    assert 0 < few < many < kedge.Privacy(1.0, 2.0).epsilon(method, **run)
    assert many < kedge.Privacy(1.0, 4.0).epsilon(method, **run | {"cohort": None})
    # An opening over all clients and a second exchange cost privacy too.
    assert many < kedge.Privacy(1.0, 4.0).epsilon(kedge.Scaffold(eta=0.1), **run)
    assert many < kedge.Privacy(1.0, 4.0).epsilon(kedge.Mime(eta=0.1), **run)
    # The two exchanges of Mime ask the same cohort: together they are one release with half the variance.
    twice = kedge.Privacy(1.0, 4.0 * math.sqrt(2)).epsilon(kedge.Mime(eta=0.1), **run)
    assert twice == pytest.approx(many)
    assert math.isinf(kedge.Privacy(1.0, 0.0).epsilon(method, **run))
    # One Gaussian of sensitivity 2 clip: Rényi accounting bounds the analytic value of 1.0 at noise / 2 = 3.73.
    one = kedge.Privacy(1.0, 2 * 3.73, "local").epsilon(method, rounds=1, clients=10, cohort=None, delta=1e-5)
    assert 1.0 <= one < 1.4


# ---- a client process, and a server


@pytest.mark.parametrize("transforms", [kedge.TopK(0.1), kedge.Privacy(1.0, 0.3), kedge.Privacy(1.0, 0.3, "local")])
def test_a_client_with_its_own_data_sends_what_the_simulator_counts(transforms):
    settings = kedge.Settings(cohort=2, local_steps=3, batch_size=4, seed=5, reply_transforms=transforms)
    federation = kedge.Federation(clients=[FEDERATION.client(number) for number in range(3)])
    method = kedge.FedAvg(eta=0.05)
    clients = [Client(number, MODEL, *federation.client(number), method, settings) for number in range(3)]
    states = [client.initial_state() for client in clients]
    rounds = Rounds(method, settings, federation.sizes)

    def gather(question: Question, asked: list[int]) -> Total:
        replies = [clients[number].answer(question, states[number]) for number in asked]
        for number, reply in zip(asked, replies, strict=True):
            states[number] = reply.state
        sums = [rounds.summands(question, reply, 1.0) for reply in replies]
        return Total([torch.stack(values).sum(0) for values in zip(*sums, strict=True)], asked)

    moment = rounds.begin(INITIAL.clone(), torch.zeros(0))
    for _ in range(3):
        moment = rounds.play(moment, gather)
    result = kedge.simulate(
        MODEL, federation, method, rounds=3, cohort=2, local_steps=3, batch_size=4, seed=5, engine="module",
        reply_transforms=transforms,
    )  # fmt: skip
    torch.testing.assert_close(moment.state.x, result.server["x"], rtol=0, atol=1e-6)
    assert moment.bytes_up == result.history[-1]["bytes_up"]


def test_a_secret_seed_gives_other_noise():
    settings = kedge.Settings(local_steps=1, batch_size=4, reply_transforms=kedge.Privacy(1.0, 0.3, "local"))
    method = kedge.FedAvg(eta=0.05)
    question = Question(method, 0, 0, method.broadcast(method.init_server(INITIAL)), torch.zeros(0))
    ups = []
    for secret in (None, 1, 1, 2):
        client = Client(0, MODEL, *FEDERATION.client(0), method, settings, noise_seed=secret)
        ups.append(client.answer(question, client.initial_state()).up.displacement)
    assert torch.equal(ups[1], ups[2])
    assert not torch.equal(ups[0], ups[1])
    assert not torch.equal(ups[1], ups[3])


# ---- a third one, configuration, and mistakes


@dataclass(frozen=True)
class Signs(kedge.ReplyTransform):
    """Sends the signs, times the mean magnitude: 20 lines are enough for one's own."""

    def client(self, up, kept, at):
        """Send the signs."""
        return {name: vector.abs().mean() * vector.sign() for name, vector in up.items()}, kept


def test_a_third_transform_takes_a_few_lines():
    result = play(Signs(), rounds=1, cohort=1)
    moved = (INITIAL - result.server["x"]).abs()
    assert float(moved.max() - moved[moved > 1e-6].min()) < 1e-6


def test_a_configuration_names_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ["--clients", "10", "--cohort", "3", "--rounds", "2", "--out", "a"]
    assert execute(["run", *options, "--reply-transforms", "chain(TopK(0.1), Privacy(1.0, 0.1))"]) == 0
    written = "reply_transforms = \"chain(TopK(share=0.1), Privacy(clip=1.0, noise=0.1, mode='central'))\""
    assert written in (tmp_path / "a" / "config.toml").read_text()
    assert execute(["run", "a/config.toml", "--out", "b"]) == 0
    rows = [kedge.read_run(tmp_path / name).rows for name in ("a", "b")]
    assert [row["test_loss"] for row in rows[0]] == [row["test_loss"] for row in rows[1]]


def normalized():
    return nn.Sequential(nn.Linear(64, 4), nn.BatchNorm1d(4), nn.Linear(4, 10))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: play("TopK(0)"), "share of TopK is 0, but must be above 0 and at most 1"),
        (lambda: play("TopKK(0.1)"), "reply transform 'TopKK' does not exist; did you mean 'TopK'"),
        (lambda: play("Privacy(1.0)"), "reply transform Privacy was given the wrong arguments"),
        (lambda: play("Privacy(-1, 1)"), "clip of Privacy is -1, but must be finite and above 0"),
        (lambda: play("Privacy(1, 1, 'secret')"), "mode of Privacy is 'secret', but must be central or local"),
        (lambda: play("chain(0.5)"), "reply_transforms is 0.5, but must be"),
        (lambda: play([kedge.Privacy(1.0, 1.0), kedge.TopK(0.1)]), "Privacy must be the last of the reply transforms"),
        (lambda: play(3), r"reply_transforms is 3, but must be TopK\(share\)"),
        (lambda: play(kedge.Privacy(1.0, 1.0), weights="size"), "Privacy needs clients of equal weight"),
        (
            lambda: kedge.simulate(
                normalized(),
                FEDERATION,
                kedge.FedAvg(eta=0.1),
                cohort=4,
                batch_size=4,
                reply_transforms=kedge.Privacy(1.0, 1.0),
            ),
            "Privacy does not cover BatchNorm's statistics",
        ),
    ],
)
def test_a_wrong_transform_is_one_sentence(make, message):
    with pytest.raises(kedge.UsageError, match=message):
        make()

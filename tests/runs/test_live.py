"""Callbacks see the live run, add columns, ask the clients and stop it, and change no bit."""

import json

import pytest
import torch

import kedge
from kedge.errors import RunWarning
from kedge.round import Form
from kedge.runs.simulate import _forked

PROBLEM = kedge.quadratics(clients=6, dim=4, sigma=1.0, samples=12, seed=2)


def play(*callbacks, method=None, **options):
    settings = {"rounds": 5, "cohort": 3, "local_steps": 2, "batch_size": 4, "eval_every": 2} | options
    method = method or kedge.ScaffoldM(eta=0.1, beta=0.3)
    return kedge.simulate(PROBLEM.model, PROBLEM.federation, method, loss=PROBLEM.loss, callbacks=callbacks, **settings)


class Everything:
    def __init__(self):
        self.seen = []

    def on_start(self, run):
        self.seen.append(("start", run.round, run.cohort))

    def on_round(self, run):
        self.seen.append(("round", run.round, run.cohort))
        assert torch.equal(torch.cat([p.detach().reshape(-1) for p in run.model.parameters()]), run.server["x"])

    def on_evaluate(self, run, row):
        self.seen.append(("evaluate", run.round, row["round"]))
        row["gap"] = float((run.ask(kedge.FullGradient()).mean["gradient"] - run.server["g"]).square().sum())

    def on_end(self, run):
        self.seen.append(("end", run.round, len(run.history)))


def test_a_callback_is_told_everything_in_order_and_changes_nothing(tmp_path):
    watcher = Everything()
    result, plain = play(watcher, out=tmp_path / "run"), play()
    told = [(name, round) for name, round, _ in watcher.seen]
    assert told == [
        ("start", 0), ("round", 1), ("evaluate", 2), ("round", 2), ("round", 3), ("evaluate", 4), ("round", 4),
        ("evaluate", 5), ("round", 5), ("end", 5),
    ]  # fmt: skip
    assert [cohort for name, _, cohort in watcher.seen if name == "round"] == list(result.cohorts)
    for name, vector in plain.server.items():
        assert torch.equal(vector, result.server[name])
    free = [{key: row[key] for key in row if key not in ("gap", "seconds")} for row in result.history]
    assert free == [{key: row[key] for key in row if key != "seconds"} for row in plain.history]
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["gap"] for row in rows] == [row["gap"] for row in result.history]
    assert all(row["gap"] > 0 for row in rows)


def test_a_question_gives_the_exact_gradient_of_all_of_some_and_of_each_client():
    method = kedge.FedAvg(eta=0.1)
    run = kedge.Simulation(
        PROBLEM.model, PROBLEM.federation, method, kedge.Settings(cohort=3, batch_size=4), PROBLEM.loss
    )
    run.advance()
    before = run.moment
    x = run.server["x"]
    exact = [hessian @ (x - center) for hessian, center in zip(PROBLEM.hessians, PROBLEM.centers, strict=True)]
    noise = [PROBLEM.federation.client(i)[0][:, 1:].mean(0) for i in range(6)]
    wanted = torch.stack([gradient + mean for gradient, mean in zip(exact, noise, strict=True)])
    answer = run.ask(kedge.FullGradient())
    torch.testing.assert_close(answer.mean["gradient"], wanted.mean(0))
    torch.testing.assert_close(run.ask(kedge.FullGradient(), [4, 1]).mean["gradient"], wanted[[1, 4]].mean(0))
    for client in range(6):
        torch.testing.assert_close(answer.each(client)["gradient"], wanted[client])
    elsewhere = run.ask(kedge.FullGradient(at=x + 1)).mean["gradient"] - answer.mean["gradient"]
    torch.testing.assert_close(elsewhere, (PROBLEM.hessians @ torch.ones(4).to(x.dtype)).mean(0))
    assert run.moment is before
    run.advance()
    with pytest.raises(kedge.UsageError, match="the question was asked after round 1, but the run has moved on"):
        answer.each(0)
    for wrong in ([], [6], [-1], 3, "bob", ["bob"]):
        with pytest.raises(kedge.UsageError, match=r"clients? is .*, but"):
            run.ask(kedge.FullGradient(), wrong)


@pytest.mark.parametrize("name", kedge.ALGORITHMS)
def test_an_exchange_of_the_algorithm_can_be_asked_and_leaves_no_trace(name):
    method = kedge.ALGORITHMS[name](eta=0.05)
    settings = kedge.Settings(cohort=None, local_steps=2, batch_size=4)
    runs = [kedge.Simulation(PROBLEM.model, PROBLEM.federation, method, settings, PROBLEM.loss) for _ in range(2)]
    for _ in range(2):
        for run in runs:
            run.advance()
        for exchange in method.exchanges(runs[0].round, 0):
            assert set(runs[0].ask(exchange).mean) == set(Form.of(method, exchange).up._fields)
    assert runs[0].moment[:1] + runs[0].moment[3:] == runs[1].moment[:1] + runs[1].moment[3:]
    for vector, other in zip(runs[0].server.values(), runs[1].server.values(), strict=True):
        assert torch.equal(vector, other)
    for client in range(6):
        for field, vector in runs[0].client(client).items():
            assert torch.equal(vector, runs[1].client(client)[field])


def test_a_callback_may_stop_the_run_which_can_be_resumed(tmp_path):
    class Enough:
        def on_round(self, run):
            if run.round == 3:
                run.stop()

    stopped = play(Enough(), out=tmp_path / "run")
    assert stopped.simulation.round == 3
    resumed = play(out=tmp_path / "run", resume=True)
    assert torch.equal(resumed.server["x"], play().server["x"])


def test_a_callback_that_fails_is_named_and_the_run_can_be_resumed(tmp_path):
    class Broken:
        def on_evaluate(self, run, row):
            raise ValueError("no such thing")

    with pytest.raises(
        kedge.CallbackError, match="the callback Broken failed in on_evaluate: ValueError: no such thing"
    ):
        play(Broken(), out=tmp_path / "run")
    assert torch.equal(play(out=tmp_path / "run", resume=True).server["x"], play().server["x"])


class Closing:
    def __init__(self, fails=()):
        self.fails, self.seen = fails, []

    def _told(self, moment):
        self.seen.append(moment)
        if moment in self.fails:
            raise KeyboardInterrupt if moment == "on_round" else ValueError(moment)

    def on_start(self, run):
        self._told("on_start")

    def on_round(self, run):
        self._told("on_round")

    def on_end(self, run):
        self._told("on_end")

    def on_failure(self, run):
        self._told("on_failure")


def test_a_failure_is_told_to_those_who_have_started_and_not_ended():
    first, broken, last = Closing(), Closing(["on_start"]), Closing()
    with pytest.raises(kedge.CallbackError):
        play(first, broken, last)
    assert [each.seen for each in (first, broken, last)] == [["on_start", "on_failure"], ["on_start"], []]
    first, broken, last = Closing(), Closing(["on_end"]), Closing()
    with pytest.raises(kedge.CallbackError):
        play(first, broken, last, rounds=1)
    told = ["on_start", "on_round", "on_end"]
    assert [each.seen for each in (first, broken, last)] == [told, [*told, "on_failure"], [*told[:2], "on_failure"]]
    once = Closing(["on_round", "on_failure"])  # a second Ctrl-C
    with pytest.raises(KeyboardInterrupt), pytest.warns(RunWarning, match="Closing failed in on_failure: ValueError"):
        play(once, first := Closing())
    assert (once.seen[-1], first.seen) == ("on_failure", ["on_start", "on_failure"])
    diverging = Closing()
    with pytest.raises(kedge.DivergedError):
        play(diverging, method=kedge.FedAvg(eta=1e30))
    assert diverging.seen[-1] == "on_end"


def test_the_random_state_of_the_runs_device_is_restored_too(monkeypatch):
    restored = []
    monkeypatch.setattr("torch.random.fork_rng", lambda devices: restored.append(devices))
    for device in (torch.device("cuda", 1), torch.device("cpu")):
        _forked(device)
    assert restored == [[torch.device("cuda", 1)], []]


@pytest.mark.parametrize("value", ["text", None, True, [1], torch.ones(2)])
def test_a_column_is_a_number(value):
    class Wordy:
        def on_evaluate(self, run, row):
            row["word"] = value

    with pytest.raises(kedge.UsageError, match=r"the callback Wordy set 'word' to .*, but it must be a number"):
        play(Wordy())


def test_a_single_callback_must_be_in_a_list():
    made = kedge.quadratics(clients=3, dim=2)
    with pytest.raises(kedge.UsageError, match=r"callbacks is .*ProgressBar.*, but must be a list of callbacks"):
        kedge.simulate(
            made.model, made.federation, kedge.FedAvg(eta=0.1), loss=made.loss, rounds=1, cohort=None, batch_size=None,
            callbacks=kedge.callbacks.ProgressBar(),
        )  # fmt: skip


@pytest.mark.parametrize("wrong", [object(), Everything, lambda run: None, "on_round"])
def test_what_is_no_callback_is_refused(wrong):
    with pytest.raises(kedge.UsageError, match="is not a callback: it must be an object with one of on_start"):
        play(wrong)


def test_a_callback_that_writes_into_what_it_is_handed_changes_no_bit():
    class Careless:
        def on_start(self, run):
            run.server["x"].add_(1)

        def on_round(self, run):
            run.server["g"].sub_(run.ask(kedge.FullGradient()).mean["gradient"])
            run.client(run.cohort[0])["c_i"].zero_()

    assert torch.equal(play(Careless()).server["x"], play().server["x"])

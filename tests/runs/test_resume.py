"""A run that was interrupted and resumed leaves the files of one that was not."""

import json
import os
import shutil
import warnings
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

import kedge
from kedge.errors import RunWarning
from kedge.files import WriteError, locked
from kedge.runs.checkpoint_timer import SHARE, CheckpointTimer, Interval
from kedge.runs.live import StopWhen, Watch
from tests.faults import Left

PROBLEM = kedge.quadratics(clients=6, dim=5, seed=3, sigma=0.5)


def play(out, algorithm=None, **options):
    algorithm = algorithm or kedge.ScaffoldM(eta=0.05, beta=0.3)
    cohort = None if algorithm.full_participation else 3
    defaults = {"rounds": 7, "cohort": cohort, "local_steps": 2, "batch_size": 2, "checkpoint_every": 2}
    return kedge.simulate(
        PROBLEM.model, PROBLEM.federation, algorithm, loss=PROBLEM.loss, out=out, **defaults | options
    )  # fmt: skip


def after(rounds):
    """Stop after so many rounds of this process."""
    left = iter(range(rounds - 1, -1, -1))
    return lambda: next(left) == 0


class KilledError(BaseException):
    pass


def killed_after(rounds):
    def watch(done, row):
        if done == rounds:
            raise KilledError

    return watch


@pytest.mark.parametrize("name", kedge.ALGORITHMS)
def test_every_algorithm_goes_on_to_the_bit(name, tmp_path):
    method = kedge.ALGORITHMS[name](eta=0.02)
    whole = play(tmp_path / "whole", method)
    stopped = play(tmp_path / "parts", method, callbacks=[StopWhen(after(3))])
    assert stopped.simulation.round == 3
    with pytest.raises(KilledError):
        play(tmp_path / "parts", method, resume=True, callbacks=[Watch(killed_after(5))])
    resumed = play(tmp_path / "parts", method, resume=True)
    assert Left.by(tmp_path / "parts") == Left.by(tmp_path / "whole")
    assert resumed.cohorts == whole.cohorts
    assert [row["round"] for row in resumed.history] == [row["round"] for row in whole.history]
    for client in range(6):
        for field, vector in whole.client(client).items():
            assert torch.equal(vector, resumed.client(client)[field])


def test_buffers_and_dropout_go_on_to_the_bit(tmp_path):
    generator = torch.Generator().manual_seed(0)
    data = [(torch.randn(20, 4, generator=generator), torch.arange(20) % 3) for _ in range(5)]
    federation = kedge.Federation(data, data[0])
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Dropout(0.5), torch.nn.Linear(6, 3)
    )  # fmt: skip
    options = {"rounds": 6, "cohort": 2, "local_steps": 3, "batch_size": 5, "checkpoint_every": 0}

    def run(out, **more):
        kedge.simulate(model, federation, kedge.ScaffoldM(eta=0.1), out=tmp_path / out, **options, **more)

    run("whole")
    run("parts", callbacks=[StopWhen(after(2))])
    run("parts", callbacks=[StopWhen(after(3))], resume=True)
    run("parts", resume=True)
    assert Left.by(tmp_path / "parts") == Left.by(tmp_path / "whole")


def test_a_run_killed_before_its_first_checkpoint_starts_again_and_writes_no_row_twice(tmp_path):
    play(tmp_path / "whole")
    with pytest.raises(KilledError):
        play(tmp_path / "parts", checkpoint_every=0, callbacks=[Watch(killed_after(5))])
    assert not (tmp_path / "parts" / "checkpoint").exists()
    before = (tmp_path / "parts" / "metrics.jsonl").read_bytes()
    play(tmp_path / "parts", resume=True)
    assert (tmp_path / "parts" / "metrics.jsonl").read_bytes().startswith(before)
    assert Left.by(tmp_path / "parts") == Left.by(tmp_path / "whole")


@pytest.fixture(scope="module")
def whole_and_stopped(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs")
    play(path / "whole")
    play(path / "stopped", callbacks=[StopWhen(after(5))])
    return Left.by(path / "whole"), path / "stopped"


@settings(max_examples=30)
@given(share=st.floats(0, 1), tail=st.sampled_from([b"", b"\0\0\0\n\0", b'{"round": 0}\n', b"[]\n{}\n"]))
def test_metrics_torn_anywhere_are_made_whole_again(whole_and_stopped, share, tail):
    whole, stopped = whole_and_stopped
    with TemporaryDirectory() as name:
        path = shutil.copytree(stopped, Path(name) / "run")
        content = (path / "metrics.jsonl").read_bytes()
        (path / "metrics.jsonl").write_bytes(content[: round(share * len(content))] + tail)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RunWarning)  # where rows are gone, so are the checkpoints that count them
            play(path, resume=True)
        assert Left.by(path) == whole


def test_seconds_go_on(tmp_path):
    play(tmp_path / "run", callbacks=[StopWhen(after(3))])
    file = tmp_path / "run" / "metrics.jsonl"
    rows = [json.loads(line) | {"seconds": 1000.0 + n} for n, line in enumerate(file.read_text().splitlines())]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    seconds = [row["seconds"] for row in play(tmp_path / "run", resume=True).history]
    assert seconds[:3] == [1000, 1001, 1002]
    assert seconds == sorted(seconds)
    assert 1002 < seconds[-1] < 1100


def test_a_finished_run_is_read_and_can_be_extended(tmp_path):
    first = play(tmp_path / "run", rounds=4)
    again = play(tmp_path / "run", rounds=4, resume=True)
    assert again.history == first.history
    assert torch.equal(again.server["x"], first.server["x"])
    longer = play(tmp_path / "run", rounds=7, resume=True)
    assert longer.history[:4] == first.history
    play(tmp_path / "whole")
    assert Left.by(tmp_path / "run") == Left.by(tmp_path / "whole")
    with pytest.raises(kedge.UsageError, match=r"rounds is 3, but the run in .* has already played 7"):
        play(tmp_path / "run", rounds=3, resume=True)


def test_another_interval_of_evaluation_keeps_the_rows_in_order(tmp_path):
    play(tmp_path / "run", rounds=5, eval_every=3, checkpoint_every=2, callbacks=[StopWhen(after(4))])
    assert [row["round"] for row in play(tmp_path / "run", rounds=4, eval_every=3, resume=True).history] == [3, 4]
    (tmp_path / "run" / "checkpoint" / "round-00000004.json").unlink()
    longer = play(tmp_path / "run", rounds=8, eval_every=3, resume=True)
    assert [row["round"] for row in longer.history] == [3, 4, 6, 8]
    assert [row["round"] for row in kedge.read_run(tmp_path / "run").rows] == [3, 4, 6, 8]


def test_resume_starts_where_there_is_nothing(tmp_path):
    play(tmp_path / "run", resume=True)
    play(tmp_path / "whole")
    assert Left.by(tmp_path / "run") == Left.by(tmp_path / "whole")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 1}, "seed is 0 there, but 1 here"),
        ({"local_steps": 3}, "local steps is 2 there, but 3 here"),
        ({"algorithm": kedge.ScaffoldM(eta=0.05)}, r"algorithm is 'ScaffoldM\(eta=0.05, beta=0.3"),
    ],
)
def test_another_configuration_is_refused(tmp_path, options, message):
    play(tmp_path, callbacks=[StopWhen(after(3))])
    with pytest.raises(kedge.UsageError, match=message):
        play(tmp_path, resume=True, **options)


def test_other_data_or_initial_parameters_are_refused(tmp_path):
    play(tmp_path, callbacks=[StopWhen(after(3))])
    other = kedge.quadratics(clients=6, dim=5, seed=4, sigma=0.5)
    arguments = {"rounds": 7, "cohort": 3, "local_steps": 2, "batch_size": 2, "loss": PROBLEM.loss}
    for model, federation in ((other.model, PROBLEM.federation), (PROBLEM.model, other.federation)):
        with pytest.raises(kedge.UsageError, match="has a different configuration: "):
            kedge.simulate(
                model, federation, kedge.ScaffoldM(eta=0.05, beta=0.3), out=tmp_path, resume=True, **arguments
            )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (nn.CrossEntropyLoss(label_smoothing=0.1), nn.CrossEntropyLoss(label_smoothing=0.9)),
        (nn.CrossEntropyLoss(weight=torch.ones(2)), nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0]))),
        (partial(cross_entropy, label_smoothing=0.1), partial(cross_entropy, label_smoothing=0.9)),
        (lambda output, y: cross_entropy(output, y), lambda output, y: 2 * cross_entropy(output, y)),
    ],
)
def test_another_loss_is_refused(tmp_path, one, other):
    federation = kedge.Federation([(torch.randn(6, 3), torch.tensor([0, 1] * 3))] * 2)
    arguments = (nn.Linear(3, 2), federation, kedge.FedAvg(eta=0.1))
    options = {"cohort": None, "batch_size": 2, "out": tmp_path, "eval_every": 9}
    kedge.simulate(*arguments, rounds=2, loss=one, **options)
    with pytest.raises(kedge.UsageError, match=r"has a different configuration: loss(| code) is"):
        kedge.simulate(*arguments, rounds=3, loss=other, resume=True, **options)
    kedge.simulate(*arguments, rounds=3, loss=one, resume=True, **options)


def test_workers_may_change(tmp_path):
    play(tmp_path / "parts", callbacks=[StopWhen(after(3))], threads=1)
    play(tmp_path / "parts", resume=True, threads=3)
    play(tmp_path / "whole")
    assert Left.by(tmp_path / "parts") == Left.by(tmp_path / "whole")


@pytest.mark.parametrize("what", ["torch", "processor"])
def test_another_engine_torch_or_processor_is_a_warning(tmp_path, monkeypatch, what):
    play(tmp_path, callbacks=[StopWhen(after(3))])
    monkeypatch.setattr("kedge.runs.recording.environment", lambda: {what: "9"})
    with pytest.warns(RunWarning, match=f"round 3 was computed with {what} .*, but this is {what} 9: the last bits"):
        play(tmp_path, resume=True)


def test_the_summary_names_what_the_last_bits_depend_on(tmp_path):
    play(tmp_path)
    known = json.loads((tmp_path / "summary.json").read_text())["versions"]
    assert known.keys() == {"kedge", "torch", "processor"}
    assert known["processor"].endswith(torch.backends.cpu.get_cpu_capability())


def test_a_row_that_comes_out_differently_is_a_warning(tmp_path):
    with pytest.raises(KilledError):
        play(tmp_path, callbacks=[Watch(killed_after(3))])
    file = tmp_path / "metrics.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[2]["test_loss"] += 1
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.warns(RunWarning, match=r"round 3 was replayed and differs from its row in metrics.jsonl"):
        history = play(tmp_path, resume=True).history
    assert history[2]["test_loss"] == rows[2]["test_loss"]


def test_a_directory_is_not_taken_twice(tmp_path):
    play(tmp_path / "run", callbacks=[StopWhen(after(3))])
    with pytest.raises(kedge.UsageError, match=r"an unfinished run; continue it with simulate\(..., resume=True\)"):
        play(tmp_path / "run")
    with locked(tmp_path / "run"), pytest.raises(kedge.UsageError, match="is in use: another process"):
        play(tmp_path / "run", resume=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(kedge.UsageError, match="not empty; nothing was overwritten"):
        play(tmp_path / "other", resume=True)
    with pytest.raises(kedge.UsageError, match="resume is True, but out names no directory"):
        play(None, resume=True)


def test_without_checkpoints_there_are_none(tmp_path):
    play(tmp_path, checkpoint_every="never")
    assert not (tmp_path / "checkpoint").exists()


def test_a_write_that_fails_is_an_os_error_that_names_the_file(tmp_path, monkeypatch):
    def full(beside, path, replace=os.replace):
        if Path(path).suffix == ".safetensors":
            raise OSError(28, "No space left on device")
        replace(beside, path)

    monkeypatch.setattr("kedge.files.os.replace", full)
    with pytest.raises(WriteError, match=r"rows-00000002-0000.safetensors cannot be written: No space left on device"):
        play(tmp_path)
    monkeypatch.undo()
    assert [row["round"] for row in play(tmp_path, resume=True).history] == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("value", "interval"),
    [
        (None, Interval()),
        ("auto", Interval()),
        (0, Interval(rounds=0)),
        (5, Interval(rounds=5)),
        ("5", Interval(rounds=5)),
        ("30s", Interval(seconds=30)),
        ("0.5 s", Interval(seconds=0.5)),
        ("never", Interval(never=True)),
    ],
)
def test_intervals_are_read(value, interval):
    assert Interval.of(value) == interval


@pytest.mark.parametrize("value", [-1, 1.5, True, "often", "-3", "3 m"])
def test_a_wrong_interval_is_named(value):
    with pytest.raises(kedge.UsageError, match="checkpoint_every is "):
        Interval.of(value)


@given(st.floats(0.001, 5), st.floats(0.01, 2), st.integers(0, 10**9))
def test_by_default_checkpoints_take_at_most_their_share(takes, round_seconds, size):
    schedule, now, count = CheckpointTimer(Interval()), 0.0, 0
    for done in range(1, 2000):
        now += round_seconds
        if schedule.is_due(done, now, size):
            now += takes
            schedule.took(takes, now, size)
            count += 1
            # The first is decided by a guess of what it takes.
            assert count == 1 or schedule.spent <= SHARE * now


def test_intervals_of_rounds_and_seconds():
    every = CheckpointTimer(Interval(rounds=3))
    assert [done for done in range(1, 10) if every.is_due(done, 0.0, 0)] == [3, 6, 9]
    assert not any(CheckpointTimer(Interval(rounds=0)).is_due(done, 1e9, 0) for done in range(1, 10))
    timed = CheckpointTimer(Interval(seconds=2))
    assert not timed.is_due(1, 1.9, 0)
    assert timed.is_due(2, 2.0, 0)
    timed.took(0.5, 2.5, 0)
    assert not timed.is_due(3, 4.4, 0)

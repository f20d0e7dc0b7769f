"""Many runs at once: none done twice, none lost with another."""

import hashlib
import multiprocessing
import os
import signal

import pytest

from kedge.errors import UsageError
from kedge.runs.batch import _problem, available_cores, run_batch
from kedge.runs.config import check, run_config

TINY = {
    "data": {"dataset": "quadratics", "clients": 4, "dim": 5},
    "algorithm": {"name": "fedavg", "eta": 0.05},
    "run": {"rounds": 4, "cohort": 2, "local_steps": 2, "batch_size": "full"},
}


def config(**changes):
    sections = {name: dict(values) for name, values in TINY.items()}
    for key, value in changes.items():
        section, name = key.split("__")
        sections[section][name] = value
    return check(sections)


def timeless(history):
    return [{key: value for key, value in row.items() if key != "seconds"} for row in history]


def files(path):
    return {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in path.rglob("*") if file.is_file()}


def test_every_job_is_the_run_it_would_be_alone(tmp_path):
    jobs = {f"eta{eta}-{seed}": config(algorithm__eta=eta, run__seed=seed) for eta in (0.05, 0.1) for seed in (0, 1)}
    events = []
    ended = run_batch(jobs, tmp_path, 2, events.append)
    assert list(ended) == list(jobs)
    for name, job in jobs.items():
        assert timeless(ended[name].rows) == timeless(run_config(job).history)
        assert ended[name].last["round"] == 4
        assert ended[name].path == tmp_path / name
    assert sorted(event.name for event in events if event.ended is not None) == sorted(jobs)
    assert {event.row["round"] for event in events if event.name == "eta0.05-0" and event.row} == {1, 2, 3, 4}
    before = files(tmp_path)
    again = run_batch(jobs, tmp_path, 2, events.append)
    assert again == ended
    assert files(tmp_path) == before
    assert sum(event.found for event in events) == 4


def test_a_batch_goes_on_with_more_rounds_and_reads_fewer(tmp_path):
    longer = {"run": config(run__rounds=9, run__eval_every=1)}
    short = run_batch({"run": config(run__rounds=3, run__eval_every=1)}, tmp_path)["run"]
    run = run_batch(longer, tmp_path)["run"]
    assert timeless(run.rows) == timeless(run_config(longer["run"]).history)
    assert run.rows[:3] == short.rows
    before = files(tmp_path)
    again = run_batch({"run": config(run__rounds=3, run__eval_every=1)}, tmp_path)["run"]
    assert (again.rows, again.last) == (short.rows, short.last)
    assert files(tmp_path) == before


def test_the_end_of_a_shorter_run_is_no_row_of_a_longer_one(tmp_path):
    run_batch({"run": config(run__rounds=3, run__eval_every=2)}, tmp_path)
    longer = run_batch({"run": config(run__rounds=7, run__eval_every=2)}, tmp_path)["run"]
    assert [row["round"] for row in longer.rows] == [2, 4, 6, 7]
    again = run_batch({"run": config(run__rounds=6, run__eval_every=2)}, tmp_path)["run"]
    assert [row["round"] for row in again.rows] == [2, 4, 6]


def test_failures_are_told_and_stop_no_other(tmp_path):
    jobs = {"wild": config(algorithm__eta=1e30), "large": config(run__cohort=9), "good": config()}
    ended = run_batch(jobs, tmp_path, 1)
    assert ended["wild"].diverged in (1, 2, 3, 4)
    assert ended["wild"].last is None
    assert ended["large"].error == "cohort is 9, but the federation has 4 clients"
    assert ended["large"].last is None
    assert ended["good"].last["round"] == 4


def test_a_directory_of_another_run_or_of_something_else_is_refused_before_anything_runs(tmp_path):
    run_batch({"b": config()}, tmp_path)
    with pytest.raises(UsageError, match=r"b holds a different run: algorithm.eta is 0.05 there, but 0.2 here"):
        run_batch({"a": config(), "b": config(algorithm__eta=0.2)}, tmp_path)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "precious").write_text("mine")
    with pytest.raises(UsageError, match="c, but that directory is not empty"):
        run_batch({"a": config(), "c": config()}, tmp_path)
    assert not (tmp_path / "a").exists()


def reached(path):
    return max(int(file.stem.removeprefix("round-")) for file in (path / "checkpoint").glob("round-*.json"))


@pytest.mark.parametrize("processes", [1, 2])
def test_what_is_stopped_goes_on_to_the_same_bits(tmp_path, processes):
    endless = {name: config(run__rounds=10**7, run__eval_every=5, run__seed=seed) for seed, name in enumerate("ab")}
    started = set()

    def watch(event):
        first = len(started) < 2
        started.add(event.name)
        if first and started == {"a", "b"}:
            raise KeyboardInterrupt

    if processes == 1:
        assert run_batch(endless, tmp_path, 1, watch, lambda: bool(started)) == {}
    else:
        with pytest.raises(KeyboardInterrupt):
            run_batch(endless, tmp_path, 2, watch)
    jobs = {name: config(run__rounds=reached(tmp_path / name) + 3, run__eval_every=5, run__seed="ab".index(name))
            for name in started}  # fmt: skip
    ended = run_batch(jobs, tmp_path, 1)
    for name, job in jobs.items():
        assert timeless(ended[name].rows) == timeless(run_config(job).history)


@pytest.mark.parametrize("processes", [1, 2])
def test_ctrl_c_is_raised_and_no_other_run_starts(tmp_path, processes):
    jobs = {name: config(run__rounds=2000, run__eval_every=5, run__seed=seed) for seed, name in enumerate("abc")}

    def watch(event):
        if event.round >= 5 and not interrupted:
            interrupted.append(event.name)
            os.kill(os.getpid(), signal.SIGINT)

    interrupted = []
    with pytest.raises(KeyboardInterrupt):
        run_batch(jobs, tmp_path, processes, watch)
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) <= processes


def test_a_killed_process_loses_its_job_alone(tmp_path):
    jobs = {"endless": config(run__rounds=10**7, run__eval_every=5)} | {seed: config(run__seed=seed) for seed in (1, 2)}
    jobs = {str(name): job for name, job in jobs.items()}
    killed = []

    def watch(event):
        if event.name == "endless" and event.row and not killed:
            killed.extend(multiprocessing.active_children())
            for child in killed:
                os.kill(child.pid, signal.SIGKILL)

    ended = run_batch(jobs, tmp_path, 2, watch)
    assert ended["endless"].error == "its process was ended by SIGKILL"
    assert ended["endless"].rows
    assert all(ended[name].last or ended[name].error == ended["endless"].error for name in "12")
    assert ended["1"].last or ended["2"].last


def test_a_problem_is_loaded_once_and_left_as_it_was(tmp_path):
    _problem.cache_clear()
    run_batch({str(eta): config(algorithm__eta=eta) for eta in (0.01, 0.02, 0.03)}, tmp_path, 1)
    assert (_problem.cache_info().misses, _problem.cache_info().hits) == (1, 2)
    assert 1 <= available_cores() <= (os.cpu_count() or 1)


def test_a_finished_run_without_its_model_counts_only_where_the_hash_will_do(tmp_path):
    jobs = {"run": config(run__rounds=3)}
    first = run_batch(jobs, tmp_path)["run"]
    model = tmp_path / "run" / "model.safetensors"
    assert first.summary is not None
    assert first.summary["model_sha256"] == hashlib.sha256(model.read_bytes()).hexdigest()

    model.unlink()
    events = []
    assert run_batch(jobs, tmp_path, 1, events.append, models=False)["run"].rows == first.rows
    assert [event.found for event in events] == [True]
    assert not model.exists()

    run_batch(jobs, tmp_path)
    assert hashlib.sha256(model.read_bytes()).hexdigest() == first.summary["model_sha256"]

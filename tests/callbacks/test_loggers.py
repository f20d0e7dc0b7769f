"""The loggers write what the real libraries read back."""

import csv
import json
import time
import warnings

import pytest

import kedge
from kedge.callbacks import CSVLogger, MLflowLogger, ProgressBar, TensorBoardLogger, WandbLogger

PROBLEM = kedge.quadratics(clients=4, dim=3, sigma=1.0, samples=12, seed=1)


class Enough:
    def on_round(self, run):
        if run.round == 4:
            run.stop()


def play(*callbacks, **options):
    settings = {"rounds": 6, "cohort": 2, "local_steps": 1, "batch_size": 4, "loss": PROBLEM.loss, "eval_every": 2}
    algorithm = kedge.FedAvg(eta=0.01)
    return kedge.simulate(PROBLEM.model, PROBLEM.federation, algorithm, callbacks=callbacks, **settings | options)


def test_csv_holds_the_history_also_after_an_interruption(tmp_path):
    play(CSVLogger(tmp_path / "log.csv"), Enough(), out=tmp_path / "run")
    result = play(CSVLogger(tmp_path / "log.csv"), out=tmp_path / "run", resume=True)
    with (tmp_path / "log.csv").open() as file:
        rows = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    assert rows == result.history
    assert [row["round"] for row in rows] == [2, 4, 6]


def test_tensorboard_reads_every_column_once(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    play(TensorBoardLogger(tmp_path / "board"), Enough(), out=tmp_path / "run")
    result = play(TensorBoardLogger(tmp_path / "board"), out=tmp_path / "run", resume=True)
    found = EventAccumulator(str(tmp_path / "board")).Reload()
    for name in set(result.history[0]) - {"round"}:
        scalars = found.Scalars(name)
        assert [each.step for each in scalars] == [2, 4, 6]
        assert [each.value for each in scalars] == pytest.approx([row[name] for row in result.history])


def test_weights_and_biases_gets_the_rows_offline(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_CONSOLE", "off")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = play(WandbLogger(dir=str(tmp_path)))
    (written,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    wanted = [b"FedAvg", *(json.dumps(row["test_loss"]).encode() for row in result.history)]
    end = time.monotonic() + 10
    while not all(text in written.read_bytes() for text in wanted):  # another process writes it
        assert time.monotonic() < end
        time.sleep(0.05)


def test_mlflow_gets_the_rows_and_the_parameters(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mlflow.tracking import MlflowClient

        uri = (tmp_path / "mlruns").as_uri()
        first = MLflowLogger(tracking_uri=uri)
        play(first, Enough(), out=tmp_path / "run")
        result = play(MLflowLogger(tracking_uri=uri, run_id=first.run_id), out=tmp_path / "run", resume=True)
        client = MlflowClient(uri)
        metrics = client.get_metric_history(first.run_id, "test_loss")
        assert [(each.step, each.value) for each in metrics] == [
            (row["round"], row["test_loss"]) for row in result.history
        ]
        assert client.get_run(first.run_id).data.params["eta"] == "0.01"


class Broken:
    def on_round(self, run):
        raise ValueError("no such thing")


def test_a_run_that_fails_leaves_no_logger_open(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_CONSOLE", "off")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import wandb
        from mlflow.tracking import MlflowClient

        uri = (tmp_path / "mlruns").as_uri()
        logger = MLflowLogger(tracking_uri=uri)
        with pytest.raises(kedge.CallbackError, match="no such thing"):
            play(logger, WandbLogger(dir=str(tmp_path)), TensorBoardLogger(tmp_path / "board"), ProgressBar(), Broken())
        assert MlflowClient(uri).get_run(logger.run_id).info.status == "FAILED"
    assert wandb.run is None


def test_a_progress_bar_writes_ten_lines_where_nobody_watches(capsys):
    play(ProgressBar(), rounds=30)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) <= 11
    assert lines[-1].startswith("round 30 of 30: test loss ")


def test_a_missing_library_is_named_with_the_way_to_get_it(monkeypatch):
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for make, extra in [
        (lambda: TensorBoardLogger("x"), "tensorboard"),
        (WandbLogger, "wandb"),
        (MLflowLogger, "mlflow"),
    ]:
        with pytest.raises(kedge.UsageError, match=rf"needs {extra}, which is not installed.*kedge\[{extra}\]"):
            make()

"""Write every evaluated row somewhere else too: a CSV file, TensorBoard, Weights & Biases, MLflow."""

import os
from pathlib import Path
from typing import Any

from kedge.files import write_csv
from kedge.runs.live import LiveRun
from kedge.runs.result import need


class _Logger:
    """Passes on rows, once each, when they are in the history; a resumed run continues after its last row."""

    def __init__(self) -> None:
        self._logged = 0

    def on_start(self, run: LiveRun) -> None:
        """Begin, in the process that keeps the history."""
        self._logged = len(run.history)
        if run.leads:
            self._open(run)

    def on_round(self, run: LiveRun) -> None:
        """Pass on what is new."""
        if run.leads:
            self._pass_on(run)

    def on_end(self, run: LiveRun) -> None:
        """Pass on the rest, and close."""
        if run.leads:
            self._pass_on(run)
            self._close(failed=False)

    def on_failure(self, run: LiveRun) -> None:
        """Close, and say that the run failed."""
        if run.leads:
            self._close(failed=True)

    def _pass_on(self, run: LiveRun) -> None:
        for row in run.history[self._logged :]:
            values = {name: float(value) for name, value in row.items() if name != "round"}
            self._write(run, int(row["round"]), values)
        self._logged = len(run.history)

    def _open(self, run: LiveRun) -> None:
        raise NotImplementedError

    def _write(self, run: LiveRun, round: int, values: dict[str, float]) -> None:
        raise NotImplementedError

    def _close(self, *, failed: bool) -> None:
        pass


class CSVLogger(_Logger):
    """Writes the history as a CSV file, which is complete after every evaluation.

    Args:
        path: the file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        self.path = Path(path)

    def _open(self, run: LiveRun) -> None:
        pass

    def _write(self, run: LiveRun, round: int, values: dict[str, float]) -> None:
        write_csv(self.path, run.history)


class TensorBoardLogger(_Logger):
    """Writes every column as a scalar of TensorBoard, and the parameters as text.

    Args:
        directory: where TensorBoard looks for it.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        super().__init__()
        need("tensorboard", "TensorBoardLogger")
        self._directory = str(directory)
        self._writer: Any = None

    def _open(self, run: LiveRun) -> None:
        from torch.utils.tensorboard import SummaryWriter

        again = run.round + 1 if run.round else None
        self._writer = SummaryWriter(self._directory, purge_step=again)
        if again is None:
            table = "\n".join(f"| {name} | {value} |" for name, value in run.parameters.items())
            self._writer.add_text("parameters", f"| setting | value |\n|---|---|\n{table}")

    def _write(self, run: LiveRun, round: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, round)

    def _close(self, *, failed: bool) -> None:
        self._writer.close()


class WandbLogger(_Logger):
    """Logs to Weights & Biases, by default offline: nothing leaves this machine until you run `wandb sync`.

    Args:
        project: its project.
        mode: offline, online or disabled.
        options: anything else that `wandb.init` takes, such as name, dir, id and resume.
    """

    def __init__(self, project: str = "kedge", mode: str = "offline", **options: Any) -> None:
        super().__init__()
        need("wandb", "WandbLogger")
        self._options = {"project": project, "mode": mode} | options
        self.run: Any = None
        """The run of Weights & Biases."""

    def _open(self, run: LiveRun) -> None:
        import wandb

        self.run = wandb.init(config=run.parameters, **self._options)

    def _write(self, run: LiveRun, round: int, values: dict[str, float]) -> None:
        self.run.log(values, step=round)

    def _close(self, *, failed: bool) -> None:
        self.run.finish(exit_code=int(failed))


class MLflowLogger(_Logger):
    """Logs to MLflow.

    Args:
        experiment: the name of its experiment.
        tracking_uri: the server or directory; None is what MLflow itself would use.
        run_id: a run of MLflow to continue; None starts a new one.
    """

    def __init__(self, experiment: str = "kedge", tracking_uri: str | None = None, run_id: str | None = None) -> None:
        super().__init__()
        need("mlflow", "MLflowLogger")
        self._experiment, self._uri = experiment, tracking_uri
        self.run_id = run_id
        """The run of MLflow."""

    def _open(self, run: LiveRun) -> None:
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(self._uri)
        if self.run_id is None:
            found = self._client.get_experiment_by_name(self._experiment)
            experiment = found.experiment_id if found else self._client.create_experiment(self._experiment)
            self.run_id = self._client.create_run(experiment).info.run_id
            for name, value in run.parameters.items():
                self._client.log_param(self.run_id, name, value)

    def _write(self, run: LiveRun, round: int, values: dict[str, float]) -> None:
        assert self.run_id is not None
        for name, value in values.items():
            self._client.log_metric(self.run_id, name, value, step=round)

    def _close(self, *, failed: bool) -> None:
        assert self.run_id is not None
        self._client.set_terminated(self.run_id, "FAILED" if failed else "FINISHED")

"""`simulate`: run one algorithm on one federation, evaluate it, and record what happens."""

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from kedge.algorithm import Algorithm
from kedge.checks import byte_size, whole
from kedge.client import Loss, Metric, check_metrics
from kedge.errors import UsageError, shown, warn
from kedge.problem import Federation
from kedge.rules import PERSONAL
from kedge.runs.checkpoint_timer import Interval
from kedge.runs.directory import RunDirectory, versions
from kedge.runs.interrupts import stopping_on_interrupt
from kedge.runs.live import Callbacks, LiveRun
from kedge.runs.reader import Row, read_config
from kedge.runs.rebuild import described, extended
from kedge.runs.recording import Recording
from kedge.runs.result import DivergedError as DivergedError
from kedge.runs.result import Result as Result
from kedge.runs.settings import SimulationSettings
from kedge.settings import Settings, documented
from kedge.simulator import Simulation
from kedge.simulator.evaluate import client_columns
from kedge.simulator.fingerprint import fingerprint
from kedge.simulator.ranks import current_processes


@documented(SimulationSettings)
def simulate(
    model: nn.Module,
    federation: Federation,
    algorithm: Algorithm[Any, Any],
    rounds: int = 100,
    cohort: int | None = 10,
    local_steps: int = 16,
    batch_size: int | None = 32,
    loss: Loss | None = None,
    weight_decay: float = 0.0,
    seed: int = 0,
    eval_every: int = 1,
    device: str = "cpu",
    out: str | os.PathLike[str] | RunDirectory | None = None,
    *,
    resume: bool = False,
    callbacks: Sequence[object] = (),
    metrics: Mapping[str, Metric] | None = None,
    **settings: Any,
) -> Result:
    """Run ``rounds`` rounds of ``algorithm`` from the parameters of ``model``, which is not changed.

    Ctrl-C ends the run after its round: it returns the result so far and, with ``out``, the run can be resumed.

    Args:
        model: any module; its parameters are x^0 and its dtype is the dtype of the run.
        federation: the clients' data and the test set.
        algorithm: for example ``kedge.ScaffoldM(eta=0.1)``.
        loss: ``loss(output, y)``, a mean over the samples; cross-entropy if None.
        out: a new directory for metrics, checkpoints, model and summary.
        resume: continue from the last checkpoint in ``out``, if any. The result is that of an uninterrupted run.
        callbacks: objects with any of the methods on_start, on_evaluate, on_round, on_end and on_failure, which see the
            live run (`kedge.LiveRun`), may add columns to its rows, ask its clients, and stop it.
        metrics: your own metrics by name, as in ``{"f1": f1}``: functions of all outputs and targets of the test set,
            or objects of torchmetrics. The column of "f1" is ``test_f1``.
        {settings}
    """
    if isinstance(algorithm, type):
        name = algorithm.__name__
        raise UsageError(f"algorithm is {name}, which is a class; pass an object, as in kedge.FedAvg(eta=0.1)")
    for name, value, everything in (("cohort", cohort, "all clients"), ("batch_size", batch_size, "all samples")):
        if isinstance(value, str):
            rule = f"a whole number of at least 1, or None for {everything}"
            raise UsageError(f"{name} is {shown(value)}, but must be {rule}")
    chosen = SimulationSettings(
        rounds=rounds, cohort=cohort, local_steps=local_steps, batch_size=batch_size, weight_decay=weight_decay,
        seed=seed, eval_every=whole("eval_every", eval_every, 1), device=str(device), **settings,
    )  # fmt: skip
    return play(model, federation, algorithm, chosen, loss, out, callbacks, metrics, resume=resume)


def play(
    model: nn.Module,
    federation: Federation,
    algorithm: Algorithm[Any, Any],
    chosen: SimulationSettings,
    loss: Loss | None,
    out: str | os.PathLike[str] | RunDirectory | None,
    callbacks: Sequence[object],
    metrics: Mapping[str, Metric] | None,
    *,
    resume: bool,
) -> Result:
    """Do what `simulate` says, with settings that are checked."""
    rounds, eval_every = chosen.rounds, whole("eval_every", chosen.eval_every, 1)
    interval, own = Interval.of(chosen.checkpoint_every), check_metrics(metrics)
    if resume and out is None:
        raise UsageError("resume is True, but out names no directory to resume from")
    if not current_processes().leads:
        out = None  # the first process keeps the directory
    if out is not None and not isinstance(out, RunDirectory):
        there = read_config(Path(out)) if resume else None
        said = (
            described(model, federation, algorithm, loss, chosen, {"metrics": own}) if there is None
            else extended(there, chosen.rounds)
        )  # fmt: skip
        out = RunDirectory(out, said, resume=resume, python=True)
    directory = out
    # Locked before anything is computed, until the end: no other process can use the same directory.
    with nullcontext() if directory is None else directory.opened():
        run = Simulation(
            model, federation, algorithm, chosen.part(Settings), loss or cross_entropy,
            chosen.device, chosen.engine, chosen.threads, byte_size("state_memory", chosen.state_memory),
            None if directory is None else directory.path,
        )  # fmt: skip

        by_client = _evaluates_clients(run, chosen.eval_clients, given=bool(own))
        record = Recording(run, federation, directory, interval, own)

        def facts() -> dict[str, Any]:
            # A different engine or version changes the last bits, and every process folds the replies itself.
            here = versions() | run.computes_with() | {"rounds": rounds, "resume": resume}
            when = {"eval_every": eval_every, "eval_clients": by_client}
            return fingerprint(run, federation) | here | when

        run.processes.check_alike(facts)  # in all of them: only the first one compares with the directory

        def result() -> Result:
            interrupted = live.interrupted and run.round < rounds
            return Result(run.model, record.history, run.cohorts, run.server, run, own, interrupted)

        place, told = None if directory is None else directory.path, Callbacks(callbacks)
        live = LiveRun(run, rounds, record.history, place, own)

        def tell(moment: str, *arguments: Any) -> None:
            told.tell(moment, live, *arguments)
            record.skip(live.take_asking())

        def evaluated(before: Tensor) -> bool:
            """Evaluate, notify the callbacks and keep the row; return whether everything is finite."""
            row: Row = {}
            # Personal layers are wherever their clients are, so every process takes part.
            clients = run.evaluate_clients(own) if by_client and (run.is_personal or run.processes.leads) else []
            if run.processes.leads:
                row = _measure(run, before, clients, own) | {"seconds": record.seconds()}
            if not _finite(run, row):
                return False
            tell("on_evaluate", row)
            if run.processes.leads:
                record.add(row)
            return True

        # The model's own random numbers are keyed; the caller's random state is left as it was.
        keyed = _forked(run.flat.initial.device) if run.random else nullcontext()
        with (
            keyed, closing(run), record.opened(resume, rounds), told.closed_on_failure(live),
            stopping_on_interrupt(live.interrupt),
        ):  # fmt: skip
            tell("on_start")
            for done in range(run.round + 1, rounds + 1):
                before = run.moment.state.x
                due = done % eval_every == 0 or done == rounds
                run.advance(measured=due)
                finite = evaluated(before) if due else _finite(run, {})
                if finite:
                    tell("on_round")
                diverged, stopped, due, every = run.processes.agree(
                    not finite, live.stopping and done < rounds, record.is_due(), record.wants_all
                )
                if diverged:
                    record.diverged()
                    tell("on_end")
                    raise DivergedError(_why(run), result())
                if due:
                    record.checkpoint(every=every)
                if stopped:
                    record.checkpoint_now()
                    tell("on_end")
                    return result()
            last = record.history[-1]["round"] if record.history else 0
            if run.processes.agree(run.processes.leads and last < rounds)[0]:  # other settings stopped it here
                evaluated(run.moment.state.x)
            final = result()
            record.finish(final.model)
            tell("on_end")
        return final


def _forked(device: torch.device) -> AbstractContextManager[None]:
    """Restore torch's random state at the end, also that of the device."""
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


def _evaluates_clients(run: Simulation, asked: bool, *, given: bool) -> bool:
    """Return whether to evaluate client by client, and say what personal layers change; ``given`` are metrics."""
    test, own = run.federation.test, run.federation.client_tests
    if not run.is_personal:
        if given and test is None and not asked:
            raise UsageError("metrics is given, but the federation has no test set; give it one, or set eval_clients")
        return asked
    needs = "give the clients their own test sets (client_tests), or set eval_clients"
    if given and own is None and not asked:
        raise UsageError(f"metrics is given, but {PERSONAL}; {needs}")
    where = "on its own test set" if own is not None else "on the data that it trains on"
    said = f"each client's own is evaluated, {where}" if asked or own is not None else f"nothing is evaluated; {needs}"
    if run.processes.leads and (test is not None or own is None):
        warn(f"{PERSONAL}: {said}")
    return asked or own is not None


def _measure(run: Simulation, before: Tensor, clients: list[dict[str, float]], metrics: Mapping[str, Metric]) -> Row:
    moment, data = run.moment, run.federation
    row: Row = {"round": run.round}
    if data.test is not None and not run.is_personal:
        row |= {f"test_{name}": value for name, value in run.evaluate(metrics).items()}
    row |= client_columns(clients, data)
    if math.isfinite(run.train_loss):
        row["train_loss"] = run.train_loss
    row["step_norm"] = float((moment.state.x - before).norm())
    return row | {"bytes_down": moment.bytes_down, "bytes_up": moment.bytes_up, "gradients": moment.gradients}


def _finite(run: Simulation, row: Row) -> bool:
    x, loss = run.moment.state.x, float(row.get("test_loss", row.get("clients_test_loss", 0.0)))
    # A finite sum is the quicker proof, but in half precision the sum of finite numbers may not be finite.
    return math.isfinite(loss) and bool(x.sum().isfinite() or x.isfinite().all())


def _why(run: Simulation) -> str:
    name = type(run.algorithm).__name__
    return (
        f"{name} diverged: the loss is not finite in round {run.round}; "
        f"the likely cause is a learning rate that is too large (eta is {run.algorithm.at(run.round - 1).eta:g})"
    )

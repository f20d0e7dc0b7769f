"""`simulate`: run one algorithm on one federation, evaluate it, and keep what happened."""

import math
import os
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from kedge.algorithm import Algorithm
from kedge.checks import byte_size, whole
from kedge.client import Loss
from kedge.errors import FailedRunError, UsageError
from kedge.problem import Federation
from kedge.round import Weights
from kedge.runs.directory import RunDirectory, environment
from kedge.runs.live import Callbacks, LiveRun
from kedge.runs.reader import Row
from kedge.runs.recording import Recording
from kedge.runs.schedule import Interval
from kedge.runs.settings import STATE_MEMORY
from kedge.simulator import Settings, Simulation
from kedge.simulator.evaluate import evaluate, evaluate_clients
from kedge.simulator.fingerprint import fingerprint
from kedge.simulator.ranks import current_processes


@dataclass(frozen=True)
class Result:
    """What a run leaves."""

    model: nn.Module
    """The final model: an independent copy of yours with the trained parameters, in evaluation mode."""
    history: list[Row]
    """A row per evaluated round; `round` counts finished rounds, bytes, gradients and seconds are totals."""
    cohorts: Sequence[list[int]]
    """The clients of every round, in the order in which they were drawn."""
    server: dict[str, Tensor]
    """The server's vectors by name: `x`, and whatever else the algorithm keeps."""
    simulation: Simulation

    def client(self, number: int) -> dict[str, Tensor]:
        """Return a client's own vectors by name."""
        return self.simulation.client(number)


class DivergedError(FailedRunError):
    """A run whose loss or model is no longer finite; `result` holds all that was recorded before."""

    def __init__(self, message: str, result: Result) -> None:
        super().__init__(message)
        self.result = result


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
    local_epochs: float | None = None,
    weights: Weights = "uniform",
    lost_replies: float = 0.0,
    eval_clients: bool = False,
    engine: str = "auto",
    threads: int | None = None,
    shards: int = 16,
    state_memory: int | str = STATE_MEMORY,
    checkpoint_every: int | str | None = None,
    resume: bool = False,
    callbacks: Sequence[object] = (),
) -> Result:
    """Run ``rounds`` rounds of ``algorithm`` from the parameters of ``model``, which is not changed.

    Args:
        model: any module; its parameters are x^0 and its dtype is the dtype of the run.
        federation: the clients' data and the test set.
        algorithm: for example ``kedge.ScaffoldM(eta=0.1)``.
        rounds: R.
        cohort: S, the clients of a round, drawn uniformly without replacement; None is all of them.
        local_steps: K, the local steps of a client in a round.
        batch_size: samples of a minibatch; None is the client's whole data, so that gradients are exact.
        loss: ``loss(output, y)``, a mean over the samples; cross-entropy if None.
        weight_decay: λ; λx is added to the gradient wherever one is taken.
        seed: of cohorts, minibatches, dropout masks and lost replies.
        eval_every: evaluate every so many rounds, and after the last one.
        device: where to compute.
        out: a new directory for metrics, checkpoints, model and summary.
        local_epochs: instead of local_steps, passes over the client's own data: K_i then differ.
        weights: of the clients in the objective, "uniform" or by "size" of their data.
        lost_replies: the probability that a sampled client's reply is lost.
        eval_clients: evaluate on every client's own data too (mean and worst decile).
        engine: "auto", "module" (any model, by autograd), "fused-mlp" (stacks of linear layers) or "fused-cnn" (stacks
            of convolutions, pooling and linear layers).
        threads: how many clients to run at once; None is torch.get_num_threads(). The result does not depend on it.
            A model of more than 4 million parameters runs one client at a time on all of torch's threads instead.
        shards: the clients are divided into so many; replies are summed within each, then over them. The most processes
            that a run can have; it changes the last bits of the result.
        state_memory: how much of the clients' state to keep in memory, in bytes or as "500MB"; the rest goes to a
            scratch file in ``out``, or without it where temporary files go. The result does not depend on it.
        checkpoint_every: rounds between checkpoints in ``out``, or "30s" for seconds; 0 is only at the end or when
            stopped, "never" not even then. None is as often as takes no more than a fiftieth of the time.
        resume: go on from the last checkpoint in ``out``, if there is one. The result is that of an uninterrupted run.
        callbacks: objects with some of the methods on_start, on_evaluate, on_round and on_end, which see the live run
            (`kedge.LiveRun`), may add columns to its rows, ask its clients, and stop it.
    """
    whole("rounds", rounds, 1)
    whole("eval_every", eval_every, 1)
    if threads is not None:
        whole("threads", threads, 1)
    settings = Settings(
        cohort=cohort, local_steps=local_steps, local_epochs=local_epochs, batch_size=batch_size,
        weight_decay=weight_decay, weights=weights, lost_replies=lost_replies, seed=seed, shards=shards,
    )  # fmt: skip
    interval = Interval.of(checkpoint_every)
    if resume and out is None:
        raise UsageError("resume is True, but out names no directory to go on from")
    if not current_processes().leads:
        out = None  # the first process keeps the directory
    directory = out if isinstance(out, RunDirectory) or out is None else RunDirectory(out, resume=resume)
    # Taken before anything is computed, and until the end: nobody else can mean the same directory.
    with nullcontext() if directory is None else directory.opened():
        run = Simulation(
            model, federation, algorithm, settings, loss or cross_entropy, device, engine, threads,
            byte_size("state_memory", state_memory), None if directory is None else directory.path,
        )  # fmt: skip

        record = Recording(run, federation, directory, interval)

        def facts() -> dict[str, Any]:
            # An engine or a version of its own changes the last bits, and every process folds the replies itself.
            here = environment() | run.computes_with() | {"rounds": rounds, "resume": resume}
            return fingerprint(run, federation) | here

        run.processes.check_alike(facts)  # in all of them: only the first one compares with the directory

        def result() -> Result:
            return Result(run.model, record.history, run.cohorts, run.server, run)

        live, told = LiveRun(run, rounds, record.history), Callbacks(callbacks)

        def evaluated(before: Tensor) -> bool:
            """Evaluate, tell the callbacks and keep the row; return whether everything is finite."""
            row = _measure(run, before, eval_clients) | {"seconds": record.seconds()} if run.processes.leads else {}
            if not _finite(run, row):
                return False
            told.tell("on_evaluate", live, row)
            if run.processes.leads:
                record.add(row)
            return True

        # The model's own random numbers are keyed; whatever the caller draws elsewhere stays as it was.
        with torch.random.fork_rng(devices=[], enabled=run.random), closing(run), record.opened(resume, rounds):
            told.tell("on_start", live)
            for done in range(run.round + 1, rounds + 1):
                before = run.moment.state.x
                run.advance()
                finite = evaluated(before) if done % eval_every == 0 or done == rounds else _finite(run, {})
                if finite:
                    told.tell("on_round", live)
                diverged, stopped, due, every = run.processes.agree(
                    not finite, live.stopping and done < rounds, record.is_due(), record.wants_all
                )
                if diverged:
                    record.diverged()
                    told.tell("on_end", live)
                    raise DivergedError(_why(run), result())
                if due:
                    record.checkpoint(every=every)
                if stopped:
                    record.checkpoint_now()
                    told.tell("on_end", live)
                    return result()
            last = record.history[-1]["round"] if record.history else 0
            if run.processes.agree(run.processes.leads and last < rounds)[0]:  # it was stopped here by other settings
                evaluated(run.moment.state.x)
            final = result()
            record.finish(final.model)
            told.tell("on_end", live)
        return final


def _measure(run: Simulation, before: Tensor, eval_clients: bool) -> Row:
    module = run.flat.module
    moment = run.moment
    run.flat.bind(moment.state.x)
    run.flat.buffers.copy_(moment.buffers)
    row: Row = {"round": run.round}
    if run.federation.test is not None:
        row |= {f"test_{name}": value for name, value in evaluate(module, run.loss, *run.federation.test).items()}
    if eval_clients:
        row |= evaluate_clients(module, run.loss, run.federation)
    row["step_norm"] = float((moment.state.x - before).norm())
    return row | {"bytes_down": moment.bytes_down, "bytes_up": moment.bytes_up, "gradients": moment.gradients}


def _finite(run: Simulation, row: Row) -> bool:
    x, loss = run.moment.state.x, float(row.get("test_loss", 0.0))
    # A finite sum is the quicker proof, but in half precision the sum of finite numbers may not be finite.
    return math.isfinite(loss) and bool(x.sum().isfinite() or x.isfinite().all())


def _why(run: Simulation) -> str:
    name = type(run.algorithm).__name__
    return (
        f"{name} diverged: the loss is not finite in round {run.round}; "
        f"the likely cause is a learning rate that is too large (eta is {run.algorithm.eta:g})"
    )

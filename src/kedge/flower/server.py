"""The server's half: rounds over Flower's Grid, with a checkpoint after each of them.

A round is atomic. If an exchange gets too few replies, the whole round is played again from the state before it; if
this process dies, the next one resumes from the last checkpoint. Clients are told of neither.
"""

import dataclasses
import secrets
import time
from collections.abc import Callable
from contextlib import ExitStack
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context
from flwr.common import log
from flwr.serverapp import Grid, ServerApp
from torch import nn
from torch.nn.functional import cross_entropy

from kedge.client import FlatModule, Loss
from kedge.errors import FailedRunError, UsageError
from kedge.files import InUseError
from kedge.flower.agreement import Agreement
from kedge.flower.arrays import Spec
from kedge.flower.checkpoint import Checkpoint, Progress
from kedge.flower.client import Data, MakeModel, made
from kedge.flower.fleet import Fleet
from kedge.flower.gather import Counted, Gatherer, TooFewError
from kedge.flower.record import Record
from kedge.flower.secret import noise_of, noise_seed
from kedge.keyed import sample_cohort
from kedge.round import AnyAlgorithm, Moment, Rounds

LOCKED = 60.0
"""Seconds to wait for an earlier ServerApp to end: one may outlive its SuperLink."""


def server_app(
    model: MakeModel,
    *,
    load_test: Callable[[Context], Data] | None = None,
    loss: Loss | None = None,
    algorithm: AnyAlgorithm | None = None,
) -> ServerApp:
    """Return the app of the server.

    The run config says everything else: ``algorithm.name`` and its hyper-parameters, ``run.rounds``, ``flower.out``.

    Args:
        model: a module, or a function that makes one; its parameters are x^0.
        load_test: gets the context and returns test samples and labels, on which the server evaluates the model.
        loss: ``loss(output, y)``, a mean over the samples; cross-entropy if None.
        algorithm: your own, instead of the one that the run config names; the clients' must be the same.
    """
    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator, unused-ignore]
    def main(grid: Grid, context: Context) -> None:
        agreed = Agreement.read(context.run_config, algorithm)
        test = None if load_test is None else load_test(context)
        Server(grid, agreed, made(model, context), test, loss or cross_entropy).run()

    return app


class Server:
    """A federation, from where its last checkpoint left it to its last round."""

    def __init__(
        self,
        grid: Grid,
        agreed: Agreement,
        model: nn.Module,
        test: Data | None = None,
        loss: Loss = cross_entropy,
        sleep: Callable[[float], Any] = time.sleep,
    ) -> None:
        self._grid, self._agreed, self._sleep = grid, agreed, sleep
        self._flat = FlatModule(model, torch.device("cpu"))
        self._record = Record(Path(agreed.flower.out), agreed, self._flat, test, loss)
        self._checkpoint = Checkpoint(self._record.directory.checkpoints)
        self._opened = False
        self._cached: Rounds | None = None

    def run(self) -> None:
        """Play the rounds that are left."""
        with ExitStack() as held:
            self._lock(held)
            finished = self._restore()
            if finished:
                log(INFO, "the run in %s is finished", self._record.directory.path)
                return
            self._save()  # with a new epoch: no earlier question has its tags
            self._await()
            while self.moment.round < self._agreed.run.rounds:
                self._advance()
            self._record.finish(self.moment)
            log(INFO, "the run is finished; it is in %s", self._record.directory.path)

    def _lock(self, held: ExitStack) -> None:
        end = time.monotonic() + LOCKED
        while True:
            try:
                held.enter_context(self._record.directory.opened())
                return
            except InUseError:
                if time.monotonic() > end:
                    raise
                self._sleep(1)

    # ---- where the run is

    def _restore(self) -> bool:
        """Go to the last checkpoint, or to the start; return whether the run is finished."""
        agreed = self._agreed
        self.versions = Counted()
        begin = Rounds(agreed.algorithm, agreed.settings, np.ones(agreed.clients, np.int64), forms=False).begin
        self.moment = begin(self._flat.initial, self._flat.buffers.clone())
        found = self._checkpoint.load(self.moment)
        names: dict[str, int] = {}
        sizes: dict[int, int] = {}
        epoch, seconds, self._identity, self._generation = 1, 0.0, secrets.token_hex(4), agreed.flower.generation
        if found is not None:
            standing, self.moment = found
            names, sizes, epoch = dict(standing.names), dict(standing.sizes), standing.epoch + 1
            self._identity, self._opened, seconds = standing.identity, standing.opened, standing.seconds
            self.versions.now = dict(standing.versions)
            if standing.generation > agreed.flower.generation:
                raise UsageError(
                    f"flower.generation is {agreed.flower.generation}, but the run is at {standing.generation}"
                )
            if standing.generation < agreed.flower.generation:
                self._start_anew(begin(self.moment.state.x, self.moment.buffers))
        self._flat.bind(self.moment.state.x)
        self._flat.release()
        self._epoch = epoch
        self.versions.settle()
        self.fleet = Fleet(self._grid, agreed.clients, names, sizes)
        identity = f"{agreed.flower.experiment}.{self._identity}"
        self.gather = Gatherer(
            self._grid, self.fleet, agreed, self._rounds, Spec.of(self.moment.state.x), identity, epoch, self.versions,
            self._sleep,
        )  # fmt: skip
        return self._record.begin(self.moment, seconds)

    def _start_anew(self, fresh: Moment) -> None:
        """Keep the model and the counters; all other state is that of a new run."""
        log(WARNING, "the experiment starts again at round %s, with fresh state everywhere", self.moment.round)
        self.moment = self.moment._replace(state=fresh.state)
        self._opened, self.versions.now = False, {}

    def _save(self) -> None:
        moment = self.moment
        self._checkpoint.save(
            Progress(
                identity=self._identity, epoch=self._epoch, generation=self._generation, opened=self._opened,
                round=moment.round, bytes_down=moment.bytes_down, bytes_up=moment.bytes_up,
                gradients=moment.gradients, seconds=self._record.seconds(), versions=self.versions.now,
                names=self.fleet.names, sizes=self.fleet.sizes,
            ),
            moment,
        )  # fmt: skip
        self.versions.settle()

    def _rounds(self) -> Rounds:
        """Return the server's rules, with the sizes of the clients as far as they are known."""
        agreed, sizes = self._agreed, self.fleet.sizes
        known = np.array([sizes.get(client, 0) for client in range(agreed.clients)], np.int64)
        if not known.all() and (agreed.settings.weights == "size" or agreed.settings.local_epochs is not None):
            missing = int(np.flatnonzero(known == 0)[0])
            raise FailedRunError(f"the size of client {missing} is not known, but the weights or steps depend on it")
        if self._cached is None or not np.array_equal(self._cached.sizes, known):
            seed = noise_seed(self._checkpoint.directory) if agreed.settings.reply_transforms else None
            self._cached = Rounds(agreed.algorithm, agreed.settings, known, forms=False, noise_seed=seed)
        return self._cached

    # ---- playing

    def _await(self) -> None:
        flower, clients = self._agreed.flower, self._agreed.clients
        least = flower.min_clients or clients
        if not self.fleet.wait(lambda present: len(present) >= least, flower.wait, self._sleep):
            here = len(self.fleet.present())
            raise FailedRunError(f"{here} of {clients} clients are connected after {flower.wait:g} s, but {least} must")

    def _advance(self) -> None:
        """Play the opening, if it is due, and a round, each with its checkpoint."""
        if not self._opened:
            if self._agreed.algorithm.at(0).opening():
                self.moment = self._played(range(self._agreed.clients), opening=True)
                self._record.check(self.moment)
            self._opened = True
            self._save()
        round, began = self.moment.round, time.monotonic()
        before = self.moment.state.x
        self.moment = self._played(self._cohort(round), opening=False)
        self._flat.bind(self.moment.state.x)
        row = self._record.add(self.moment, before, self.gather.metrics)
        self._save()
        shown = "".join(f", {name} {row[name]:.4g}" for name in ("test_loss", "test_accuracy") if name in row)
        log(INFO, "round %s of %s: %.1f s%s", round + 1, self._agreed.run.rounds, time.monotonic() - began, shown)

    def _cohort(self, round: int) -> list[int]:
        agreed, flower = self._agreed, self._agreed.flower
        pool = list(range(agreed.clients))
        if flower.sampling == "present":
            if not self.fleet.wait(lambda present: len(present) >= flower.min_replies, flower.wait, self._sleep):
                here = len(self.fleet.present())
                raise FailedRunError(
                    f"{here} clients are connected after {flower.wait:g} s, but {flower.min_replies} must reply"
                )
            pool = self.fleet.present()
        size = min((agreed.settings.cohort or agreed.clients) + agreed.flower.oversample, len(pool))
        return [pool[place] for place in sample_cohort(agreed.settings.seed, round, len(pool), size)]

    def _played(self, cohort: Any, *, opening: bool) -> Moment:
        """Play until there are enough replies."""
        flower, round = self._agreed.flower, self.moment.round
        silent: set[int] = set()
        for attempt in range(flower.attempts):
            if attempt:
                self._wait_for(cohort)
                silent &= set(cohort) - set(self.fleet.present()) | self.gather.silent
            self.gather.begin(evaluate=not opening and flower.eval_clients and self._record.is_due(round + 1))
            able = [client for client in cohort if client not in silent]
            few = len(able) < flower.min_replies or self._agreed.algorithm.full_participation
            rounds = self._rounds()
            if rounds.noise_seed is not None:
                rounds = dataclasses.replace(rounds, noise_seed=noise_of(rounds.noise_seed, self.gather.attempt))
            try:
                if opening:
                    return rounds.open(self.moment, self.gather)
                return rounds.advance(self.moment, self.gather, cohort if few else able)
            except TooFewError as error:
                self.versions.roll_back()
                silent |= self.gather.silent
                log(WARNING, "round %s is played again: %s", round, error)
        raise FailedRunError(f"round {round} failed {flower.attempts} times: too few replies")

    def _wait_for(self, cohort: Any) -> None:
        flower, full = self._agreed.flower, self._agreed.algorithm.full_participation
        least = len(cohort) if full else min(flower.min_replies, len(cohort))
        self.fleet.wait(lambda present: len(set(present) & set(cohort)) >= least, flower.wait, self._sleep)

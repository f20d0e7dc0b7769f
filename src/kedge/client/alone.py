"""A client that has nothing but its own data."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from kedge.client.evaluation import evaluate
from kedge.client.flat import FlatModule, convolves
from kedge.client.steps import Autograd, ClientSteps, Loss
from kedge.client.trial import try_model
from kedge.round import AnyAlgorithm, Form, Member, Question, Reply, Rules, answer
from kedge.samples import Eager, Input, mapped, read_input, read_labels
from kedge.settings import Settings


class Client:
    """Answers a server's questions from its own samples. It keeps no state: state is passed in, and the next proposed.

    Args:
        number: which client of the federation this is; its random draws depend on it.
        model: the module that the server trains; only its structure matters here.
        features: the client's samples.
        labels: their labels.
        algorithm: the server's algorithm.
        settings: the rules of the federation.
        loss: ``loss(output, y)``, a mean over the samples.
        noise_seed: of the noise of `kedge.Privacy`, a secret of this client; None is the federation's seed, which
            others know, as a simulation needs it.

    The local update and the reply transforms of the settings are applied by `answer`: its reply holds what may be sent,
    and its state what they keep.
    """

    def __init__(
        self,
        number: int,
        model: nn.Module,
        features: Any,
        labels: Any,
        algorithm: AnyAlgorithm,
        settings: Settings,
        loss: Loss = cross_entropy,
        *,
        noise_seed: int | None = None,
    ) -> None:
        self.number, self.algorithm, self.settings = number, algorithm, settings
        self._flat = FlatModule(model, torch.device("cpu"))
        dtype = self._flat.initial.dtype
        inputs, self._labels = as_taken(features, labels, dtype)
        if convolves(model, inputs):
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        samples = Eager(inputs, self._labels)
        rows = torch.arange(len(self._labels))
        first = rows[: settings.batch_size]
        who = f"a minibatch of client {number} has {len(first)} sample"
        trial = try_model(self._flat, *samples.take(first), loss, [self._labels], who)
        self._steps = ClientSteps(self._flat, Autograd(self._flat, trial.loss), samples, lambda _: rows)
        self._rules = Rules.of(
            algorithm, settings, self._flat.places, self._flat.initial, trial.random,
            statistics=self._flat.buffers.numel() > 0, noise_seed=noise_seed,
        )  # fmt: skip

    @property
    def samples(self) -> int:
        """The number of samples."""
        return len(self._labels)

    @property
    def initial(self) -> Tensor:
        """The model's own parameters as one vector."""
        return self._flat.initial

    @property
    def buffers(self) -> Tensor:
        """The model's own buffers as one vector."""
        return self._flat.buffers

    def initial_state(self) -> Any:
        """Return the state of a client that has not taken part yet."""
        return self._rules.initial_state(self._flat.initial)

    def entered(self, x: Tensor, state: Any) -> Tensor:
        """Return the server's ``x`` as the client sees it, with its personal layers."""
        return self._rules.entered(x, state._asdict())

    def evaluated(self, x: Tensor, buffers: Tensor, loss: Loss, features: Input, labels: Tensor) -> dict[str, float]:
        """Return the metrics of a model with these parameters and buffers on other samples."""
        self._flat.bind(x)
        self._flat.buffers.copy_(buffers)
        return evaluate(self._flat.module, loss, features, labels)

    def release(self) -> None:
        """Let go of the model's own parameters, since questions bring others: `initial` keeps only their form."""
        self._flat.release()

    def answer(self, question: Question, state: Any) -> Reply:
        """Answer from a state; the reply proposes the next one."""
        needs = Form.of(self.algorithm, question.exchange).needs
        member = Member(self.number, self.samples, state)
        with torch.no_grad():
            (reply,) = answer(self._rules, question, needs, [member], self._steps.run)
        return reply


def as_taken(features: Any, labels: Any, dtype: torch.dtype) -> tuple[Input, Tensor]:
    """Return samples and labels as the model takes them: floats in its dtype, integers unchanged."""

    def moved(leaf: Tensor) -> Tensor:
        return leaf.to(dtype) if leaf.is_floating_point() else leaf

    targets = moved(read_labels(labels, "the labels"))
    return mapped(moved, read_input(features, "the features", len(targets))), targets

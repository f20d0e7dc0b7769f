"""The client's half of an exchange, in a process that Flower may start anew for every message."""

import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from kedge.client import Client, Loss, as_taken
from kedge.errors import UsageError, shown
from kedge.exchange import Effort
from kedge.flower.agreement import Agreement
from kedge.flower.arrays import Spec
from kedge.flower.secret import noise_of, noise_seed
from kedge.flower.versions import FRESH, Messages, Versions
from kedge.flower.wire import (
    SENTENCE,
    Asked,
    Layout,
    Layouts,
    Present,
    Refused,
    Told,
    about,
    names,
    pack,
    unpack,
    unpack_buffers,
)
from kedge.round import OPENING, AnyAlgorithm, AnyExchange, Question
from kedge.transforms import is_sparse

Data = tuple[Any, Any]
"""Samples and labels."""

MakeModel = nn.Module | Callable[..., nn.Module]
"""A module, or a function that makes it; if it requires an argument, it gets the context."""


def client_app(
    model: MakeModel,
    load_data: Callable[[Context], Data],
    *,
    load_test: Callable[[Context], Data] | None = None,
    loss: Loss | None = None,
    algorithm: AnyAlgorithm | None = None,
) -> ClientApp:
    """Return the app of a client.

    The node config says who it is (``client=0``, or ``name="..."``) and where to keep its state (``state-dir``).

    Args:
        model: a module, or a function that makes one; only its structure matters here.
        load_data: gets the context and returns the client's own samples and labels.
        load_test: likewise its test samples, for ``flower.eval_clients``.
        loss: ``loss(output, y)``, a mean over the samples; cross-entropy if None.
        algorithm: your own, instead of the one that the run config names; the server's must be the same.
    """
    app = ClientApp()

    @app.query()  # type: ignore[untyped-decorator, unused-ignore]
    def present(message: Message, context: Context) -> Message:
        def told() -> RecordDict:
            _, labels = load_data(context)
            name = context.node_config.get("name", "")
            return pack(Present(client=_number(context), name=str(name), samples=len(labels)), {})

        return Message(_guarded(told), reply_to=message)

    @app.train()  # type: ignore[untyped-decorator, unused-ignore]
    def answer(message: Message, context: Context) -> Message:
        def told() -> RecordDict:
            agreed = Agreement.read(context.run_config, algorithm)
            test = load_test(context) if load_test is not None and agreed.flower.eval_clients else None
            desk = Desk(agreed, lambda: made(model, context), load_data(context), test, loss or cross_entropy, context)
            return desk.answer(message.content)

        return Message(_guarded(told), reply_to=message)

    return app


def made(model: MakeModel, context: Context) -> nn.Module:
    """Return the module."""
    if isinstance(model, nn.Module):
        return model
    required = [p for p in inspect.signature(model).parameters.values() if p.default is p.empty]
    found = model(context) if any(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in required) else model()
    if not isinstance(found, nn.Module):
        raise UsageError(f"model made {shown(found)}, but must make a torch.nn.Module")
    return found


def _guarded(told: Callable[[], RecordDict]) -> RecordDict:
    """Tell the server in one sentence why there is no answer."""
    try:
        return told()
    except (UsageError, OSError) as error:
        return pack(Refused(refused=str(error)[:SENTENCE]), {})


def client_number(context: Context) -> int:
    """Return the number of a client from its node config: ``client``, or Flower's own ``partition-id``."""
    number = _number(context)
    if number < 0:
        raise UsageError("the node config has no client, the number of this client")
    return number


def _number(context: Context) -> int:
    value = context.node_config.get("client", context.node_config.get("partition-id", -1))
    named = "name" in context.node_config and value == -1
    if not named and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise UsageError(f"client of the node config is {shown(value)}, but must be a whole number of at least 0")
    return int(value)


def _home(context: Context, agreed: Agreement, asked: Asked) -> Path:
    place = context.node_config.get("state-dir")
    if place is None and "num-partitions" in context.node_config:  # a node of Flower's simulation, on the server's disk
        place = agreed.flower.state_dir
    if not isinstance(place, str) or not place:
        raise UsageError("the node config has no state-dir, where this client's state is kept")
    return Path(place) / asked.experiment / f"client-{asked.client}"


class Desk:
    """One client, for one message."""

    def __init__(
        self, agreed: Agreement, make: Callable[[], nn.Module], data: Data, test: Data | None, loss: Loss,
        context: Context,
    ) -> None:  # fmt: skip
        self._agreed, self._make, self._data, self._test, self._loss = agreed, make, data, test, loss
        self._context = context

    def answer(self, content: RecordDict) -> RecordDict:
        """Answer a question from the state that it names; the next state becomes a version of its own."""
        asked, agreed = about(content, Asked), self._agreed
        self._check(asked)
        exchanges = self._exchanges(asked.round)
        if asked.exchange >= len(exchanges):
            raise UsageError(f"exchange is {asked.exchange}, but round {asked.round} has {len(exchanges)}")
        exchange = exchanges[asked.exchange]
        home = _home(self._context, agreed, asked)
        client = Client(
            asked.client, self._make(), *self._data, agreed.algorithm, agreed.settings, self._loss,
            noise_seed=noise_of(noise_seed(home), asked.tag) if agreed.settings.reply_transforms else None,
        )  # fmt: skip
        versions = Versions(home / "state")
        state = client.initial_state()
        if asked.base != FRESH:
            state = type(state)(**versions.load(asked.base, _forms(state)))
        client.release()
        more = asked.exchange + 1 < len(exchanges)
        down = self._down(content, asked, exchange, Spec.of(client.initial), Messages(home / "round"), more)
        trained = bool(exchange.effort(Effort(1)).steps)
        buffers = unpack_buffers(content, client.buffers) if trained else client.buffers.clone()
        metrics = self._evaluated(client, state, down, buffers) if asked.evaluate else {}
        reply = client.answer(Question(exchange, asked.round, asked.exchange, down, buffers), state)
        if len(state):
            versions.save(asked.tag, reply.state._asdict(), {asked.base, asked.keep})
        told = Told(client=asked.client, tag=asked.tag, gradients=float(reply.gradients), **metrics)
        sparse = is_sparse(agreed.settings.reply_transforms)
        return pack(told, reply.up._asdict(), reply.buffers if trained else None, sparse=sparse)

    def _check(self, asked: Asked) -> None:
        own, agreed = _number(self._context), self._agreed
        agreed.check(asked.rules)
        if own not in (-1, asked.client) or asked.client >= agreed.clients:
            raise UsageError(f"the question is for client {asked.client}, but this is client {own} of {agreed.clients}")
        if not asked.tag or not asked.attempt:
            raise UsageError("the question names no version for its answer")

    def _exchanges(self, round: int) -> tuple[AnyExchange, ...]:
        algorithm = self._agreed.algorithm.at(round)
        return algorithm.opening() if round == OPENING else algorithm.exchanges(round, self._agreed.settings.seed)

    def _down(
        self, content: RecordDict, asked: Asked, exchange: AnyExchange, x: Spec, messages: Messages, more: bool
    ) -> Any:
        """Put the message together from what came now and what the round had sent before."""
        forms = Layouts.of(self._agreed.algorithm, exchange, x).down
        here = [name for name in names(content) if name in forms]
        fields = unpack(content, {name: forms[name] for name in here})
        earlier = messages.load(asked.attempt) if more or len(fields) < len(forms) else {}
        for name in forms.keys() - fields.keys():
            if name not in earlier or Spec.of(earlier[name]) != forms[name]:
                raise UsageError(f"the question lacks {name}, which this round has not told this client")
        if more:
            messages.save(asked.attempt, earlier | fields)
        kind = type(exchange.broadcast(self._agreed.algorithm.at(0).init_server(torch.zeros(2, dtype=x.dtype))))
        return kind(**{name: fields[name] if name in fields else earlier[name] for name in forms})

    def _evaluated(self, client: Client, state: Any, down: Any, buffers: Tensor) -> dict[str, Any]:
        """Evaluate the model that came, with the client's personal layers, on its own test data."""
        if self._test is None or "x" not in down._fields:
            return {}
        features, labels = as_taken(*self._test, down.x.dtype)
        found = client.evaluated(client.entered(down.x, state), buffers, self._loss, features, labels)
        finite = {f"test_{name}": value for name, value in found.items() if math.isfinite(value)}
        return finite | {"test_samples": len(labels)}


def _forms(state: Any) -> Layout:
    if not len(state):
        raise UsageError("the question names a version of a state, but the algorithm's clients have none")
    return {name: Spec.of(value) for name, value in state._asdict().items()}

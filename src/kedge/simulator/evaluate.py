"""Loss, accuracy and a user's own metrics of a model, client by client."""

from collections.abc import Iterable, Mapping

from torch import nn

from kedge.client import Loss, Metric, evaluate, summarised
from kedge.problem import Federation


def each_client(
    modules: Iterable[tuple[int, nn.Module]],
    loss: Loss,
    federation: Federation,
    metrics: Mapping[str, Metric] | None = None,
) -> list[dict[str, float]]:
    """Evaluate each client's module: on its test set if there are any, else on its own data."""
    place = federation.client_tests or federation
    found = {client: evaluate(module, loss, *place.client(client), metrics) for client, module in modules}
    return [found[client] for client in sorted(found)]


def client_columns(values: list[dict[str, float]], federation: Federation) -> dict[str, float]:
    """Return the mean over the clients and the mean of the worst tenth of them.

    The columns say what was evaluated: `clients_test_accuracy` is on the clients' test sets, `clients_accuracy` on the
    data that they train on.
    """
    kind = "clients" if federation.client_tests is None else "clients_test"
    return summarised(values, kind) if values else {}

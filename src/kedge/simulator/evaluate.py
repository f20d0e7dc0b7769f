"""Loss, accuracy and a user's own metrics of a model, client by client."""

from collections.abc import Callable, Mapping

from torch import nn

from kedge.client import Loss, Metric, evaluate, summarised
from kedge.problem import Federation


def each_client(
    module: Callable[[int], nn.Module], loss: Loss, federation: Federation, metrics: Mapping[str, Metric] | None = None
) -> list[dict[str, float]]:
    """Evaluate ``module(client)`` for every client: on its test set if there are any, else on its own data."""
    place = federation.client_tests or federation
    return [evaluate(module(i), loss, *place.client(i), metrics) for i in range(len(place))]


def evaluate_clients(
    module: Callable[[int], nn.Module], loss: Loss, federation: Federation, metrics: Mapping[str, Metric] | None = None
) -> dict[str, float]:
    """Return the mean over the clients and the mean of the worst tenth of them.

    The columns say what was evaluated: `clients_test_accuracy` is on the clients' test sets, `clients_accuracy` on the
    data that they train on.
    """
    kind = "clients" if federation.client_tests is None else "clients_test"
    return summarised(each_client(module, loss, federation, metrics), kind)

"""What one client computes with, given only its own data: no federation, no simulator.

`Client` is a client in its own process: it answers the questions of a server, wherever that server is.
"""

from kedge.client.alone import Client, as_taken
from kedge.client.evaluation import Metric, check_metrics, evaluate, summarised
from kedge.client.flat import FlatModule, convolves, frozen, views
from kedge.client.steps import Autograd, ClientSteps, Gradients, Loss
from kedge.client.trial import try_model

__all__ = [
    "Autograd",
    "Client",
    "ClientSteps",
    "FlatModule",
    "Gradients",
    "Loss",
    "Metric",
    "as_taken",
    "check_metrics",
    "convolves",
    "evaluate",
    "frozen",
    "summarised",
    "try_model",
    "views",
]

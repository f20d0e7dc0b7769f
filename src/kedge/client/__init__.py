"""What one client computes with, given only its own data: no federation, no simulator.

A client that is a process of its own is a `Client`: it answers the questions of a server, wherever that is.
"""

from kedge.client.alone import Client
from kedge.client.flat import FlatModule, frozen, views
from kedge.client.steps import Autograd, ClientSteps, Gradients, Loss
from kedge.client.trial import try_model

__all__ = [
    "Autograd",
    "Client",
    "ClientSteps",
    "FlatModule",
    "Gradients",
    "Loss",
    "frozen",
    "try_model",
    "views",
]

"""Flower 1.41.0 with its simulation runtime on Ray 2.55.1: FedAvg of the message API, one Ray worker per core.

As its tutorials do it: a `ClientApp` that builds the network, loads what it was sent, trains and answers, and a
`ServerApp` with the strategy FedAvg. Every worker has one core, hence one torch thread. Batches are drawn by index, no
DataLoader; the data are a memory map that the workers share, since a worker plays any client. No evaluation.

Shims: none. `run_simulation` is deprecated in favour of `flwr run`, but it is the same runtime and needs no project.
1.41.0 is what the resolver chose: a requirement of 1.42.0 (certifi) was newer than the index at hand.
"""

import os
import time
from typing import Any

import torch
from torch.nn.functional import cross_entropy

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.peers.common import network, read_workload, report, tensors


class TimedFedAvg(FedAvg):
    """FedAvg that notes when its rounds begin."""

    marks: list[float]

    def configure_train(self, *arguments: Any, **keywords: Any) -> Any:
        self.marks.append(time.perf_counter())
        return super().configure_train(*arguments, **keywords)


def main() -> None:
    work = read_workload()
    client, server = ClientApp(), ServerApp()
    marks: list[float] = []

    @client.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        model = network(work.sizes)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimiser = torch.optim.SGD(model.parameters(), lr=work.eta)
        features, labels = (part[context.node_config["partition-id"]] for part in tensors(work.data, "c"))
        for _ in range(work.steps):
            batch = torch.randint(0, work.samples, (work.batch,))
            optimiser.zero_grad()
            cross_entropy(model(features[batch]), labels[batch]).backward()
            optimiser.step()
        reply = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": work.samples})}
        return Message(content=RecordDict(reply), reply_to=message)

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy = TimedFedAvg(
            fraction_train=work.cohort / work.clients,
            fraction_evaluate=0.0,
            min_train_nodes=work.cohort,
            min_available_nodes=work.clients,
        )
        strategy.marks = marks
        strategy.start(grid=grid, initial_arrays=ArrayRecord(network(work.sizes).state_dict()), num_rounds=work.rounds)
        marks.append(time.perf_counter())

    backend = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": work.cores}}
    run_simulation(server, client, num_supernodes=work.clients, backend_config=backend)
    report(work, marks, "flwr", "ray")


if __name__ == "__main__":
    main()

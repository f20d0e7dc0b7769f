"""kedge's loop against Flower's own FedAvg: seconds a round and bytes, in turns on the same warm SuperNodes.

    python -m benchmarks.flower_overhead [--rounds 4] [--turns 2] [--widths 200]

The bytes are those that Flower counts (`flwr ls --format json`); what `cost` declares stands beside them.
"""

import argparse
import re
import signal
import sys
import tempfile
import time
from pathlib import Path

from kedge.cli.flower import write
from kedge.flower.loopback import Loopback
from kedge.runs.config import check
from kedge.runs.reader import read_rows

OURS = ("fedavg", "scaffold-m")

PLAIN = '''\
"""Flower's own FedAvg, as its documentation writes it, on the same model and data."""

import time

import torch
from federation.task import load_data, model
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common import log
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch.nn.functional import cross_entropy

server = ServerApp()
client = ClientApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    last = time.monotonic()

    def told(round, arrays):
        nonlocal last
        if round:
            log(20, "round %s took %.2f s", round, time.monotonic() - last)
        last = time.monotonic()
        return MetricRecord({"done": round})

    FedAvg(fraction_evaluate=0.0, min_train_nodes=3, min_available_nodes=3).start(
        grid=grid, initial_arrays=ArrayRecord(model(context).state_dict()),
        num_rounds=context.run_config["run.rounds"], evaluate_fn=told,
    )


@client.train()
def train(message: Message, context: Context) -> Message:
    net, config = model(context), context.run_config
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = load_data(context)
    parameters = list(net.parameters())
    for _ in range(config["run.local_steps"]):
        chosen = torch.randperm(len(y))[: config["run.batch_size"]]
        gradients = torch.autograd.grad(cross_entropy(net(x[chosen]), y[chosen]), parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter -= config["algorithm.eta"] * gradient
    content = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
    return Message(RecordDict(content), reply_to=message)
'''


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--widths", type=int, default=200)
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that everything is cleaned up
    with tempfile.TemporaryDirectory(prefix="kedge-flower-") as place, Loopback(Path(place)) as loop:
        loop.superlink()
        for number in range(3):
            loop.node(number)
        for turn in range(chosen.turns):
            for kind in ("flower", *OURS):
                print(measure(loop, kind, turn, chosen.rounds, chosen.widths), flush=True)


def measure(loop: Loopback, kind: str, turn: int, rounds: int, widths: int) -> str:
    """Run one app and say what it took."""
    name = f"{kind}-{turn}"
    app, out = loop.work / name, loop.work / f"out-{name}"
    config = check({
        "data": {"clients": 3}, "model": {"widths": [widths]},
        "algorithm": {"name": "fedavg" if kind == "flower" else kind, "eta": 0.1},
        "run": {"rounds": rounds, "cohort": "all", "local_steps": 8, "batch_size": 16, "eval_every": 1},
    })  # fmt: skip
    write(app, config, str(out))
    if kind == "flower":
        (app / "federation" / "plain.py").write_text(PLAIN)
        text = (app / "pyproject.toml").read_text().replace("server_app:app", "plain:server")
        (app / "pyproject.toml").write_text(text.replace("client_app:app", "plain:client"))
    began = time.monotonic()
    loop.submit(app, f'flower.experiment="{name}"', name)
    while loop.poll(name) is None:
        time.sleep(0.2)
    run, log = loop.runs()[-1], loop.log(name).read_text()
    if "completed" not in run["status"]:
        raise RuntimeError(f"{run['status']} {run.get('status-details')} {log[-2000:]}")
    took = [float(found) for found in re.findall(r"round \d+ (?:took|of \d+:) ([\d.]+) s", log)]
    traffic = run["network-traffic"]
    declared = read_rows(out).rows[-1] if kind != "flower" else {}
    said = f"; declared {declared['bytes_down']:,} down, {declared['bytes_up']:,} up" if declared else ""
    return (
        f"{kind:11} rounds {took} s, run {time.monotonic() - began:.0f} s; counted by Flower: "
        f"{traffic['outbound-bytes']:,} down, {traffic['inbound-bytes']:,} up{said}"
    )


if __name__ == "__main__":
    main()

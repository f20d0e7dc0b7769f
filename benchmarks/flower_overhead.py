"""kedge's loop against Flower's own FedAvg: seconds per round, processor seconds per message, and bytes.

    python -m benchmarks.flower_overhead [--rounds 10] [--turns 3] [--widths 200] [--only flower fedavg]

All of them play in turns on the same three SuperNodes, which keep torch imported (`kedge flower node`). Processor
seconds are exact: a ClientApp and a ServerApp write down their own when they exit, and those of the SuperLink, the
SuperNodes and their SuperExecs are what the system counted during the run. The bytes are those that Flower counts
(`flwr ls --format json`); what `cost` declares stands beside them. Linux only.
"""

import argparse
import os
import re
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

import kedge
from kedge.cli.flower import write
from kedge.flower.loopback import Loopback
from kedge.runs.config import check
from kedge.runs.reader import read_rows

NODES = 3

OURS = ("fedavg", "scaffold-m")

USED = '''\
"""Write down the processor seconds of this process when it exits. A forked ClientApp leaves by os._exit."""

import atexit
import os
import resource
from pathlib import Path

from flwr.clientapp import ClientApp


def seconds():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def note(kind, since=0.0):
    with Path({place!r}).open("a") as file:
        file.write(f"{{kind}} {{seconds() - since:.6f}}\\n")


def client(leave=os._exit, call=ClientApp.__call__):
    def called(app, message, context):
        os._exit = lambda code: (note(message.metadata.message_type), leave(code))
        return call(app, message, context)

    ClientApp.__call__ = called


def server():
    atexit.register(note, "server", seconds())  # without the imports
'''

TASK = """\
import kedge
import numpy as np
import torch


def model(context):
    return kedge.build_model("mlp", (64,), 10, widths=[{widths}], seed=0)


def load_data(context):
    with np.load("{work}/data-%s.npz" % context.node_config["client"]) as file:
        return torch.from_numpy(file["x"]), torch.from_numpy(file["y"])
"""

CLIENT = '''\
"""A client of Flower's own FedAvg, as its documentation writes it, on the same model and data."""

import torch
from federation.task import load_data, model
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.nn.functional import cross_entropy

app = ClientApp()


@app.train()
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

SERVER = '''\
"""Flower's own FedAvg, as its documentation writes it, on the same model."""

import time

from federation.task import model
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
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
'''


class Measured(NamedTuple):
    """What one run took."""

    rounds: list[float]
    """Seconds of each round."""
    clients: list[float]
    """Processor seconds of each ClientApp process that trained: one per message."""
    handshake: float
    """Processor seconds of the ClientApp processes that said who they are."""
    server: float
    """Processor seconds of the ServerApp, without its imports."""
    rest: float
    """Processor seconds of the SuperLink, the SuperNodes and the SuperExecs."""
    seconds: float
    down: int
    up: int
    declared: tuple[int, int] | None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--widths", type=int, default=200)
    parser.add_argument("--only", nargs="+", choices=("flower", *OURS), default=("flower", *OURS))
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that everything is cleaned up
    found: dict[str, list[Measured]] = {kind: [] for kind in chosen.only}
    with tempfile.TemporaryDirectory(prefix="kedge-flower-") as place, Loopback(Path(place)) as loop:
        federation = kedge.load_federation("digits", clients=NODES)
        loop.superlink()
        for number in range(NODES):
            x, y = federation.client(number)
            np.savez(loop.work / f"data-{number}.npz", x=x.numpy(), y=y.numpy())
            loop.node(number)
        measure(loop, "fedavg", -1, 1, chosen.widths)  # the SuperNodes and their SuperExecs have started after it
        for turn in range(chosen.turns):
            for kind in chosen.only:
                found[kind].append(measure(loop, kind, turn, chosen.rounds, chosen.widths))
                print(f"{kind:11} turn {turn + 1}: {_said(found[kind][-1:])}", flush=True)
    for kind, runs in found.items():
        print(f"{kind:11} all turns: {_said(runs)}")


def _said(runs: list[Measured]) -> str:
    walls = [wall for run in runs for wall in run.rounds]
    clients = [used for run in runs for used in run.clients]
    server, rest, handshake = (
        sum(getattr(run, part) for run in runs) / len(clients) for part in ("server", "rest", "handshake")
    )
    mean, last = statistics.mean(clients), runs[-1]
    declared = f"; declared: {last.declared[0]:,} down, {last.declared[1]:,} up" if last.declared else ""
    return (
        f"{statistics.mean(walls):.2f} s per round (median {statistics.median(walls):.2f}); processor ms per message: "
        f"ClientApp {1000 * mean:.1f}, ServerApp {1000 * server:.1f}, handshakes {1000 * handshake:.1f}, "
        f"the rest {1000 * rest:.1f}, together {1000 * (mean + server + handshake + rest):.1f}; "
        f"{len(clients)} messages; counted by Flower: {last.down:,} down, {last.up:,} up{declared}"
    )


def measure(loop: Loopback, kind: str, turn: int, rounds: int, widths: int) -> Measured:
    """Run one app and say what it took."""
    name = f"{kind}-{turn}"
    app, out, used = loop.work / name, loop.work / f"out-{name}", loop.work / f"used-{name}"
    config = check({
        "data": {"clients": NODES}, "model": {"widths": [widths]},
        "algorithm": {"name": "fedavg" if kind == "flower" else kind, "eta": 0.1},
        "run": {"rounds": rounds, "cohort": "all", "local_steps": 8, "batch_size": 16, "eval_every": 1},
    })  # fmt: skip
    write(app, config, str(out))
    package = app / "federation"
    (package / "task.py").write_text(TASK.format(widths=widths, work=loop.work))
    (package / "used.py").write_text(USED.format(place=str(used)))
    if kind == "flower":
        (package / "server_app.py").write_text(SERVER)
        (package / "client_app.py").write_text(CLIENT)
    for side in ("server", "client"):
        file = package / f"{side}_app.py"
        # Flower's FedAvg above does not evaluate the model, so ours does not either.
        text = re.sub(r", load_test=\w+|load_(own_)?test, ", "", file.read_text())
        file.write_text(f"{text}\nfrom federation import used\n\nused.{side}()\n")
    before, began = _processor(loop), time.monotonic()
    loop.submit(app, f'flower.experiment="{name}"', name)
    while loop.poll(name) is None:
        time.sleep(0.2)
    seconds, after = time.monotonic() - began, _processor(loop)
    run, log = loop.runs()[-1], loop.log(name).read_text()
    if "completed" not in run["status"]:
        raise RuntimeError(f"{run['status']} {run.get('status-details')} {log[-2000:]}")
    rows = [line.split() for line in used.read_text().splitlines()]
    declared = read_rows(out).rows[-1] if kind != "flower" else None
    return Measured(
        rounds=[float(found) for found in re.findall(r"round \d+ (?:took|of \d+:) ([\d.]+) s", log)],
        clients=[float(value) for side, value in rows if side == "train"],
        handshake=sum(float(value) for side, value in rows if side == "query"),
        server=sum(float(value) for side, value in rows if side == "server"),
        rest=sum(used - before.get(process, 0.0) for process, used in after.items()),
        seconds=seconds,
        down=run["network-traffic"]["outbound-bytes"],
        up=run["network-traffic"]["inbound-bytes"],
        declared=(declared["bytes_down"], declared["bytes_up"]) if declared else None,
    )


def _processor(loop: Loopback) -> dict[int, float]:
    """Return the processor seconds so far of the processes that outlive a run: Flower's own and the SuperExecs."""
    found = {}
    for name in ("superlink", *(f"node-{number}" for number in range(NODES))):
        for process, command in loop.descendants(name).items():
            if "serverapp" not in command:
                fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
                found[process] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


if __name__ == "__main__":
    main()

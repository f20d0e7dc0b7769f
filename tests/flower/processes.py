"""Real processes on loopback: SuperLink, SuperNodes, ServerApp; killed, lied to, and always cleaned up.

python -m tests.flower.processes --short     what .ci/run plays, in a few minutes
python -m tests.flower.processes             also kill -9 of the SuperLink, a SuperNode that stays away, and more
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file

from kedge.cli.flower import write
from kedge.flower.checkpoint import FILE, Progress
from kedge.flower.loopback import Loopback
from kedge.runs.config import check, run_config
from kedge.runs.reader import read_rows, read_run
from kedge.runs.toml import load_toml

PAGE = Path(__file__).parents[2] / "docs" / "deploy.md"

KEYS = ("client-0", "client-1", "client-2", "stranger")

LIAR = """\
from flwr.app import Array
from flwr.clientapp import ClientApp
from kedge.flower import client_app
from federation.task import load_data, model

honest = client_app(model, load_data)
app = ClientApp()


@app.query()
def present(message, context):
    return honest(message, context)


@app.train()
def answer(message, context):
    import time
    reply = honest(message, context)
    time.sleep(float(context.node_config.get("slow", 0)))
    if context.node_config.get("lie"):
        fields = reply.content["fields"]
        for name in list(fields):
            fields[name] = Array(fields[name].numpy() * float("nan"))
    return reply
"""


class Trial:
    """One run on a federation, and what must be true of it afterwards."""

    def __init__(self, loop: Loopback, name: str, algorithm: str, rounds: int, **changes: Any) -> None:
        self.loop, self.name, self.out = loop, name, loop.work / f"out-{name}"
        raw = {
            "data": {"clients": 3, "dataset": "digits"}, "algorithm": {"name": algorithm, "eta": 0.1},
            "run": {"rounds": rounds, "cohort": 2, "local_steps": 3, "batch_size": 8, "eval_every": 1} | changes,
        }  # fmt: skip
        self.config = check(raw)
        self.app = loop.work / f"app-{name}"
        write(self.app, self.config, str(self.out))
        (self.app / "federation" / "client_app.py").write_text(LIAR)

    def submit(self, times: int = 1) -> None:
        """Start a run, or continue it."""
        self.loop.submit(self.app, f'flower.experiment="{self.name}"', f"run-{self.name}-{times}")

    def wait(self, what: Callable[[], bool], seconds: float = 150) -> float:
        """Wait for something; return how long it took."""
        began = time.monotonic()
        while not what():
            self.loop.poll("superlink")
            if time.monotonic() - began > seconds:
                logs = "\n".join(
                    f"--- {path.name}\n{path.read_text()[-1500:]}" for path in self.loop.work.glob("*.log")
                )
                raise TimeoutError(f"{self.name}: nothing happens\n{logs}")
            time.sleep(0.1)
        return time.monotonic() - began

    def played(self, rounds: int) -> bool:
        """Whether so many rounds are over."""
        return self.out.exists() and len(read_rows(self.out).rows) >= rounds

    def finished(self) -> bool:
        """Whether the run is over."""
        return self.out.exists() and read_run(self.out).finished

    def equals_the_simulator(self) -> None:
        """Compare every vector of the server with a simulation of its own config.toml."""
        result = run_config(check(load_toml(self.out / "config.toml")))
        found = load_file(self.out / "checkpoint" / FILE)
        for name, vector in result.server.items():
            assert torch.equal(found[f"server.{name}"], vector), name

    def controls_agree(self) -> float:
        """Return the largest difference between c and the mean of the c_i that the server counts."""
        with safe_open(self.out / "checkpoint" / FILE, "pt") as file:
            c, standing = file.get_tensor("server.c"), Progress.model_validate_json(file.metadata()["kedge"])
        total = torch.zeros_like(c)
        for client, tag in standing.versions.items():
            place = self.loop.work / f"state-{client}"
            (state,) = place.glob(f"{self.name}.*/client-{client}/state/{tag}.safetensors")
            total += load_file(state)["c_i"]
        return float((total / 3 - c).abs().max())


def killed_node(loop: Loopback) -> None:
    """kill -9 of a SuperNode after its client has computed and before its reply; it comes back."""
    trial = Trial(loop, "node", "scaffold-m", 3, cohort=3)
    trial.submit()
    trial.wait(lambda: trial.played(1))
    states = loop.work / "state-1"
    before = set(states.rglob("state/*.safetensors"))
    trial.wait(lambda: bool(set(states.rglob("state/*.safetensors")) - before))
    loop.kill("node-1")
    assert not trial.played(2)
    loop.node(1, "slow=2")
    print(f"  a SuperNode killed in a round: the run ends {trial.wait(trial.finished):.0f} s later", flush=True)
    trial.equals_the_simulator()
    assert trial.controls_agree() < 1e-6


def killed_server(loop: Loopback) -> None:
    """kill -9 of the ServerApp; a new run continues."""
    trial = Trial(loop, "server", "ce-lsgd", 3)
    trial.submit()
    trial.wait(lambda: trial.played(1))
    servers = [number for number, line in loop.descendants("superlink").items() if "flwr-serverapp" in line]
    assert servers, loop.descendants("superlink")
    for number in servers:
        os.kill(number, signal.SIGKILL)
    trial.submit(2)
    print(f"  a ServerApp killed: the next run ends {trial.wait(trial.finished):.0f} s later", flush=True)
    trial.equals_the_simulator()


def lost_node(loop: Loopback) -> None:
    """kill -9 of a SuperNode that stays away for a run; the round ends without it."""
    trial = Trial(loop, "gone", "scaffold-m", 3, cohort=3)
    trial.submit()
    trial.wait(lambda: trial.played(1))
    loop.kill("node-1")
    print(
        f"  a SuperNode killed for good: its round ends {trial.wait(lambda: trial.played(2)):.0f} s later", flush=True
    )
    trial.wait(trial.finished)
    assert trial.controls_agree() < 1e-6
    loop.node(1, "slow=2")


def killed_link(loop: Loopback) -> None:
    """kill -9 of the SuperLink, which has a database: the nodes come back by themselves, and a new run continues."""
    trial = Trial(loop, "link", "scaffold-m", 3, cohort=3)
    trial.submit()
    trial.wait(lambda: trial.played(1))
    loop.kill("superlink", whole=False)
    began = time.monotonic()
    loop.superlink()
    trial.submit(2)
    trial.wait(trial.finished, 240)
    print(f"  a SuperLink killed: the next run ends {time.monotonic() - began:.0f} s later", flush=True)
    trial.equals_the_simulator()
    assert trial.controls_agree() < 1e-6


def lying_client(loop: Loopback) -> None:
    """A client that sends NaN is left out, and the round ends without it."""
    loop.kill("node-2")
    loop.node(2, "lie=1")
    trial = Trial(loop, "liar", "scaffold-m", 1, cohort=3)
    trial.submit()
    print(f"  a client that lies: the run ends after {trial.wait(trial.finished):.0f} s", flush=True)
    assert "client 2 is dropped: " in loop.log("run-liar-1").read_text()
    assert trial.controls_agree() < 1e-6


def certificates(place: Path) -> None:
    """Make a certificate authority, a certificate for localhost and keys of SuperNodes, as docs/deploy.md says."""
    place.mkdir()
    (made,) = re.findall(r"^openssl req -x509.*-out server.pem$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    made = made.replace("server.example.org", "localhost")
    keys = (f"ssh-keygen -q -t ecdsa -b 384 -N '' -f {name}" for name in KEYS)
    for command in (f"set -e\n{made}", *keys):
        subprocess.run(command, shell=True, check=True, cwd=place, capture_output=True)


def secured(work: Path, *, short: bool) -> None:
    """Under TLS with SuperNode authentication, a SuperNode whose key is not registered is refused."""
    certificates(work / "tls")
    with Loopback(work, tls=work / "tls") as loop:
        loop.superlink()
        for number in range(1 if short else 3):
            key = work / "tls" / f"client-{number}"
            register = ["flwr", "supernode", "register", f"{key}.pub", "loopback"]
            done = subprocess.run(register, env=loop.env, capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
            loop.node(number, key=key)
        loop.node(9, key=work / "tls" / "stranger")
        end = time.monotonic() + 60
        while loop.poll("node-9") is None and time.monotonic() < end:
            time.sleep(0.2)
        assert loop.poll("node-9") not in (None, 0), loop.tail("node-9")
        assert "2004" in loop.tail("node-9"), loop.tail("node-9")
        assert loop.poll("node-0") is None, loop.tail("node-0")
        print(f"  an unregistered SuperNode under TLS: refused with exit code {loop.poll('node-9')}", flush=True)
        if not short:
            trial = Trial(loop, "tls", "scaffold-m", 2)
            trial.submit()
            print(f"  a run under TLS ends after {trial.wait(trial.finished):.0f} s", flush=True)
            trial.equals_the_simulator()


def demo_stopped(work: Path, how: str) -> None:
    """A demo that is stopped, or loses a SuperNode, ends all that it started and leaves only its run directory."""
    place = work / "place"
    place.mkdir()
    env = os.environ | {"TMPDIR": str(place), "HOME": str(work / "home")}
    command = [sys.executable, "-m", "kedge", "flower", "demo", "--rounds", "100", "--out", str(work / "demo")]
    demo = subprocess.Popen(command, env=env, cwd=work, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        end = time.monotonic() + 150
        while not (work / "demo").exists() or not read_rows(work / "demo").rows:
            assert demo.poll() is None, "the demo ended by itself"
            assert time.monotonic() < end, "the demo plays no round"
            time.sleep(0.2)
        began = time.monotonic()
        if how == "Ctrl-C":
            demo.send_signal(signal.SIGINT)
        else:
            nodes = [number for number in with_environment(str(place)) if b"\0node\0" in command_line(number)]
            os.kill(nodes[0], signal.SIGKILL)
        said = demo.communicate(timeout=60)[1]
    finally:
        demo.kill()
    assert demo.returncode == (130 if how == "Ctrl-C" else 1), said
    assert ("kedge: stopped; the results so far are in" if how == "Ctrl-C" else "has ended: ") in said, said
    left = {number: command_line(number) for number in with_environment(str(place))}
    assert not left, left
    assert not list(place.iterdir())
    assert not (work / "home" / ".flwr").exists()
    print(f"  a demo after {how}: ended and cleaned up {time.monotonic() - began:.0f} s later", flush=True)


def with_environment(text: str) -> list[int]:
    """Return the processes that have a text in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is not ours
            found += [int(path.name)] if text.encode() in (path / "environ").read_bytes() else []
    return found


def command_line(number: int) -> bytes:
    """Return the command line of a process."""
    with suppress(OSError):
        return Path(f"/proc/{number}/cmdline").read_bytes()
    return b""


def main() -> None:
    """Play the trials."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true")
    short = parser.parse_args().short
    signal.signal(signal.SIGTERM, lambda *_: (_ for _ in ()).throw(SystemExit(1)))
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kedge-flower-") as place:
        secured(Path(place), short=short)
    for how in ("Ctrl-C",) if short else ("Ctrl-C", "kill -9 of a SuperNode"):
        with tempfile.TemporaryDirectory(prefix="kedge-flower-") as place:
            demo_stopped(Path(place), how)
    with (
        tempfile.TemporaryDirectory(prefix="kedge-flower-") as place,
        Loopback(Path(place), database=not short) as loop,
    ):
        loop.superlink()
        for number in range(3):
            loop.node(number, "slow=2" if number == 1 else "")
        for trial in (killed_node, killed_server, *([] if short else [lost_node, killed_link]), lying_client):
            trial(loop)
    print(f"passed in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()

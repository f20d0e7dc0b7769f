"""Inputs that nobody wrote on purpose: by grammar, and by mutation of good ones. All by the dice they are given."""

import gzip
import hashlib
import io
import json
import pickle
import random
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from kedge.algorithms import ALGORITHMS
from kedge.runs.settings import SETTINGS
from tests.problem.files import cifar100_pickle, cifar_binary, cifar_pickle, idx_bytes

Dice = random.Random

EXPERIMENTS = Path(__file__).parents[1] / "src" / "kedge" / "reproduce" / "experiments"

KEYS = [
    *SETTINGS,
    "algorithm.beta", "algorithm.gamma", "algorithm.opening_batches", "algorithm.mu", "algorithm.reference",
    "run.round", "nothing.here", "data", ".", "", "a.b.c",
]  # fmt: skip

WORDS = [
    "digits", "quadratics", "synthetic", "mnist", "cifar10", "mlp", "logistic", "lenet", "resnet18", "dirichlet", "iid",
    "shards", "by-user", "uniform", "size", "all", "full", "auto", "module", "cpu", "cuda", "meta", "cpu:9", "never",
    "30s", "0s", "4GB", "1e9TB", "mild", "large", "batch", "group", "scaffold-m", "fedavg", "stem", "fedcm", "", " ",
    "nan", "../..", "/etc/passwd", "~", "~nobody/x", "x[/y]", "[bold]", "a\nb", "\x1b[2J", "\udcff", "\0", "é" * 300,
    "x" * 5000, "none.py:X", ":", "::", "a:b", "/:", "%s%n", "{task}", "$HOME", "'; ls", '"', "\\", "true", "None",
]  # fmt: skip

NUMBERS = [
    "0", "-0", "1", "2", "3", "-1", "0.0", "-0.0", "0.1", "1.5", "1e-300", "1e300", "1e308", "-1e308", "1e400", "nan",
    "inf", "-inf", "0x7fffffffffffffff", "9223372036854775807", "9223372036854775808", "-9223372036854775809",
    "9007199254740993", "18446744073709551616", "1" + "0" * 400, "9" * 5000, "0x" + "f" * 5000, "0b1", "0o7", "1_0",
    "+3",
]  # fmt: skip


def text_of(value: str) -> str:
    """Write a string as TOML."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def value(dice: Dice, depth: int = 0) -> str:
    """Return the text of a value, which need not be TOML."""
    kind = dice.randrange(12)
    if kind < 4:
        return dice.choice(NUMBERS)
    if kind < 7:
        return text_of(dice.choice(WORDS))
    if kind == 7:
        return dice.choice(["true", "false", "1979-05-27", "07:32:00", "1979-05-27T07:32:00Z", "''", '""', "[]", "{}"])
    if kind == 8 and depth < 3:
        return f"[{', '.join(value(dice, depth + 1) for _ in range(dice.randrange(4)))}]"
    if kind == 9 and depth < 3:
        return f"{{ a = {value(dice, depth + 1)} }}"
    if kind == 10:
        return dice.choice(
            ["[" * 3000, "[" * 50 + "]" * 50, "[[[[", "{a={a={", "'''", '"""', "=", ",", "#", "1,2", "1..2"]
        )
    return dice.choice(WORDS)


def toml(dice: Dice) -> bytes:
    """Return a configuration: sections and keys in any order with any values, then perhaps a few bytes changed."""
    lines: list[str] = []
    for _ in range(dice.randrange(1, 6)):
        key = dice.choice(KEYS)
        section, _, name = key.partition(".")
        deep = f"{'a.' * dice.choice([1, 900, 3000])}b = 1"
        lines += dice.choice([
            [f"[{section}]", f"{name} = {value(dice)}"], [f"{key} = {value(dice)}"], [f"[[{section}]]"],
            [deep] if dice.random() < 0.1 else [],
        ])  # fmt: skip
    content = "\n".join(lines).encode("utf-8", "surrogatepass")
    return mutated(content, dice) if dice.random() < 0.3 else content


def setting(dice: Dice) -> str:
    """Return what may follow `--set`."""
    text = f"{dice.choice(KEYS)}={value(dice)}"
    return mutated_text(text, dice) if dice.random() < 0.3 else text


def grid(dice: Dice) -> list[str]:
    """Return what may follow `--grid`."""
    axes = []
    for _ in range(dice.randrange(1, 4)):
        values = [value(dice) for _ in range(dice.randrange(1, 5))]
        ranged = f"{dice.choice(NUMBERS)}..{dice.choice(NUMBERS)}{dice.choice(['', ':log', ':x'])}"
        text = f"{dice.choice(KEYS)}={dice.choice([','.join(values), ranged])}"
        axes.append(mutated_text(text, dice) if dice.random() < 0.3 else text)
    return axes


OPTIONS = [
    "--algorithm", "--eta", "--beta", "--gamma", "--dataset", "--data-dir", "--model", "--clients", "--partition",
    "--alpha", "--rounds", "--cohort", "--local-steps", "--batch-size", "--weight-decay", "--seed", "--eval-every",
    "--device", "--engine", "--workers", "--threads", "--state-memory", "--checkpoint-every", "--set", "--jobs",
    "--seeds", "--target", "--algorithms", "--grid", "--halving", "--trials", "--search", "--metric", "--nothing",
    "-x", "--", "--help=1",
]  # fmt: skip


def arguments(dice: Dice) -> list[str]:
    """Return options of a command."""
    given = []
    for _ in range(dice.randrange(1, 5)):
        option = dice.choice(OPTIONS)
        worth = dice.choice([value(dice), dice.choice(WORDS), dice.choice(NUMBERS)]).replace("\0", "0")
        given += dice.choice([[option, worth], [f"{option}={worth}"], [worth]])
    return given


# Files that are bytes.


def mutated(content: bytes, dice: Dice) -> bytes:
    """Change, remove, repeat or insert some bytes."""
    made = bytearray(content)
    for _ in range(dice.randrange(1, 4)):
        place = dice.randrange(len(made) + 1)
        end = min(len(made), place + dice.randrange(1, 9))
        kind = dice.randrange(5)
        if kind == 0 and place < len(made):
            made[place] = dice.choice([0, 255, 128, 127, made[place] ^ (1 << dice.randrange(8)), dice.randrange(256)])
        elif kind == 1:
            del made[place:end]
        elif kind == 2:
            made[place:place] = made[place:end] * dice.choice([1, 2, 50])
        elif kind == 3:
            made[place:place] = dice.choice(NUMBERS + WORDS).encode("utf-8", "surrogatepass")
        elif dice.random() < 0.2:
            del made[place:]
    return bytes(made)


def study(dice: Dice) -> bytes:
    """Return an experiment with other values in some of its lines, further lines, or a few bytes changed."""
    lines = (EXPERIMENTS / f"{dice.choice(['participation', 'step-mlp', 'horizon'])}.toml").read_text().splitlines()
    for _ in range(dice.randrange(0, 4)):
        place = dice.randrange(len(lines))
        key = lines[place].partition("=")[0]
        lines[place] = dice.choice([
            f"{key}= {value(dice)}", "", f"{dice.choice(KEYS)} = {value(dice)}", f"{lines[place]}\n{lines[place]}",
            f"[panels.{text_of(dice.choice(WORDS))}]", f"[lines.{text_of(dice.choice(WORDS))}]",
        ])  # fmt: skip
    content = "\n".join(lines).encode("utf-8", "surrogatepass")
    return mutated(content, dice) if dice.random() < 0.3 else content


def mutated_text(text: str, dice: Dice) -> str:
    """Change some characters of a text; it may then hold anything that an argument may."""
    return mutated(text.encode("utf-8", "surrogatepass"), dice).decode("utf-8", "surrogateescape").replace("\0", "0")


def idx(dice: Dice) -> tuple[str, bytes]:
    """Return the name and the bytes of an idx file, compressed or not."""
    shape = [dice.choice([0, 1, 2, 28, 2**16, 2**31, 2**32 - 1]) for _ in range(dice.choice([0, 1, 3, 3, 65, 255]))]
    header = bytes([0, 0, 8, len(shape)]) + b"".join(side.to_bytes(4, "big") for side in shape)
    good = idx_bytes(np.arange(2 * 4).reshape(2, 2, 2))
    content = dice.choice([header + bytes(dice.randrange(100)), mutated(good, dice), mutated(good[:16], dice)])
    if dice.random() < 0.5:
        return "file", content
    packed = gzip.compress(content, 1, mtime=0)
    return "file.gz", packed if dice.random() < 0.5 else mutated(packed, dice)


_PIXELS, _LABELS = np.arange(2 * 3072, dtype=np.uint32).reshape(2, 3072).astype(np.uint8), np.array([3, 7])
_PICKLES = [cifar_pickle(_PIXELS, _LABELS), cifar100_pickle(_PIXELS, _LABELS)]
_PICKLES += [pickle.dumps({b"data": _PIXELS, b"labels": _LABELS.tolist()}, protocol) for protocol in range(6)]
_HUGE = (2**62).to_bytes(8, "little")
_OPCODES = [b"cos\nsystem\n(Vtouch x\ntR", b"\x96" + _HUGE, b"\x8e" + _HUGE,
            b"B\xff\xff\xff\x7f", b"(" * 1000, b"cbuiltins\neval\n", b"]2" * 500, b"\x94", b"h\xff", b"Q"]  # fmt: skip


def cifar(dice: Dice) -> tuple[bool, bytes]:
    """Return whether it is a pickle, and the bytes of a batch."""
    if dice.random() < 0.3:
        return False, mutated(cifar_binary(_PIXELS, _LABELS), dice)
    content = dice.choice(_PICKLES)
    if dice.random() < 0.5:
        # Where the opcodes are: before and after the pixels.
        place = dice.choice([dice.randrange(min(300, len(content))), len(content) - dice.randrange(1, 60)])
        return True, content[:place] + dice.choice(_OPCODES) + content[place:]
    return True, mutated(content, dice)


def npz(dice: Dice) -> bytes:
    """Return an archive of arrays: with odd arrays, odd headers within a sound archive, or mutated as a whole."""
    samples = dice.choice([0, 1, 6, 6, 6])
    labels = samples if dice.random() < 0.8 else dice.randrange(8)
    arrays: dict[str, Any] = {"features": np.zeros((samples, 2)), "labels": np.zeros(labels, int)}
    odd = [np.array("a"), np.array([None]), np.zeros(6, bool), np.full(6, np.nan), np.zeros(6, complex),
           np.zeros((0, 2**40)), np.zeros(6, "M8[s]"), np.zeros(6, "i4,f8"), np.float16(1)]  # fmt: skip
    name = dice.choice(["features", "labels", "test_features", "test_labels", "users", "../x", "X", "y"])
    if dice.random() < 0.6:
        arrays[name] = dice.choice(odd)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", dice.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])) as archive:
        for each, array in arrays.items():
            content = io.BytesIO()
            np.save(content, array, allow_pickle=True)
            raw = content.getvalue()
            archive.writestr(f"{each}.npy", mutated(raw, dice) if dice.random() < 0.3 else raw)
    return mutated(file.getvalue(), dice) if dice.random() < 0.4 else file.getvalue()


# Directories of runs: a file per name, of which one is forged.

JUNK: list[Any] = [
    None, True, False, 0, 1, 2, 3, 4, -1, 0.5, 1e300, 10**9, 10**18, 2**63, 10**400, float("nan"), float("inf"), "",
    "3", "round", "../x", "../../outside/precious", "/etc/passwd", "\udcff", "a\0b", "x" * 3000, [], [1], {}, {"a": 1},
    [[[]]],
]  # fmt: skip


def forged(content: Any, dice: Dice) -> Any:
    """Change something anywhere in a JSON value."""
    if isinstance(content, dict) and content and dice.random() < 0.85:
        key = dice.choice(list(content))
        kind = dice.randrange(6)
        if kind == 0:
            return {k: v for k, v in content.items() if k != key}
        if kind == 1:
            return content | {dice.choice(["format", "round", "extra", "sha256", key]): dice.choice(JUNK)}
        return content | {key: forged(content[key], dice)}
    if isinstance(content, list) and content and dice.random() < 0.85:
        at = dice.randrange(len(content))
        some = dice.choice([[], [forged(content[at], dice)], [content[at]] * 2])
        return content[:at] + some + content[at + 1 :]
    return dice.choice(JUNK)


def sealed(manifest: Any) -> bytes:
    """Write a manifest with a checksum that is right, as docs/reliability.md says."""
    if not isinstance(manifest, dict):
        return json.dumps(manifest).encode()
    rest = {key: worth for key, worth in manifest.items() if key != "sha256"}
    digest = hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
    return json.dumps(rest | {"sha256": digest}, indent=1).encode()


Files = dict[str, bytes]


def newest(files: Files) -> str:
    return max(name for name in files if name.endswith(".json") and "round-" in name)


def manifest(files: Files, dice: Dice) -> Files:
    """Forge the newest manifest."""
    name = newest(files)
    if dice.random() < 0.2:
        return files | {name: mutated(files[name], dice)}
    content = forged(json.loads(files[name]), dice)
    if dice.random() < 0.1:
        name = f"checkpoint/round-{dice.choice(['9' * 20, '00000009', '1' * 200, '0', '٣'])}.json"
    return files | {name: sealed(content)}


def state(files: Files, dice: Dice) -> Files:
    """Forge a file of tensors, and let the manifest vouch for it."""
    name = newest(files)
    about = json.loads(files[name])
    entry = dice.choice(about["files"])
    content = mutated(files[f"checkpoint/{entry['name']}"], dice)
    entry |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    return files | {name: sealed(about), f"checkpoint/{entry['name']}": content}


def lines(files: Files, dice: Dice) -> Files:
    """Forge the metrics."""
    rows = [json.loads(line) for line in files["metrics.jsonl"].splitlines()]
    if dice.random() < 0.4:
        return files | {"metrics.jsonl": mutated(files["metrics.jsonl"], dice)}
    rows = forged(rows, dice)
    rows = rows if isinstance(rows, list) else [rows]
    return files | {"metrics.jsonl": b"".join(json.dumps(row).encode() + b"\n" for row in rows)}


def summary(files: Files, dice: Dice) -> Files:
    """Forge the summary of a finished run."""
    if dice.random() < 0.3:
        return files | {"summary.json": mutated(files["summary.json"], dice)}
    return files | {"summary.json": json.dumps(forged(json.loads(files["summary.json"]), dice)).encode()}


ALGORITHM_NAMES = list(ALGORITHMS)


def run_config(dice: Dice) -> str:
    """Return a configuration that, whatever is odd about it, costs next to nothing to run."""

    def pick(good: list[Any], odd: list[Any]) -> Any:
        return dice.choice(odd if odd and dice.random() < 0.05 else good)

    data = {
        "dataset": dice.choice(["quadratics", "quadratics", "digits", "synthetic"]), "clients": pick([3, 4, 5], [1, 0]),
    }  # fmt: skip
    if data["dataset"] == "quadratics":
        data |= {"dim": dice.choice([1, 2, 5]), "heterogeneity": pick(["mild", "shared", "large"], ["none"]),
                 "sigma": pick([0, 0.1], [1e300, -1])}  # fmt: skip
    else:
        data |= {"partition": pick(["iid", "dirichlet", "shards", "quantity", "dirichlet-by-class"], ["by-user"]),
                 "alpha": pick([1e-9, 0.1, 1e9], [0]), "holdout": pick([0, 0.5], [0.999, 1e-9]),
                 "test_samples": pick([1, 2, 100], [10**9])}  # fmt: skip
    run = {
        "rounds": dice.choice([1, 2, 3]), "cohort": pick([1, 2, 3, "all"], [7]), "local_steps": dice.choice([1, 2, 3]),
        "batch_size": pick([1, 2, "full"], [64, 10**6]), "weight_decay": pick([0, 0.1], [1e300, -1]),
        "weights": dice.choice(["uniform", "size"]), "lost_replies": pick([0, 0.5, 0.999], [1]),
        "seed": pick([0, 1, 2**63 - 1], [-1]), "eval_every": pick([1, 2, 10**9], [0]),
        "shards": pick([1, 16, 100], [0]),
        "state_memory": pick([0, "1kB", "4GB"], ["x"]), "checkpoint_every": pick([0, 1, "0.1s", "never", "auto"], [-1]),
        "engine": pick(["auto", "module"], ["fused-mlp", "fused-cnn"]), "device": pick(["cpu"], ["meta", "cuda"]),
        "threads": pick([1, 2], [1000]), "eval_clients": dice.choice(["true", "false"]),
    }  # fmt: skip
    if dice.random() < 0.2:
        run["local_epochs"] = dice.choice([0.001, 1, 2])
        del run["local_steps"]
    method = {"name": dice.choice(ALGORITHM_NAMES), "eta": pick([1e-300, 0.01, 0.1], [1, 1e30])}
    if dice.random() < 0.2:
        method[dice.choice(["beta", "gamma", "opening_batches", "mu", "alpha"])] = dice.choice([0, 1, 2, 0.5, 1e300])
    sections = {"data": data, "run": run, "algorithm": method}
    if data["dataset"] != "quadratics" and dice.random() < 0.7:
        sections["model"] = {"name": pick(["mlp", "logistic"], ["lenet"])}
        if sections["model"]["name"] == "mlp":
            sections["model"] |= {"widths": dice.choice([[], [1], [2, 3]]), "dropout": pick([0, 0.5, 1e-300], [1])}
    costly = ("dataset", "clients", "rounds", "local_steps")
    kept = {
        name: {k: v for k, v in keys.items() if k in costly or dice.random() < 0.8} for name, keys in sections.items()
    }
    return "\n".join(
        line for name, keys in kept.items() for line in (f"[{name}]", *(f"{k} = {_plain(v)}" for k, v in keys.items()))
    )


def _plain(worth: Any) -> str:
    return worth if worth in ("true", "false") else json.dumps(worth)

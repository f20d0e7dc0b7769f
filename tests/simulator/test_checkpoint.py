"""The format of checkpoints: whatever was saved comes back to the bit, and what is damaged is never taken for whole."""

import json
import os
import re
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kedge
from kedge.errors import RunWarning
from kedge.simulator import Settings, Simulation
from kedge.simulator.checkpoint import FORMAT, Checkpoints
from kedge.simulator.store import PORTION

NOTES = {"seconds": 1.5, "records": 0, "fingerprint": {"seed": 1}, "written_with": {"torch": "2"}}
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def random_bits(shape, dtype, seed):
    """Return a tensor of random bits, so that every kind of NaN and zero occurs."""
    size = torch.empty(0, dtype=dtype).element_size()
    bits = torch.randint(0, 256, (*shape, size), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    return bits.view(dtype).squeeze(-1)


def same(one, other):
    bits = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other)]
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(*bits)


class Clients:
    """Rows of client state that change at random."""

    def __init__(self, dtype):
        self.rows, self.changed, self.dtype = {}, set(), dtype

    def change(self, clients, seed):
        for client in clients:
            self.rows[client] = random_bits((3,), self.dtype, seed * 100 + client)
            self.changed.add(client)

    def portions(self, changed):
        clients = sorted(self.changed if changed else self.rows)
        for some in (clients[at : at + 2] for at in range(0, len(clients), 2)):
            yield {"clients": torch.tensor(some), "client.c": torch.stack([self.rows[c] for c in some])}


def replayed(loaded):
    rows = {}
    for some in loaded.rows:
        rows |= dict(zip(some["clients"].tolist(), some["client.c"], strict=True))
    return rows


def save_some(path, changes, dtype=torch.float32):
    """Save a checkpoint after each set of changed clients; return the state and rows of every round."""
    checkpoints, clients, past = Checkpoints(path), Clients(dtype), {}
    for round, changed in enumerate(changes, 1):
        clients.change(changed, round)
        state = {"round": torch.tensor(round), "server.x": random_bits((4,), dtype, round), "buffers": torch.zeros(0)}
        checkpoints.save(state, clients.portions, **NOTES)
        clients.changed.clear()
        past[round] = (state, dict(clients.rows))
    return past


def check(loaded, past):
    state, rows = past[loaded.manifest.round]
    assert loaded.state.keys() == state.keys()
    assert all(same(value, loaded.state[name]) for name, value in state.items())
    found = replayed(loaded)
    assert found.keys() == rows.keys()
    assert all(same(row, found[client]) for client, row in rows.items())


CHANGES = st.lists(st.sets(st.integers(0, 9)), min_size=1, max_size=8)


@settings(max_examples=40)  # each writes to the disk, and waits for it
@given(CHANGES, st.sampled_from(DTYPES))
def test_what_was_saved_comes_back_to_the_bit(changes, dtype):
    with TemporaryDirectory() as name:
        past = save_some(Path(name), changes, dtype)
        loaded = Checkpoints(Path(name)).load(NOTES["fingerprint"], 0)
        assert loaded.manifest.round == len(changes)
        check(loaded, past)


@settings(max_examples=40)  # each writes to the disk, and waits for it
@given(CHANGES)
def test_the_last_two_are_kept_and_few_rows_twice(changes):
    with TemporaryDirectory() as name:
        save_some(Path(name), changes)
        manifests = [json.loads(file.read_text()) for file in sorted(Path(name).glob("*.json"))]
        assert [m["round"] for m in manifests] == list(range(1, len(changes) + 1))[-2:]
        named = {file["name"] for m in manifests for file in m["files"]}
        assert {file.name for file in Path(name).glob("*.safetensors")} == named
        rows = sum(file["rows"] for file in manifests[-1]["files"])
        assert rows <= 2 * len(set().union(*changes)) + len(changes[-1])


@settings(max_examples=40)  # each writes to the disk, and waits for it
@given(CHANGES.filter(lambda changes: len(changes) > 1), st.data())
def test_a_damaged_file_is_noticed_and_the_checkpoint_before_taken(changes, data):
    with TemporaryDirectory() as name:
        past = save_some(Path(name), changes)
        newest = json.loads((Path(name) / f"round-{len(changes):08d}.json").read_text())
        own = [file["name"] for file in newest["files"] if f"{len(changes):08d}" in file["name"]]
        file = Path(name) / data.draw(st.sampled_from([*own, f"round-{len(changes):08d}.json"]))
        content = bytearray(file.read_bytes())
        at = data.draw(st.integers(0, len(content) - 1))
        if data.draw(st.booleans()):
            content[at] ^= data.draw(st.integers(1, 255))
        else:
            del content[at:]
        file.write_bytes(content)
        with pytest.warns(RunWarning, match=f"{re.escape(str(file))} is damaged .*resumes from round"):
            loaded = Checkpoints(Path(name)).load(NOTES["fingerprint"], 0)
        assert loaded.manifest.round == len(changes) - 1
        check(loaded, past)


def test_a_run_goes_on_after_a_fall_back_and_forgets_the_damaged_one(tmp_path):
    save_some(tmp_path, [{0, 1}, {1}, {0}])
    (tmp_path / "rows-00000003-0000.safetensors").unlink()
    checkpoints = Checkpoints(tmp_path)
    with pytest.warns(RunWarning, match=r"rows-00000003-0000.safetensors is missing: the run resumes from round 2"):
        loaded = checkpoints.load(NOTES["fingerprint"], 0)
    clients = Clients(torch.float32)
    clients.rows = replayed(loaded)
    clients.change({5}, 9)
    checkpoints.save(loaded.state | {"round": torch.tensor(4)}, clients.portions, **NOTES)
    assert sorted(file.name for file in tmp_path.glob("*.json")) == ["round-00000002.json", "round-00000004.json"]
    assert replayed(Checkpoints(tmp_path).load(NOTES["fingerprint"], 0)).keys() == {0, 1, 5}


def test_without_any_whole_checkpoint_a_run_starts_again(tmp_path):
    assert Checkpoints(tmp_path / "none").load({}, 0) is None
    save_some(tmp_path, [{0}, {1}])
    for file in tmp_path.glob("*.json"):
        os.truncate(file, 10)
    with pytest.warns(RunWarning, match=r"2\.json is damaged .*1\.json is damaged .*starts again from round 0"):
        assert Checkpoints(tmp_path).load(NOTES["fingerprint"], 0) is None


def test_a_checkpoint_that_counts_more_rows_of_metrics_is_passed_over(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for round in (1, 2):
        checkpoints.save({"round": torch.tensor(round)}, lambda changed: [], **NOTES | {"records": round})
    with pytest.warns(RunWarning, match="counts 2 rows of metrics, but there are 1: the run resumes from round 1"):
        assert Checkpoints(tmp_path).load(NOTES["fingerprint"], 1).manifest.round == 1


def test_another_configuration_is_refused_by_its_first_difference(tmp_path):
    save_some(tmp_path, [{0}])
    with pytest.raises(kedge.UsageError, match="has a different configuration: seed is 1 there, but 2 here"):
        Checkpoints(tmp_path).load({"seed": 2}, 0)
    with pytest.raises(kedge.UsageError, match="has a different configuration: seed is 1 there, but None here"):
        Checkpoints(tmp_path).load({}, 0)


def test_a_newer_format_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("kedge.simulator.checkpoint.FORMAT", FORMAT + 1)
    save_some(tmp_path, [{0}])
    monkeypatch.undo()
    with pytest.raises(kedge.UsageError, match="has format 3, but this version of kedge reads formats up to 2"):
        Checkpoints(tmp_path).load(NOTES["fingerprint"], 0)


def test_files_of_others_are_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "round-00000001.json.part").write_text("torn")
    save_some(tmp_path, [{0}, {0}, {0}])
    assert (tmp_path / "notes.txt").exists()
    assert not list(tmp_path.glob("*.part"))


def test_only_rows_that_changed_are_returned_and_in_portions(monkeypatch):
    made = kedge.quadratics(clients=6, dim=4)
    run = Simulation(made.model, made.federation, kedge.ScaffoldM(eta=0.1), Settings(cohort=2, batch_size=1), made.loss)
    assert PORTION > 1 << 20
    monkeypatch.setattr("kedge.simulator.store.PORTION", 2 * 4 * 8)
    run.advance()
    assert [some["clients"].tolist() for some in run.client_rows(changed=True)] == [[0, 1], [2, 3], [4, 5]]
    run.settle()
    run.advance()
    (some,) = run.client_rows(changed=True)
    assert some["clients"].tolist() == sorted(run.cohorts[-1])
    assert len(list(run.client_rows(changed=False))) == 3

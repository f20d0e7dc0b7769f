"""The server on a federation without processes: continuing, starting anew, absent clients, bad settings."""

import logging
import shutil
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from random import Random

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord

import kedge
from kedge.errors import FailedRunError, UsageError
from kedge.files import InUseError, locked
from kedge.flower import fleet
from kedge.flower.agreement import Agreement
from tests.flower.grid import CORRUPTIONS, Died, World, config, digits, mlp, vectors
from tests.flower.test_equal import assert_equal, simulated


@pytest.fixture(scope="module")
def federation():
    return digits()


@pytest.fixture
def world(federation, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(fleet, "LOOK", 0.0)
    caplog.set_level(logging.INFO)
    return World(tmp_path, federation, mlp)


@pytest.mark.parametrize("name", ["scaffold-m", "ce-lsgd", "mime", "vrl-sgd"])
def test_a_server_that_dies_again_and_again_ends_where_an_undisturbed_one_does(name, world):
    wanted = config(name, world.path / "out", 4, 3 if name == "vrl-sgd" else 2)
    random, deaths = Random(3), 0
    fates = ["die before", "die after"] + ["ok"] * 10
    grid = world.grid(wanted, lambda client, message: random.choice(fates))
    while True:
        try:
            server = world.server(wanted, grid=grid)
            server.run()
            break
        except Died:
            deaths += 1
            grid.replies.clear()
    assert deaths
    assert_equal(world, server)
    found = kedge.read_run(world.path / "out")
    assert [row["round"] for row in found.rows] == [1, 2, 3, 4]
    assert found.problems == ()


def test_a_finished_run_stays_and_more_rounds_continue_it(world, caplog):
    wanted = config("scaffold-m", world.path / "out", 2, 2)
    world.server(wanted).run()
    before = (world.path / "out" / "metrics.jsonl").read_bytes()
    world.server(wanted).run()
    assert "is finished" in caplog.text
    assert (world.path / "out" / "metrics.jsonl").read_bytes() == before
    server = world.server(wanted | {"run.rounds": 4})
    server.run()
    assert_equal(world, server)
    with pytest.raises(UsageError, match=r"a different configuration: algorithm is .*eta=0.05.* there, but"):
        world.server(wanted | {"algorithm.eta": 0.07}).run()


def test_a_server_waits_for_an_earlier_one_to_end_and_for_nothing_else(world, monkeypatch):
    wanted = config("scaffold-m", world.path / "out", 1, 2)
    first, held = world.server(wanted), ExitStack()
    (world.path / "out").mkdir()
    held.enter_context(locked(world.path / "out"))
    first._sleep = lambda seconds: held.close()
    first.run()
    assert first.moment.round == 1
    monkeypatch.setattr("kedge.flower.server.LOCKED", -1.0)
    with locked(world.path / "out"), pytest.raises(InUseError, match="is in use: another process is writing to it"):
        world.server(wanted | {"run.rounds": 2}).run()

    @contextmanager
    def refused():
        raise UsageError("what is in use here is something else")
        yield

    other = world.server(wanted | {"run.rounds": 2})
    other._sleep = pytest.fail
    monkeypatch.setattr("kedge.flower.server.LOCKED", 60.0)
    monkeypatch.setattr(other._record.directory, "opened", refused)
    with pytest.raises(UsageError, match="something else"):
        other.run()


def test_a_simulation_does_not_continue_a_federation(world, capsys):
    from kedge.cli.program import execute

    world.server(config("fedavg", world.path / "out", 1, 2)).run()
    assert execute(["resume", str(world.path / "out"), "--rounds", "3"]) == 2
    assert "data set 'own' does not exist" in capsys.readouterr().err


def test_a_client_that_has_lost_its_state_is_refused_until_the_experiment_starts_anew(world, caplog):
    wanted = config("scaffold-m", world.path / "out", 2, 3)
    world.server(wanted).run()
    shutil.rmtree(world.path / "disk-1")
    server = world.server(wanted | {"run.rounds": 4})
    server.run()
    assert "the reply of client 1 is dropped: it has lost its state" in caplog.text
    assert server.versions.now[1] < server.versions.now[0]
    x = server.moment.state.x
    server = world.server(wanted | {"run.rounds": 5, "flower.generation": 2})
    server._restore()
    assert torch.equal(server.moment.state.x, x)
    assert not server.moment.state.c.any()
    server = world.server(wanted | {"run.rounds": 6, "flower.generation": 2})
    server.run()
    own = [world.client(server, i)["c_i"] for i in range(3)]
    assert torch.allclose(torch.stack(own).mean(0), server.moment.state.c, atol=1e-6)
    assert len(set(server.versions.now.values())) == 1
    with pytest.raises(UsageError, match=r"flower.generation is 1, but the run is at 2"):
        world.server(wanted | {"run.rounds": 7}).run()


def test_too_few_replies_fail_the_run_and_leave_it_resumable(world):
    wanted = config("scaffold-m", world.path / "out", 3, 3, flower__min_replies=3, flower__attempts=2)
    with pytest.raises(FailedRunError, match="round 0 failed 2 times: too few replies"):
        world.server(wanted, lambda client, message: "lost" if client == 2 else "ok").run()
    server = world.server(wanted)
    server.run()
    assert_equal(world, server)


def test_clients_that_are_missing_at_the_start_are_said(world):
    wanted = config("scaffold-m", world.path / "out", 1, 2, flower__wait=0.01)
    grid = world.grid(wanted)
    del grid.contexts[102]
    with pytest.raises(FailedRunError, match=r"2 of 3 clients are connected after 0.01 s, but 3 must"):
        world.server(wanted, grid=grid).run()
    server = world.server(wanted | {"flower.min_clients": 2, "flower.sampling": "present"}, grid=grid)
    server.run()
    assert set(server.versions.now) == {0, 1}


def test_clients_may_join_and_leave_between_rounds(world):
    wanted = config("scaffold-m", world.path / "out", 6, 3, flower__min_clients=1, flower__sampling="present")
    grid = world.grid(wanted)
    everyone = dict(grid.contexts)
    server = world.server(wanted, grid=grid)
    save, here = server._save, [{100}, {100, 101}, {101, 102}, {102}, {100, 101, 102}]

    def saved():
        save()
        there = here[min(server.moment.round, 4)]
        grid.contexts = {node: everyone[node] for node in there}

    server._save = saved
    server.run()
    own = [world.client(server, i)["c_i"] for i in range(3)]
    assert torch.allclose(torch.stack(own).mean(0), server.moment.state.c, atol=1e-6)
    assert server.moment.round == 6


def test_with_over_sampling_the_first_replies_count(world):
    wanted = config("scaffold-m", world.path / "out", 3, 2, flower__oversample=1)
    grid = world.grid(wanted)
    pull = grid.pull_messages
    grid.pull_messages = lambda identities: pull(list(identities)[:1])  # one at a time
    server = world.server(wanted, grid=grid)
    server.run()
    assert server.moment.bytes_up == (3 + 2 * 3) * server.moment.state.x.nbytes  # the opening and three rounds
    own = [world.client(server, i)["c_i"] for i in range(3)]
    assert torch.allclose(torch.stack(own).mean(0), server.moment.state.c, atol=1e-6)


def test_a_reply_with_an_absurd_norm_is_dropped_if_asked_for(tmp_path, monkeypatch, caplog):
    federation = kedge.load_federation("digits", clients=6, partition="iid", test_samples=50)
    world = World(tmp_path, federation, mlp)
    wanted = config("fedavg", tmp_path / "out", 2, 6, data__clients=6, flower__z_score=8.0)
    grid = world.grid(wanted)
    answer = grid._answer

    def liar(node, message):
        reply = answer(node, message)
        if node == 103 and message.metadata.message_type == "train":
            record = reply.content.array_records["fields"]
            reply.content["fields"] = ArrayRecord([array.numpy() * 1000 for array in record.values()])
            reply.content["fields"] = ArrayRecord(dict(zip(record, reply.content["fields"].values(), strict=True)))
        return reply

    grid._answer = liar
    world.server(wanted, grid=grid).run()
    assert "the reply of client 3 is dropped: its norm is" in caplog.text


@pytest.mark.parametrize(("name", "number"), [("scaffold-m", 3e38), ("fedavg", 3e38), ("fedavg", 1e25)])
def test_huge_numbers_end_the_run_and_never_reach_a_checkpoint(name, number, world, monkeypatch):
    # The sum of two is infinite, in the opening of SCAFFOLD-M; 1e25 is finite, but the length of the step is not.
    monkeypatch.setitem(CORRUPTIONS, "huge numbers", vectors(lambda values: np.full_like(values, number)))
    wanted = config(name, world.path / "out", 2, 3)
    server = world.server(wanted, lambda client, message: "huge numbers" if client else "ok")
    with pytest.raises(FailedRunError, match=r"diverged in round .* eta, which is 0.05, or a client that sends huge"):
        server.run()
    assert kedge.read_run(world.path / "out").diverged is not None
    server = world.server(wanted)
    server.run()
    assert_equal(world, server)
    assert [row["round"] for row in kedge.read_run(world.path / "out").rows] == [1, 2]


def test_clients_with_names_get_numbers_that_last(world):
    wanted = config("scaffold-m", world.path / "out", 2, 2)
    grid = world.grid(wanted)
    number = {"north": 0, "south": 1, "west": 2}
    for (node, context), name in zip(grid.contexts.items(), ["west", "north", "south"], strict=True):
        context.node_config = {"name": name, "state-dir": str(world.path / f"disk-{node}")}
    app = kedge.flower.client_app(mlp, lambda context: world.federation.client(number[context.node_config["name"]]))
    grid.app = app
    server = world.server(wanted, grid=grid)
    server.run()
    assert server.fleet.names == {"west": 0, "north": 1, "south": 2}
    again = world.server(wanted | {"run.rounds": 3}, grid=grid)
    grid.contexts = dict(reversed(grid.contexts.items()))
    again.run()
    assert again.fleet.names == server.fleet.names


def test_two_nodes_that_say_they_are_one_client_are_said(world, caplog):
    wanted = config("fedavg", world.path / "out", 1, 3)
    grid = world.grid(wanted)
    grid.contexts[103], grid.activated[103], grid.late[103] = grid.contexts[100], "b", []
    server = world.server(wanted, grid=grid)
    server.run()
    assert "client 0 is on several connected nodes, or was started again: only node 103 is asked" in caplog.text
    assert_equal(world, server)


def test_nodes_of_flowers_simulation_are_clients(world):
    wanted = config("scaffold-m", world.path / "out", 2, 2, flower__state_dir=str(world.path / "states"))
    grid = world.grid(wanted)
    for number, context in enumerate(grid.contexts.values()):
        context.node_config = {"partition-id": number, "num-partitions": 3}
    number_of = kedge.flower.client_number
    grid.app = kedge.flower.client_app(mlp, lambda context: world.federation.client(number_of(context)))
    server = world.server(wanted, grid=grid)
    server.run()
    assert torch.equal(server.moment.state.x, simulated(world, server).server["x"])
    assert len(list((world.path / "states").glob("*/client-*/state"))) == 3


def test_clients_evaluate_the_model_they_receive_at_no_extra_exchange(world):
    wanted = config("scaffold-m", world.path / "out", 4, 3, flower__eval_clients=True, run__eval_every=2)
    grid = world.grid(wanted)
    server = world.server(wanted, grid=grid)
    server.run()
    first, last = kedge.read_run(world.path / "out").rows
    assert (first["round"], last["round"]) == (2, 4)
    assert grid.plays == 3 * (1 + 1 + 4)  # who is there, the opening, the rounds
    # All clients of this test have the server's test data, and received the model of the round before.
    before = simulated(world, server).history[2]
    assert last["cohort_loss"] == pytest.approx(before["test_loss"])
    assert last["cohort_accuracy_worst_decile"] == before["test_accuracy"]


def test_clients_without_test_data_are_said(world, caplog):
    wanted = config("fedavg", world.path / "out", 1, 2, flower__eval_clients=True)
    grid = world.grid(wanted)
    number_of = kedge.flower.client_number
    grid.app = kedge.flower.client_app(mlp, lambda context: world.federation.client(number_of(context)))
    world.server(wanted, grid=grid).run()
    assert "round 1: no client has evaluated the model; client_app needs load_test" in caplog.text


def test_weights_by_size_and_epochs_equal_the_simulator(world):
    wanted = config("scaffold-m", world.path / "out", 2, 2, run__weights="size", run__local_epochs=0.05)
    server = world.server(wanted)
    server.run()
    assert_equal(world, server)


def test_schedules_equal_the_simulator(world):
    wanted = config("scaffold-m", world.path / "out", 3, 2, run__weight_decay="cosine(0.1, 0.01, rounds=3)")
    server = world.server(wanted | {"algorithm.eta": "cosine(0.1, 0.01, rounds=3)"})
    server.run()
    assert_equal(world, server)


@pytest.mark.parametrize(
    "changes",
    [{"run.reply_transforms": "TopK(0.1)"}, {"run.local_update": "Clip(0.5)"}],
    ids=str,
)
def test_own_local_steps_and_reply_transforms_equal_the_simulator(changes, world):
    server = world.server(config("fedavg", world.path / "out", 3, 2) | changes)
    server.run()
    assert_equal(world, server)


def test_the_noise_of_privacy_is_a_secret_that_outlives_a_restart(world):
    wanted = config("fedavg", world.path / "out", 2, 3, run__reply_transforms="Privacy(1.0, 0.5)")
    server = world.server(wanted)
    server.run()
    assert not torch.equal(server.moment.state.x, simulated(world, server).server["x"])
    keys = list(world.path.rglob("noise.key"))
    assert len({key.read_text() for key in keys}) == 4  # of the server and of every client
    assert {key.stat().st_mode & 0o777 for key in keys} == {0o600}
    for out in ("out", "disk-0"):
        (key,) = (world.path / out).rglob("noise.key")
        before = key.read_text()
        world.server(wanted | {"run.rounds": 3}).run()
        assert key.read_text() == before


@pytest.mark.parametrize("model", ["resnet18", "lenet"])
def test_convolutions_and_batch_norm_equal_the_simulator(model, tmp_path):
    generator = torch.Generator().manual_seed(0)
    data = [(torch.rand(12, 3, 32, 32, generator=generator), torch.arange(12) % 3) for _ in range(3)]
    options = {"norm": "batch", "width": 2} if model == "resnet18" else {}
    world = World(
        tmp_path, kedge.Federation(data, data[0]), lambda: kedge.build_model(model, (3, 32, 32), 3, **options)
    )
    server = world.server(config("scaffold-m", tmp_path / "out", 2, 2))
    server.run()
    wanted = assert_equal(world, server)
    assert torch.equal(server.moment.buffers, wanted.simulation.moment.buffers)


def test_your_own_algorithm_is_given_to_both_apps(federation, tmp_path, caplog):
    world = World(tmp_path, federation, mlp, kedge.FedProx(eta=0.1, mu=0.3))
    server = world.server(config("scaffold-m", tmp_path / "out", 2, 2))
    server.run()
    assert_equal(world, server)
    grid = World(tmp_path, federation, mlp, kedge.FedProx(eta=0.1, mu=0.4)).grid(config("fedavg", tmp_path, 1, 2))
    wanted = config("fedavg", tmp_path / "other", 1, 2, flower__attempts=1)
    with pytest.raises(FailedRunError, match="too few replies"):
        world.server(wanted, grid=grid).run()
    assert "has a different algorithm: it is 'FedProx(eta=0.1, mu=0.3, gamma=None)' there, but" in caplog.text


HOSTILE = {
    "tag": "../../../etc/passwd", "base": "../x", "experiment": "../../x.00000000", "rules": "x" * 30_000, "client": -1,
    "exchange": 9, "round": -2, "keep": "x", "attempt": "", "more": 1,
}  # fmt: skip


@pytest.mark.parametrize("key", HOSTILE)
def test_a_client_checks_what_a_server_sends(key, world):
    def spoil(client, message):
        message.content.config_records["about"][key] = HOSTILE[key]
        return "ok"

    refused(world, spoil)


@pytest.mark.parametrize("spoil", ["nan", "no vectors", "more vectors", "another record"])
def test_a_client_checks_the_vectors_that_a_server_sends(spoil, world):
    def change(client, message):
        content = message.content
        if spoil == "nan":
            content["fields"] = ArrayRecord({"x": content["fields"]["x"]})
            content["fields"]["x"] = type(content["fields"]["x"])(content["fields"]["x"].numpy() * float("nan"))
        elif spoil == "no vectors":
            del content["fields"]
        elif spoil == "more vectors":
            content["fields"] = ArrayRecord({**content["fields"], "y": content["fields"]["x"]})
        else:
            content["more"] = ConfigRecord({"a": 1})
        return "ok"

    refused(world, change)


def refused(world, spoil):
    wanted = config("fedavg", world.path / "out", 1, 2, flower__attempts=1)
    with pytest.raises(FailedRunError, match="too few replies"):
        world.server(wanted, spoil).run()
    assert not [path for path in world.path.rglob("*") if path.is_file() and "out" not in path.parts]


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("run.rounds", 0, "run.rounds is 0, but must be a whole number of at least 1"),
        ("run.nonsense", 1, "key of run 'nonsense' does not exist"),
        ("flower.out", 3, "flower.out is 3, but must be text"),
        ("flower.experiment", "../x", "flower.experiment is '../x', but must be 1 to 64 letters"),
        ("algorithm.name", "scafold", "algorithm 'scafold' does not exist; did you mean 'scaffold'?"),
        ("algorithm.name", "own.py:Own", "algorithm.name is 'own.py:Own', but your own algorithm is given"),
        ("algorithm.mu", 0.1, "scaffold-m has no hyper-parameter 'mu'"),
        ("algorithm.eta", -1.0, "eta of ScaffoldM is -1, but must be above 0"),
        ("data.clients", "three", "data.clients is 'three', but must be a whole number of at least 1"),
        ("data.clients", 1, "run.cohort is 2, but there are 1 clients"),
        ("model.widths", "200;100", "model.widths is '200;100', but must be whole numbers with commas, as in 200,100"),
        ("run.lost_replies", 0.1, "run.lost_replies is set, but a real federation loses replies on its own"),
        ("flower.min_replies", 3, "flower.min_replies is 3, but run.cohort is 2"),
        ("algorithm.name", "stem", "Stem is defined only for full participation"),
    ],
)
def test_a_bad_run_config_is_one_sentence(key, value, sentence, tmp_path):
    with pytest.raises(UsageError) as error:
        Agreement.read(config("scaffold-m", tmp_path, 1, 2) | {key: value})
    assert sentence in str(error.value)


def test_a_damaged_checkpoint_is_said_and_not_replaced(world):
    wanted = config("fedavg", world.path / "out", 1, 2)
    world.server(wanted).run()
    (file,) = (world.path / "out" / "checkpoint").iterdir()
    file.write_bytes(file.read_bytes()[:-5])
    before = file.read_bytes()
    with pytest.raises(UsageError, match=r"federation\.safetensors cannot be read: "):
        world.server(wanted | {"run.rounds": 2}).run()
    assert file.read_bytes() == before


def test_without_flower_the_import_is_one_sentence():
    program = "import sys; sys.modules['flwr'] = None\ntry:\n import kedge.flower\nexcept ImportError as e: print(e)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "kedge.flower needs Flower, which is not installed; run `pip install 'kedge[flower]'`\n"

"""Federations of Hugging Face's tables, of a partitioner of flwr-datasets, and of LEAF's files."""

import json
import warnings

import numpy as np
import pytest
import torch

import kedge
from kedge.problem.sources import LETTERS

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    datasets = pytest.importorskip("datasets")
    partitioners = pytest.importorskip("flwr_datasets.partitioner")

RNG = np.random.default_rng(0)


def table(rows=24):
    content = {
        "x": RNG.normal(size=(rows, 4)).tolist(),
        "ids": RNG.integers(0, 9, (rows, 5)).tolist(),
        "mask": np.ones((rows, 5), int).tolist(),
        "y": RNG.integers(0, 3, rows).tolist(),
        "who": [f"user{i % 3}" for i in range(rows)],
    }
    return datasets.Dataset.from_dict(content)


def test_a_table_is_divided_by_a_column():
    data = table()
    federation = kedge.Federation.from_datasets(data, "x", "y", by="who", test=table(6))
    assert federation.names == ("user0", "user1", "user2")
    assert list(federation.sizes) == [8, 8, 8]
    assert federation.features.dtype == torch.float32
    assert len(federation.test[1]) == 6
    wanted = torch.tensor(data["x"][1::3], dtype=torch.float32)
    assert torch.equal(federation.client(1)[0], wanted)


def test_several_columns_are_the_models_keyword_arguments():
    tables = [table(8), table(10)]
    federation = kedge.Federation.from_datasets(tables, ["ids", "mask"], "y", client_tests=0.25)
    assert list(federation.features) == ["ids", "mask"]
    assert list(federation.sizes) == [6, 8]
    assert list(federation.client_tests.sizes) == [2, 2]


def test_a_partitioner_of_flwr_datasets_divides_them():
    partitioner = partitioners.IidPartitioner(num_partitions=4)
    partitioner.dataset = table()
    federation = kedge.Federation.from_datasets(partitioner, "x", "y")
    assert list(federation.sizes) == [6] * 4
    result = kedge.simulate(torch.nn.Linear(4, 3), federation, kedge.FedAvg(eta=0.1), rounds=1, cohort=2, batch_size=3)
    assert result.history[-1]["round"] == 1


def test_images_become_numbers_with_the_channels_first():
    pixels = RNG.integers(0, 256, (5, 6, 4, 3)).astype("uint8")
    features = datasets.Features({"image": datasets.Image(), "y": datasets.Value("int64")})
    made = datasets.Dataset.from_dict({"image": list(pixels), "y": [0, 1, 0, 1, 0]}, features=features)
    federation = kedge.Federation.from_datasets([made], "image", "y")
    assert federation.features.shape == (5, 3, 6, 4)
    assert torch.equal(federation.features, torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: kedge.Federation.from_datasets(table(), "x", "y"), "by is missing"),
        (
            lambda: kedge.Federation.from_datasets(table(), "x", "z", by="who"),
            "the data has no column 'z'; it has x, ids",
        ),
        (lambda: kedge.Federation.from_datasets(3, "x", "y"), "the data is 3, but must be tables"),
        (lambda: kedge.Federation.from_datasets([3], "x", "y"), "client 0 is a int, but must be a table"),
    ],
)
def test_what_is_no_table_is_named(make, message):
    with pytest.raises(kedge.UsageError, match=message):
        make()


def leaf(folder, name, users):
    folder.mkdir(parents=True, exist_ok=True)
    data = {user: {"x": x, "y": y} for user, (x, y) in users.items()}
    content = {"users": list(users), "num_samples": [len(y) for _, y in users.values()], "user_data": data}
    (folder / name).write_text(json.dumps(content))


def test_leaf_has_a_client_and_a_test_set_per_user(tmp_path):
    users = {f"f{i:04d}": (RNG.random((6, 784)).tolist(), RNG.integers(0, 62, 6).tolist()) for i in range(4)}
    first, rest = dict(list(users.items())[:2]), dict(list(users.items())[2:])
    leaf(tmp_path / "train", "a.json", first)
    leaf(tmp_path / "train", "b.json", rest)
    leaf(tmp_path / "test", "a.json", {user: (x[:2], y[:2]) for user, (x, y) in users.items()})
    federation = kedge.Federation.from_leaf(tmp_path)
    assert federation.names == tuple(users)
    assert (list(federation.sizes), len(federation.test[1])) == ([6] * 4, 8)
    assert list(federation.client_tests.sizes) == [2] * 4
    assert federation.features.shape == (24, 784)


def test_letters_of_shakespeare_become_leafs_numbers(tmp_path):
    leaf(tmp_path / "train", "a.json", {"HAMLET": (["To be", "or no"], [" ", "t"]), "OPHELIA": (["€ lor"], ["d"])})
    federation = kedge.Federation.from_leaf(tmp_path)
    assert federation.features.tolist()[0] == [LETTERS.index(letter) for letter in "To be"]
    assert federation.labels.tolist() == [LETTERS.index(letter) for letter in " td"]
    assert federation.features.tolist()[2][0] == len(LETTERS) == 80
    assert federation.test is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "it has no user_data"),
        ('{"user_data": 3}', "it has no user_data"),
        ('{"user_data": {"a": {"x": [1]}}}', "the user 'a' has no lists x and y"),
        (
            '{"user_data": {"a": {"x": [[1], [1, 2]], "y": [1, 2]}}}',
            "the user 'a' in .* are not an array",
        ),
        ("[" * 100_000, "cannot be read"),
    ],
)
def test_a_strange_leaf_file_is_one_sentence(tmp_path, content, message):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "a.json").write_text(content)
    with pytest.raises(kedge.UsageError, match=message):
        kedge.Federation.from_leaf(tmp_path)
    with pytest.raises(kedge.UsageError, match="is not a folder with JSON files of LEAF"):
        kedge.Federation.from_leaf(tmp_path / "nowhere")

"""Runs and models in other formats: what is read back is what was recorded."""

import csv
import io
import json
import shutil
import sys

import numpy as np
import onnxruntime
import pyarrow.parquet
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import kedge
from kedge.cli.program import execute
from kedge.report.exports import escaped
from kedge.runs import model_export
from tests.report.made import rows_of, write_comparison, write_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_comparison(tmp_path_factory.mktemp("exported") / "runs")


def test_csv_holds_every_row(folder, capsys):
    assert execute(["export", str(folder)]) == 0
    found = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(found) == 6 * 20
    first = found[0]
    assert (first["line"], first["seed"], first["round"]) == ("fedavg", "0", "1")
    assert {name: float(first[name]) for name in rows_of(1)[0]} == rows_of(1)[0]


def test_parquet_holds_every_row_with_its_types(folder, tmp_path):
    write_run(tmp_path / "a", settings={"algorithm.eta": 0.5, "run.weights": "uniform"})
    write_run(tmp_path / "b", settings={"algorithm.eta": 2, "run.weights": "sizes"})
    out = tmp_path / "runs.parquet"
    assert execute(["export", str(tmp_path), "--format", "parquet", "--out", str(out)]) == 0
    table = pyarrow.parquet.read_table(out)
    assert table.num_rows == 40
    assert table["algorithm.eta"].to_pylist()[::20] == [0.5, 2.0]
    assert table["run.weights"].to_pylist()[::20] == ["uniform", "sizes"]
    assert table["test_loss"].to_pylist()[:20] == [row["test_loss"] for row in rows_of(20)]
    assert {str(table.schema.field(name).type) for name in ("round", "seed")} == {"int64"}


def test_latex_is_a_table_with_the_best_in_bold(folder, capsys):
    assert execute(["export", str(folder), "--format", "latex", "--target", "0.6"]) == 0
    text = capsys.readouterr().out
    assert "\\toprule" in text
    assert "Algorithm & Accuracy (\\%) & Best (\\%) & Loss & Rounds to 60\\,\\% & MB to 60\\,\\% \\\\" in text
    assert "  fedavg & 77.9 $\\pm$ 0.1 & 77.9 & 0.316 & 11 & 0.0165 \\\\" in text
    assert "  mb-storm & \\textbf{89.4} $\\pm$ 0.1 & \\textbf{89.4} & " in text
    assert text.count("{") == text.count("}")


def test_latex_prints_a_name_as_it_is():
    assert escaped("a_b & 50% {x}\n\\input{y}~^<") == (
        "a\\_b \\& 50\\% \\{x\\}\\textbackslash{}input\\{y\\}\\textasciitilde{}\\textasciicircum{}\\textless{}"
    )


def test_a_metric_cannot_take_the_place_of_a_name(tmp_path, capsys):
    write_run(tmp_path / "run", rows=rows_of(2, line=7.0))
    assert execute(["export", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("scaffold-m,scaffold-m,0,")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["export", "run", "--format", "xls"], "format is 'xls', but must be one of csv, parquet, latex"),
        (["export", "run", "--format", "latex", "--target", "7"], "target is 7, but must be above 0 and at most 1"),
        (["export", "run", "--format", "parquet"], "only csv and latex can be printed"),
        (["export", "run", "--out", "there"], "out is there, but that exists; nothing was overwritten"),
        (["export", "nowhere"], "nowhere is not a folder"),
        (["export-model", "run", "--format", "pickle"], "must be one of safetensors, torch-export, onnx"),
        (["export-model", "run", "--out", "there"], "nothing was overwritten"),
        (["export-model", "run", "--out", "new"], "model.safetensors cannot be read"),
        (["export-model", "unfinished", "--out", "new"], "a run writes its model when it ends"),
        (["export-model", "nowhere", "--out", "new"], "nowhere does not exist"),
        (["export-model", "python", "--format", "onnx", "--out", "new"], "so its model cannot be built"),
        (["export-model", "other", "--format", "onnx", "--out", "new"], "does not fit the model of"),
        (["export-model", "own", "--format", "onnx", "--out", "new"], "runs only if you trust it"),
    ],
)
def test_a_wrong_export_is_one_sentence(tmp_path, monkeypatch, capsys, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    model = model_export.as_safetensors({"weight": torch.ones(2)}, None)
    write_run(tmp_path / "run")
    write_run(tmp_path / "unfinished", ended=False)
    for name, more in {"python": {"config": False}, "other": {}, "own": {"name": "own.py:Own"}}.items():
        write_run(tmp_path / name, **more)
        (tmp_path / name / "model.safetensors").write_bytes(model)
    (tmp_path / "own.py").write_text("raise SystemExit('it ran')")
    (tmp_path / "there").write_text("mine")
    assert execute(arguments) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
    assert (tmp_path / "there").read_text() == "mine"
    assert not (tmp_path / "new").exists()


def test_what_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    from kedge.report.exports import parquet

    with pytest.raises(kedge.UsageError, match=r"pip install 'kedge\[parquet\]'"):
        parquet([])
    with pytest.raises(kedge.UsageError, match=r"pip install 'kedge\[onnx\]'"):
        model_export.as_onnx(torch.nn.Linear(1, 1), torch.ones(2, 1))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run, and what its model says about some samples."""
    path = tmp_path_factory.mktemp("trained") / "run"
    options = ["--clients", "4", "--cohort", "2", "--rounds", "2", "--local-steps", "2", "--widths", "16,8"]
    assert execute(["run", *options, "--eta", "0.1", "--out", str(path)]) == 0
    x = torch.randn(7, 64, generator=torch.Generator().manual_seed(0))
    module = kedge.build_model("mlp", (64,), 10, widths=(16, 8))
    module.load_state_dict(load_file(path / "model.safetensors"))
    return path, x, module(x).detach()


def ran(file, x):
    """Return what ONNX Runtime computes."""
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    return torch.from_numpy(np.asarray(session.run(["scores"], {"x": x.numpy()})[0]))


def test_every_format_loads_back_with_the_same_outputs(trained, tmp_path):
    path, x, expected = trained
    before = {file: file.stat().st_mtime_ns for file in path.rglob("*")}
    for kind in model_export.FORMATS:
        assert execute(["export-model", str(path), "--format", kind, "--out", str(tmp_path / kind)]) == 0
    assert {file: file.stat().st_mtime_ns for file in path.rglob("*")} == before
    module = kedge.build_model("mlp", (64,), 10, widths=(16, 8), seed=9)
    module.load_state_dict(load_file(tmp_path / "safetensors"))
    assert torch.equal(module(x), expected)
    with safe_open(tmp_path / "safetensors", "pt") as file:
        assert "[algorithm]" in file.metadata()["kedge_config"]
    program = torch.export.load(tmp_path / "torch-export").module()
    assert torch.equal(program(x), expected)
    assert torch.allclose(ran(tmp_path / "onnx", x), expected, atol=1e-6)
    assert torch.allclose(ran(tmp_path / "onnx", x[:1]), expected[:1], atol=1e-6)


def test_a_model_with_statistics_keeps_them(tmp_path):
    module = kedge.build_model("resnet18", (3, 32, 32), 5, width=2)
    module(torch.randn(8, 3, 32, 32))  # moves the statistics of its BatchNorm
    like = kedge.build_model("resnet18", (3, 32, 32), 5, width=2, seed=1)
    model_export.filled(like, module.state_dict(), tmp_path)
    x = torch.randn(3, 3, 32, 32)
    expected = module.eval()(x).detach()
    assert torch.equal(like(x), expected)
    (tmp_path / "model.onnx").write_bytes(model_export.as_onnx(like, x))
    assert torch.allclose(ran(tmp_path / "model.onnx", x), expected, atol=1e-5)


def test_an_algorithm_of_your_own_runs_only_with_consent(trained, tmp_path, capsys):
    path, _, _ = trained
    shutil.copytree(path, tmp_path / "run")
    (tmp_path / "own.py").write_text(OWN)
    own = json.dumps(f"{tmp_path / 'own.py'}:Own")
    config = (path / "config.toml").read_text().replace('name = "scaffold-m"', f"name = {own}")
    lines = [line for line in config.splitlines() if not line.startswith(("beta =", "opening_batches ="))]
    (tmp_path / "run" / "config.toml").write_text("\n".join(lines))
    command = ["export-model", str(tmp_path / "run"), "--format", "torch-export", "--out", str(tmp_path / "new")]
    assert execute(command) == 2
    assert "add --trust" in capsys.readouterr().err
    assert execute([*command, "--trust"]) == 0


OWN = """
from dataclasses import dataclass
import kedge

@dataclass(frozen=True)
class Own(kedge.FedAvg):
    pass
"""

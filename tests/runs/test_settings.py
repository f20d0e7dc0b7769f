"""A setting is declared in one line, and everything else follows."""

import inspect
import io
import re
import tomllib
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

import kedge
from docs.tables import settings as page
from kedge.cli import options
from kedge.cli.program import execute
from kedge.errors import UsageError
from kedge.runs.config import check, resolved
from kedge.runs.directory import to_toml
from kedge.runs.settings import SETTINGS, Config, RunSettings, SimulationSettings
from kedge.settings import Section, documented, setting

DOCS = Path(__file__).parents[2] / "docs" / "settings.md"


@pytest.fixture(scope="module")
def run_help():
    """What `kedge run --help` says, without its boxes and breaks of lines."""
    with redirect_stdout(io.StringIO()) as said:
        assert execute(["run", "--help"]) == 0
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", said.getvalue()).split())


@pytest.mark.parametrize("key", SETTINGS)
def test_a_declared_setting_is_in_the_schema_the_options_the_signature_and_the_docs(key, run_help):
    section, _, name = key.partition(".")
    declared = SETTINGS[key]
    assert declared.meaning.endswith(".")
    assert name in Config.sections[section].model_fields
    if declared.option:
        default = f" Default: {declared.start_text}." if declared.start_text else ""
        option = re.escape(f"--{declared.option.replace('_', '-')}")
        assert re.search(
            rf" {option} (--no-\S+ )?((<\w+>|[A-Z]+) )?{re.escape(declared.help() + default)}( |$)", run_help
        )
    if name in SimulationSettings.declared and section == "run":
        parameter = inspect.signature(kedge.simulate).parameters[name]
        assert parameter.default == declared.default  # those that are written out repeat it
        assert f"\n        {name}: {declared.help('None')[:40]}" in kedge.simulate.__doc__
    assert f"\n| `{name}` | " in page.table(Config.sections[section])
    assert page.table(Config.sections[section]) in DOCS.read_text(encoding="utf-8"), "run `make docs`"


def test_the_page_of_settings_is_current_and_can_be_mended(tmp_path):
    text = DOCS.read_text(encoding="utf-8")
    file = tmp_path / "page.md"
    file.write_text(re.sub(r"\| `(rounds|eta)` .*\n", "", text), encoding="utf-8")
    assert file.read_text(encoding="utf-8") != text
    page.main([str(file)])
    assert file.read_text(encoding="utf-8") == text


class Patient(RunSettings):
    patience: int = setting(3, "Rounds without progress.", at_least=2)  # the one line


def test_a_new_setting_is_one_line(monkeypatch, capsys):
    monkeypatch.setitem(SETTINGS, "run.patience", Patient.declared["patience"])
    monkeypatch.setattr(Config, "sections", {**Config.sections, "run": Patient})
    with pytest.raises(UsageError, match=r"^run\.patience is 1, but must be a whole number of at least 2$"):
        check({"run": {"patience": 1}})
    with pytest.raises(UsageError, match=r"\[run\] has no setting 'patiense'; did you mean 'patience'"):
        check({"run": {"patiense": 4}})
    assert resolved(check({"run": {"patience": 4}}))["run"]["patience"] == 4
    assert "| `patience` | `--patience` | whole number | 3 | at least 2 | Rounds without progress. |" in page.table(
        Patient
    )
    given, app = [], typer.Typer()
    app.command()(options.takes("run")(given.append))
    app(["--patience", "4"], standalone_mode=False)
    assert given == [{"run.patience": 4}]

    @documented(Patient)
    def play(rounds=100, **settings):
        """Play. {settings}"""

    assert inspect.signature(play).parameters["patience"].default == 3
    assert "patience: Rounds without progress." in play.__doc__


def test_simulate_answers_a_wrong_name_with_the_nearest_and_takes_no_processes():
    with pytest.raises(UsageError, match="setting 'lost_reply' does not exist; did you mean 'lost_replies'"):
        kedge.simulate(None, None, None, lost_reply=0.1)
    with pytest.raises(UsageError, match="setting 'workers' does not exist; known: "):
        kedge.simulate(None, None, None, workers=2)


def test_only_compare_says_that_each_algorithm_has_its_own_rate(run_help, capsys):
    assert "Local learning rate. Default: 0.1." in run_help
    assert execute(["compare", "--help"]) == 0
    said = " ".join(re.sub(r"[│╭╮╰╯─]", " ", capsys.readouterr().out).split())
    assert "Local learning rate. Default: each algorithm's own." in said


def test_what_the_command_line_says_differently_is_explained_in_python():
    for said, arguments in (
        ("cohort is 'all', .* at least 1, or None for all clients", {"cohort": "all"}),
        ("batch_size is 'full', .* at least 1, or None for all samples", {"batch_size": "full"}),
        (r"algorithm is FedAvg, which is a class; pass an object, as in kedge.FedAvg\(eta=0.1\)", {}),
    ):
        with pytest.raises(UsageError, match=said):
            kedge.simulate(None, None, None if arguments else kedge.FedAvg, **arguments)
    with pytest.raises(UsageError, match="algorithm is 'fedavg', but must be an algorithm such as"):
        kedge.sweep(None, None, "fedavg", {"eta": [0.1]})


def test_local_steps_and_local_epochs_are_not_both_given(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    said = "local_steps is 5 and local_epochs is 1"
    small = ["--dataset", "quadratics", "--clients", "3", "--cohort", "all", "--rounds", "1"]
    (tmp_path / "both.toml").write_text("[run]\nlocal_steps = 5\nlocal_epochs = 1\n")
    (tmp_path / "steps.toml").write_text("[run]\nlocal_steps = 5\n")
    (tmp_path / "epochs.toml").write_text("[run]\nlocal_epochs = 1\n")
    for arguments in (
        ["--local-steps", "5", "--local-epochs", "1"],
        ["--set", "run.local_steps=5", "--local-epochs", "1"],
        ["both.toml"],
        ["epochs.toml", "--local-steps", "5"],
    ):
        assert execute(["run", *arguments, *small]) == 2
        assert said in capsys.readouterr().err
    assert execute(["run", "steps.toml", "--local-epochs", "1", *small, "--out", "run"]) == 0
    assert execute(["run", "run/config.toml", "--out", "again"]) == 0
    assert execute(["resume", "run", "--rounds", "2"]) == 0
    assert execute(["run", "run/config.toml", "--local-steps", "7", "--out", "third"]) == 2


def test_words_stand_for_none_in_a_configuration_only():
    config = check({"run": {"cohort": "all", "batch_size": "full"}})
    assert (config.run.cohort, config.run.batch_size) == (None, None)
    assert tomllib.loads(to_toml(resolved(config)))["run"].items() >= {"cohort": "all", "batch_size": "full"}.items()
    with pytest.raises(UsageError, match=r"^cohort is 'all', but must be a whole number of at least 1$"):
        kedge.Settings(cohort="all")
    with pytest.raises(
        UsageError, match=r"^run\.cohort is 'some', but must be a whole number of at least 1, or 'all'$"
    ):
        check({"run": {"cohort": "some"}})


def test_settings_of_a_federation_are_frozen_and_compared_by_value():
    some = kedge.Settings(cohort=2, weight_decay=0)
    assert some == kedge.Settings(cohort=2, weight_decay=0.0) != kedge.Settings()
    with pytest.raises(ValueError, match="frozen"):
        some.cohort = 3


def test_a_switch_of_the_command_line_is_a_setting(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = [
        "run",
        "--dataset",
        "quadratics",
        "--clients",
        "3",
        "--cohort",
        "all",
        "--batch-size",
        "full",
        "--rounds",
    ]
    more = ["1", "--local-epochs", "2", "--weights", "size", "--eval-clients", "--shards", "2", "--dim", "4"]
    assert execute([*command, *more, "--out", "run"]) == 0
    config = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert config["run"].items() >= {"weights": "size", "eval_clients": True, "shards": 2, "local_epochs": 2.0}.items()
    assert config["data"]["dim"] == 4


def test_widths_are_numbers_with_commas_between():
    for text in ("8,4", "[8, 4]"):
        assert options.configuration(None, None, {"model.widths": text}) == {"model": {"widths": [8, 4]}}


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2), st.sampled_from(["all", "full", "30s", 1e3]),
)  # fmt: skip


@given(key=st.sampled_from(list(SETTINGS)), value=VALUES)
def test_any_value_is_read_and_written_back_or_refused_in_a_sentence_with_its_name(key, value):
    declared = SETTINGS[key]
    try:
        read = declared.read(value)
    except UsageError:
        with pytest.raises(UsageError, match=rf"(?s)^{declared.name} is .*, but must be [^\n]*$"):
            declared.read(value)
        return
    assert declared.read(declared.written(read)) == read
    kind: type[Section] = Config.sections[key.partition(".")[0]]
    assert getattr(kind.read({declared.name: value}), declared.name) == read


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("Foo(1)", "local update 'Foo' does not exist"),
        (3, "run.local_update is 3, but must be one of"),
    ],
)
def test_a_sentence_about_a_setting_begins_with_its_key_and_any_other_stays_as_it_is(value, said):
    with pytest.raises(UsageError) as error:
        Config.read({"run": {"local_update": value}})
    assert str(error.value).startswith(said)

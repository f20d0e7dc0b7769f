"""The experiments: every file is sound at every scale, and installed with the package."""

import tomllib
from pathlib import Path

import pytest

import kedge
from kedge.errors import UsageError
from kedge.reproduce.estimate import estimate
from kedge.reproduce.experiment import load, names, read
from kedge.reproduce.plan import Case, Hyper, Plan, between, beyond

ROOT = Path(__file__).parents[2]
FIGURES = names()


def plan(name, scale="laptop"):
    return Plan(load(name), scale)


@pytest.mark.parametrize(("name", "scale"), [(name, scale) for name in FIGURES for scale in load(name).scales])
def test_every_configuration_passes_the_checks(name, scale):
    made = plan(name, scale)
    jobs = made.tuning_jobs(made.grids())
    chosen = {case: made.grid(case)[0] if case.protocol == "tuned" else made.equal(case) for case in made.cases()}
    jobs |= made.final_jobs(chosen)
    assert len(jobs) >= 2 * len(made.experiment.all_lines())
    assert estimate(made).seconds > 0
    for name_, config in jobs.items():
        assert bool(config.data.holdout) == name_.startswith("grid")
        assert config.data.dataset == "digits" or scale != "smoke"


def test_the_figures_of_the_paper_and_five_beyond_are_there():
    wanted = [
        "mlp-full",
        "mlp-vr",
        "mlp-partial",
        "resnet-mild",
        "resnet-severe",
        "resnet-vr",
        "mnist-many",
        "mnist-beta",
    ]
    beyond = ["baselines", "heterogeneity", "participation", "local-steps", "fashion"]
    assert sorted(FIGURES) == sorted([*wanted, *beyond])
    assert [name for name in FIGURES if load(name).figure == "beyond the paper"] == sorted(beyond)


def test_real_scales_have_three_seeds_and_say_what_was_reduced():
    for name in FIGURES:
        for scale in ("laptop", "paper"):
            assert load(name).scales[scale].seeds >= 3
            assert load(name).scales[scale].reduced


def test_the_mlp_figures_search_the_grid_of_the_paper():
    for name in ("mlp-full", "mlp-vr", "mlp-partial"):
        tuned = load(name).tuned
        assert tuned.eta == [0.005, 0.01, 0.05, 0.1, 0.5]
        assert tuned.beta == [0.1, 0.2, 0.5, 0.8]
        made = plan(name, "paper")
        for case in made.cases():
            config = made.final(case, made.grid(case)[0], 0)
            assert (config.run.local_steps, config.run.weight_decay, config.data.clients) == (32, 1e-4, 10)
            assert config.data.alpha == (0.2 if name == "mlp-partial" else 0.5)


def test_the_resnet_figures_have_the_settings_of_the_paper():
    made = plan("resnet-severe", "paper")
    case = Case("2 of 10 clients", "equal", "scaffold-m")
    config = made.final(case, made.equal(case), 0)
    assert (config.run.cohort, config.run.local_steps, config.run.batch_size, config.data.alpha) == (2, 16, 128, 0.1)
    assert config.algorithm.model_dump(exclude_none=True) == {"name": "scaffold-m", "eta": 0.01, "beta": 0.1}
    assert made.equal(case._replace(line="scaffold")) == Hyper(0.001, None)


def test_an_equal_rate_is_beta_eta_where_the_gradient_is_multiplied_by_beta():
    made = plan("mlp-vr")
    assert made.equal(Case("all 10 clients", "equal", "scaffold-m-vr")) == Hyper(0.01, 0.1)
    beta = plan("mnist-beta")
    assert beta.equal(Case("FedAvg-M", "equal", "beta = 0.05")) == Hyper(0.2, 0.05)


@pytest.mark.parametrize(
    ("best", "finer"),
    [(0.1, [0.032, 0.32]), (1.0, [0.32, 3.2]), (0.01, [0.0032, 0.032])],
)
def test_a_grid_is_refined_halfway_to_the_neighbours_and_beyond_its_ends(best, finer):
    grid = [Hyper(eta, beta) for eta in (0.01, 0.1, 1.0) for beta in (0.1, 0.5)]
    assert between(Hyper(best, 0.5), grid) == [Hyper(eta, 0.5) for eta in finer]
    assert between(Hyper(best, 0.5), [Hyper(best, 0.5)]) == []


def test_all_algorithms_are_compared_where_they_are_defined():
    made = plan("baselines", "paper")
    lines = {case.line for case in made.cases() if case.panel == "all 100 clients"}
    assert lines == set(kedge.ALGORITHMS)
    partial = {case.line for case in made.cases() if case.panel == "10 of 100 clients"}
    assert lines - partial == {name for name, kind in kedge.ALGORITHMS.items() if kind.full_participation}


def test_the_laptop_scale_is_about_five_hours_of_two_cores():
    seconds = sum(estimate(plan(name)).seconds for name in FIGURES) / 2
    assert seconds < 5.5 * 3600


def test_every_file_is_installed_with_the_package():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    included = {source for source in settings["force-include"] if source.startswith("experiments/")}
    assert included == {f"experiments/{name}.toml" for name in FIGURES}


GOOD = (ROOT / "experiments" / "mnist-many.toml").read_text()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("title =", "titel =", "title of the experiment mine is wrong: Field required"),
        ("title =", "title", "the experiment mine is not TOML"),
        ("run.cohort = 5\n", "cohort = 5\n", "must have the form section.name"),
        ('panels = ["5 of', 'panels = ["7 of', "panel of mine '7 of 100 clients' does not exist"),
        ('more_than_in = "all 100', 'more_than_in = "all 10', "panel of mine 'all 10 clients' does not exist"),
        ('more_than_in = "all', 'more_than_in = "mlp-fall: all', "figure in a claim of mine 'mlp-fall' does not exist"),
        ('pairs = [["fedavg-m",', 'pairs = [["fedavg-n",', "line of mine 'fedavg-n' does not exist"),
    ],
)
def test_a_wrong_file_is_one_sentence(old, new, message):
    assert old in GOOD
    with pytest.raises(UsageError, match=message):
        read("mine", GOOD.replace(old, new))


def test_places_that_claims_compare_with_are_there():
    for name in FIGURES:
        for claim in load(name).claims:
            figure, colon, panel = (claim.more_than_in or "").partition(": ")
            assert not colon or panel in load(figure).panels
    assert load("resnet-severe").needs() == {"resnet-mild", "mlp-full"}


def test_an_unknown_figure_is_one_sentence():
    with pytest.raises(UsageError, match="figure 'mnist-may' does not exist; did you mean 'mnist-many'"):
        load("mnist-may")


def test_a_best_rate_at_an_end_of_the_grid_is_tried_beyond_it():
    grid = [Hyper(eta, 0.1) for eta in (0.03, 0.1, 0.3)]
    assert beyond(grid[1], grid) == []
    assert beyond(grid[0], grid) == [Hyper(0.009, 0.1)]
    assert beyond(grid[2], grid) == [Hyper(0.9, 0.1)]
    assert beyond(grid[0], grid[:1]) == []


def test_one_panel_may_be_searched_for_all():
    made = plan("resnet-mild", "overnight")
    assert {case.panel for case in made.grids()} == {"all 10 clients"}
    assert {case.panel for case in made.cases()} == set(made.experiment.panels)
    assert all(made.searched(case) in made.grids() for case in made.cases())

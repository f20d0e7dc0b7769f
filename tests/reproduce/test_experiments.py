"""The experiments: every file is sound at every scale, and installed with the package."""

from pathlib import Path

import pytest

import kedge
from kedge.errors import UsageError
from kedge.reproduce.estimate import estimate
from kedge.reproduce.experiment import load, names, read
from kedge.reproduce.plan import SEARCHED, Case, Hyper, Plan

ROOT = Path(__file__).parents[2]
FIGURES = names()


def plan(name, scale="laptop"):
    return Plan(load(name), scale)


@pytest.mark.parametrize(("name", "scale"), [(name, scale) for name in FIGURES for scale in load(name).scales])
def test_every_configuration_passes_the_checks(name, scale):
    made = plan(name, scale)
    jobs = made.tuning_jobs(made.grids())
    chosen = {case: made.grid(case)[0] if case.protocol in SEARCHED else made.common(case) for case in made.cases()}
    jobs |= made.final_jobs(chosen)
    assert len(jobs) >= 2 * len(made.experiment.all_lines())
    assert estimate(made).seconds > 0
    for name_, config in jobs.items():
        assert bool(config.data.holdout) == name_.startswith("grid")
        assert config.data.dataset == "digits" or scale != "smoke"


def test_the_figures_of_the_paper_and_nine_beyond_are_there():
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
    beyond = [
        "baselines",
        "heterogeneity",
        "participation",
        "local-steps",
        "fashion",
        "step-mlp",
        "step-mnist",
        "horizon",
        "resnet-group",
    ]
    assert sorted(FIGURES) == sorted([*wanted, *beyond])
    assert [name for name in FIGURES if load(name).figure == "beyond the paper"] == sorted(beyond)


def test_real_scales_have_three_seeds_and_say_what_was_reduced():
    for name in FIGURES:
        for scale in set(load(name).scales) - {"smoke"}:
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
    config = made.final(case, made.common(case), 0)
    assert (config.run.cohort, config.run.local_steps, config.run.batch_size, config.data.alpha) == (2, 16, 128, 0.1)
    assert config.algorithm.model_dump(exclude_none=True) == {"name": "scaffold-m", "eta": 0.01, "beta": 0.1}
    assert made.common(case._replace(line="scaffold")) == Hyper(0.001, None)


def test_a_common_rate_is_beta_eta_or_eta_itself():
    beta = plan("mnist-beta")
    assert beta.common(Case("FedAvg-M", "equal", "beta = 0.05")) == Hyper(0.2, 0.05)
    made, panel = plan("step-mnist"), "10 of 100 clients"
    assert made.common(Case(panel, "equal", "fedavg")) == Hyper(0.1, None)
    assert made.common(Case(panel, "equal", "fedavg-m")) == Hyper(0.5, 0.2)
    assert made.common(Case(panel, "eta", "fedavg")) == Hyper(0.5, None)
    assert made.common(Case(panel, "eta", "fedavg-m")) == Hyper(0.5, 0.2)


def test_a_free_step_is_a_multiple_of_eta_k_and_only_searched():
    made = plan("step-mnist")
    case = Case("10 of 100 clients", "tuned", "fedavg, free step")
    assert {point.step for point in made.grid(case)} == {1.0, 2.0, 3.0, 5.0}
    assert made.final(case, Hyper(0.3, None, 2.0), 0).algorithm.model_dump()["gamma"] == 2 * 0.3 * 16
    assert made.grid(case._replace(line="fedavg")) == [Hyper(eta, None) for eta in (0.01, 0.03, 0.1, 0.3, 1.0)]
    assert {case.protocol for case in made.cases() if case.line == "fedavg, free step"} == {"tuned", "second", "finer"}


def test_a_decayed_rate_falls_by_a_cosine_to_a_hundredth_over_all_rounds():
    made, hyper = plan("horizon", "paper"), Hyper(0.1, 0.2)
    config = made.final(Case("K = 64, decayed", "tuned", "fedavg-m"), hyper, 0)
    assert str(config.algorithm.eta) == "cosine(0.1, 0.001, rounds=1000)"
    assert config.run.local_steps == 64
    assert made.final(Case("K = 64", "tuned", "fedavg-m"), hyper, 0).algorithm.eta == 0.1


def test_the_figures_of_the_paper_are_judged_by_what_the_paper_did():
    assert {name: load(name).judged for name in FIGURES if load(name).judged != ["tuned"]} == {
        name: ["tuned", "equal"] for name in ("resnet-mild", "resnet-severe", "resnet-vr")
    }


def test_every_panel_of_the_paper_has_a_claim_with_its_name():
    where = [name for figure in FIGURES for claim in load(figure).claims for name in claim.where.values()]
    wanted = [f"Figure {name}" for name in (
        "1(a)", "1(b)", "1(c)", "2(a), left", "2(a), right", "2(b), left", "2(b), right", "3(a)", "3(b)", "4",
        "5(a)", "5(b)", "5(c)", "6(a)", "6(b)", "6(c)", "7(a)", "7(b)", "8(a)", "8(b)",
    )]  # fmt: skip
    assert set(wanted) <= set(where)


def test_the_runs_of_the_night_have_the_names_that_they_were_begun_with():
    made = plan("resnet-mild", "overnight")
    jobs = made.tuning_jobs(made.grids())
    assert len(jobs) == 16
    config = jobs["grid--all-10-clients--fedavg-m--eta-0.3-beta-0.1--seed-100"]
    assert (config.run.rounds, config.run.eval_every, config.data.holdout) == (30, 3, 0.04)
    final = made.final(Case("2 of 10 clients", "tuned", "fedavg"), Hyper(0.1, None), 2)
    assert (final.run.rounds, final.run.eval_every, final.data.test_samples) == (150, 12, 2000)
    assert (made.size.tuning.extend, made.size.tuning.budget, made.protocols) == (2, 0, ["tuned"])


def test_all_algorithms_are_compared_where_they_are_defined():
    made = plan("baselines", "paper")
    lines = {case.line for case in made.cases() if case.panel == "all 100 clients"}
    assert lines == set(kedge.ALGORITHMS)
    partial = {case.line for case in made.cases() if case.panel == "10 of 100 clients"}
    assert lines - partial == {name for name, kind in kedge.ALGORITHMS.items() if kind.full_participation}


def test_the_laptop_scale_is_about_eight_hours_of_two_cores():
    seconds = sum(estimate(plan(name)).seconds for name in FIGURES if "laptop" in load(name).scales) / 2
    assert seconds < 9 * 3600


GOOD = (ROOT / "src" / "kedge" / "reproduce" / "experiments" / "mnist-many.toml").read_text()


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
        ("loss = true\n", 'free_step = ["fedavg-n"]\n', "line of mine 'fedavg-n' does not exist"),
        ('{ "all 100 clients" =', '{ "all clients" =', "panel of mine 'all clients' does not exist"),
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


def test_one_panel_may_be_searched_for_all():
    made = plan("resnet-mild", "overnight")
    assert {case.panel for case in made.grids()} == {"all 10 clients"}
    assert {case.panel for case in made.cases()} == set(made.experiment.panels)
    assert all(made.searched(case) in made.grids() for case in made.cases())
    assert made.how("all 10 clients", "tuned") == "each at its own best point"
    assert made.how("2 of 10 clients", "tuned") == "each at its own best point with all 10 clients"
    assert made.how("2 of 10 clients", "equal") == "one effective rate for all"

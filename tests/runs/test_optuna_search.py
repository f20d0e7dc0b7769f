"""Searches by optuna: how runs that diverge count."""

import math

import pytest

from kedge.runs.grid import Range

pytest.importorskip("optuna")

from kedge.runs.optuna_search import Study

AXES = {"algorithm.eta": Range(1e-3, 10.0, log=True)}


def test_a_run_that_diverges_is_worse_than_every_value(tmp_path):
    study = Study(tmp_path, AXES, maximize=True, seed=0)
    good, bad = study.ask(2)
    study.tell(good, -3.0)  # as R² may be
    study.tell(bad, None)
    again = Study(tmp_path, AXES, maximize=True, seed=0)
    assert again._study.best_trial.number == good


def test_how_bad_it_counts_changes_no_proposal_of_a_search_for_accuracy(tmp_path):
    proposed = []
    for worst in (0.0, -math.inf):
        path = tmp_path / str(worst)
        path.mkdir()
        study = Study(path, AXES, maximize=True, seed=1)
        study._worst = worst
        for _ in range(16):
            ((number, point),) = study.ask(1).items()
            eta = point["algorithm.eta"]
            study.tell(number, None if eta > 1 else math.exp(-((math.log(eta) + 2) ** 2)))
        proposed.append(list(study.trials().values()))
    assert proposed[0] == proposed[1]

"""Problems to solve: federations of data, ways to divide data, models, and quadratics with a known optimum."""

from kedge.problem.datasets import DATASETS, DataSet, load_dataset
from kedge.problem.federation import Federation
from kedge.problem.indices import ClientIndices
from kedge.problem.load import load_federation
from kedge.problem.models import MODELS, build_model, model_options, model_origin
from kedge.problem.partition import PARTITIONS, PartitionStatistics, describe, split
from kedge.problem.quadratic import Quadratics, quadratics

__all__ = [
    "DATASETS",
    "MODELS",
    "PARTITIONS",
    "ClientIndices",
    "DataSet",
    "Federation",
    "PartitionStatistics",
    "Quadratics",
    "build_model",
    "describe",
    "load_dataset",
    "load_federation",
    "model_options",
    "model_origin",
    "quadratics",
    "split",
]

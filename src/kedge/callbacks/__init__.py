"""Ready callbacks for `kedge.simulate(..., callbacks=[...])`."""

from kedge.callbacks.best import EarlyStopping, KeepBest
from kedge.callbacks.loggers import CSVLogger, MLflowLogger, TensorBoardLogger, WandbLogger
from kedge.callbacks.progress import ProgressBar

__all__ = [
    "CSVLogger",
    "EarlyStopping",
    "KeepBest",
    "MLflowLogger",
    "ProgressBar",
    "TensorBoardLogger",
    "WandbLogger",
]

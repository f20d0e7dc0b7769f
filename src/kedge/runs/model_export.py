"""A run's model for other programs: safetensors, torch.export or ONNX. No format that kedge reads holds code."""

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from kedge.errors import UsageError
from kedge.files import read
from kedge.runs.reader import CONFIG, MODEL

FORMATS = ("safetensors", "torch-export", "onnx")
OPSET = 18

State = dict[str, Tensor]


def stored_state(path: Path) -> State:
    """Return the parameters and buffers of a run's model."""
    try:
        return load(read(path / MODEL))
    except FileNotFoundError:
        raise UsageError(f"{path} has no {MODEL}: a run writes its model when it ends") from None
    except UsageError:
        raise
    except Exception as error:  # safetensors has its own errors
        raise UsageError(f"{path / MODEL} cannot be read: {error}") from None


def filled(module: nn.Module, state: State, path: Path) -> nn.Module:
    """Return the module with the stored parameters, in their dtype and in evaluation mode."""
    floats = {tensor.dtype for tensor in state.values() if tensor.is_floating_point()}
    if len(floats) == 1:
        module = module.to(floats.pop())
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"{path / MODEL} does not fit the model of {path / CONFIG}: {reason}"[:500]) from None
    return module.eval()


def as_safetensors(state: State, config: str | None) -> bytes:
    """Return the state as safetensors; the configuration, if there is one, goes into the file's metadata."""
    about = {"format": "pt"} | ({"kedge_config": config} if config is not None else {})
    return save({name: tensor.contiguous() for name, tensor in state.items()}, about)


def as_program(module: nn.Module, example: Tensor) -> bytes:
    """Return the module as `torch.export.save` writes it; the number of samples is free."""
    file = io.BytesIO()
    torch.export.save(_exported(module, example), file)
    return file.getvalue()


def as_onnx(module: nn.Module, example: Tensor) -> bytes:
    """Return the module as an ONNX model with the input "x" and the output "scores"; the number of samples is free."""
    try:
        import onnxscript as onnxscript
    except ImportError:
        raise UsageError("format is onnx, but that needs two packages: pip install 'kedge[onnx]'") from None
    with _quiet():
        made = torch.onnx.export(
            _exported(module, example), (), None, input_names=["x"], output_names=["scores"], dynamo=True,
            opset_version=OPSET, verbose=False, external_data=False,
        )  # fmt: skip
    if made is None:
        raise UsageError("format is onnx, but the exporter returned nothing")
    content: bytes = made.model_proto.SerializeToString()
    return content


def _exported(module: nn.Module, example: Tensor) -> torch.export.ExportedProgram:
    free = {0: torch.export.Dim("samples", min=1)}
    with _quiet():
        return torch.export.export(module, (example[:2].to(_dtype(module)),), dynamic_shapes=(free,))


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide what the exporters say about their own code, such as packages that they do not find."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


def _dtype(module: nn.Module) -> torch.dtype:
    return next(iter(module.parameters())).dtype

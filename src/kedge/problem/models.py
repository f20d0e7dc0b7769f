"""The models of the experiments, each initialised from its own seed.

``logistic`` and ``mlp`` are the convex and the small non-convex model of the federated literature. ``lenet`` is
the network of LeCun et al., "Gradient-Based Learning Applied to Document Recognition" (1998), with ReLU and
max-pooling. ``resnet18`` is that of He et al., "Deep Residual Learning for Image Recognition" (2016), with the
3x3 stem for 32x32 images, and optionally group instead of batch normalisation: Hsieh et al., "The Non-IID Data
Quagmire of Decentralized Machine Learning" (2020).
"""

import inspect
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from kedge.checks import affordable, check_options, real, whole, whole_seed
from kedge.errors import UsageError, shown, unknown

Shape = tuple[int, ...]

LAYERS = 1000
"""The most hidden layers mlp may have."""


def logistic(shape: Shape, classes: int) -> nn.Module:
    """Multinomial logistic regression."""
    _affordable("logistic", math.prod(shape) * classes)
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


def mlp(shape: Shape, classes: int, *, widths: Sequence[int] = (200,), dropout: float = 0.0) -> nn.Module:
    """Fully connected hidden layers of the given widths, each followed by ReLU and, if wanted, dropout."""
    if real("dropout", dropout, positive=False) >= 1:
        raise UsageError(f"dropout is {dropout}, but must be below 1")
    if isinstance(widths, str) or not isinstance(widths, Sequence):
        raise UsageError(f"widths is {widths!r}, but must be a list of whole numbers")
    if len(widths) > LAYERS:
        raise UsageError(f"widths has {len(widths)} entries, but mlp has at most {LAYERS} hidden layers")
    units = [math.prod(shape), *(whole("a width of mlp", width, 1) for width in widths), classes]
    _affordable("mlp", sum(before * after for before, after in itertools.pairwise(units)))
    layers: list[nn.Module] = [nn.Flatten()]
    inputs = math.prod(shape)
    for width in widths:
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        if dropout:
            layers.append(nn.Dropout(dropout))
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, classes))


def lenet(shape: Shape, classes: int) -> nn.Module:
    """Two 5x5 convolutions with pooling, then three linear layers."""
    _needs_images("lenet", shape, (28, 32))
    _affordable("lenet", 150 * shape[0] + 84 * classes)
    # 28x28 images are padded to the 32x32 of the original.
    return nn.Sequential(
        nn.Conv2d(shape[0], 6, 5, padding=(32 - shape[1]) // 2),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(6, 16, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, classes),
    )


class _Block(nn.Module):
    """The basic residual block."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = norm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = norm(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = relu(self.norm1(self.conv1(x)))
        return relu(self.norm2(self.conv2(y)) + self.shortcut(x))


def _group_norm(channels: int) -> nn.Module:
    # 32 groups as in Wu and He (2018), or the largest smaller power of two that divides the channels.
    return nn.GroupNorm(math.gcd(32, channels), channels)


_NORMS: dict[str, Callable[[int], nn.Module]] = {"batch": nn.BatchNorm2d, "group": _group_norm}


def resnet18(shape: Shape, classes: int, *, norm: str = "batch", width: int = 64) -> nn.Module:
    """ResNet-18 whose four stages have width, 2 width, 4 width and 8 width channels."""
    _needs_images("resnet18", shape, (32,))
    if norm not in _NORMS:
        raise unknown("norm", norm, _NORMS)
    width = whole("width", width, 1, 64)
    _affordable("resnet18", width * (9 * shape[0] + 8 * classes))
    layers = [nn.Conv2d(shape[0], width, 3, 1, 1, bias=False), _NORMS[norm](width), nn.ReLU()]
    inputs = width
    for stage in range(4):
        outputs = width << stage
        layers.append(_Block(inputs, outputs, 1 if stage == 0 else 2, _NORMS[norm]))
        layers.append(_Block(outputs, outputs, 1, _NORMS[norm]))
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def _affordable(name: str, parameters: int) -> None:
    """Refuse a model that is too large to train: the model, its gradient and the step need memory."""
    affordable(f"{name} of {shown(parameters)} parameters", 12 * parameters)


def _needs_images(name: str, shape: Shape, sides: tuple[int, ...]) -> None:
    if len(shape) != 3 or shape[1] != shape[2] or shape[1] not in sides:
        wanted = " or ".join(f"{side}x{side}" for side in sides)
        raise UsageError(f"{name} needs {wanted} images (channels, height, width), but a sample has shape {shape}")


MODELS: dict[str, Callable[..., nn.Module]] = {
    "logistic": logistic,
    "mlp": mlp,
    "lenet": lenet,
    "resnet18": resnet18,
}


def build_model(name: str, input_shape: Sequence[int], classes: int, *, seed: int = 0, **options: Any) -> nn.Module:
    """Build the model ``name`` for samples of ``input_shape``; the global random state is not touched.

    Options: ``widths`` and ``dropout`` of mlp; ``norm`` ("batch", "group") and ``width`` of resnet18.
    """
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    check_options(f"model {name!r}", MODELS[name], options)
    if not isinstance(input_shape, Sequence):
        raise UsageError(f"input_shape is {input_shape!r}, but must be a shape such as (64,) or (3, 32, 32)")
    shape = tuple(whole("a side of input_shape", side, 1) for side in input_shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(whole_seed(seed))
        model = MODELS[name](shape, whole("classes", classes, 1), **options)
    _ORIGINS[model] = {"name": name, "seed": seed, "shape": shape, "classes": classes} | options
    return model


_ORIGINS: WeakKeyDictionary[nn.Module, dict[str, Any]] = WeakKeyDictionary()


def model_origin(model: nn.Module) -> dict[str, Any] | None:
    """Return what `build_model` made a model from; None if it did not."""
    return _ORIGINS.get(model)


def model_options(name: str) -> dict[str, Any]:
    """Return the options of the model ``name`` with their defaults."""
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    parameters = inspect.signature(MODELS[name]).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}

import pytest
import torch
from torch import nn

from kedge.errors import UsageError
from kedge.problem import MODELS, build_model

CASES = [
    ("logistic", (64,), {}),
    ("logistic", (3, 32, 32), {}),
    ("mlp", (64,), {}),
    ("mlp", (1, 28, 28), {"widths": [32, 16], "dropout": 0.5}),
    ("mlp", (5,), {"widths": ()}),
    ("lenet", (1, 28, 28), {}),
    ("lenet", (3, 32, 32), {}),
    ("resnet18", (3, 32, 32), {"width": 4}),
    ("resnet18", (1, 32, 32), {"width": 12, "norm": "group"}),
]


def state(model: nn.Module) -> torch.Tensor:
    return torch.cat([value.flatten().double() for value in model.state_dict().values()])


@pytest.mark.parametrize(("name", "shape", "options"), CASES)
def test_a_model_gives_one_finite_score_per_class_and_learns_with_all_its_weights(name, shape, options):
    model = build_model(name, shape, 7, **options)
    scores = model(torch.randn(2, *shape, generator=torch.Generator().manual_seed(0)))
    assert scores.shape == (2, 7)
    assert scores.isfinite().all()
    scores.square().sum().backward()
    assert all(weight.grad is not None and weight.grad.any() for weight in model.parameters())


@pytest.mark.parametrize(("name", "shape", "options"), CASES)
def test_the_seed_alone_decides_the_weights_and_the_global_state_is_untouched(name, shape, options):
    before = torch.get_rng_state()
    first = state(build_model(name, shape, 3, seed=5, **options))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(123)
    assert torch.equal(state(build_model(name, shape, 3, seed=5, **options)), first)
    assert not torch.equal(state(build_model(name, shape, 3, seed=6, **options)), first)


def test_every_model_is_tested():
    assert {name for name, _, _ in CASES} == set(MODELS)


def test_models_have_the_published_number_of_parameters():
    def count(*arguments):
        return sum(weight.numel() for weight in build_model(*arguments).parameters())

    assert count("mlp", (1, 28, 28), 10) == 784 * 200 + 200 + 200 * 10 + 10
    assert count("lenet", (1, 32, 32), 10) == 61_706
    assert count("resnet18", (3, 32, 32), 10) == 11_173_962


def test_group_norm_leaves_no_running_statistics():
    assert not list(build_model("resnet18", (3, 32, 32), 10, width=8, norm="group").buffers())
    assert list(build_model("resnet18", (3, 32, 32), 10, width=8, norm="batch").buffers())


@pytest.mark.parametrize(
    ("name", "shape", "options", "message"),
    [
        ("lenet", (64,), {}, r"lenet needs 28x28 or 32x32 images .* but a sample has shape \(64,\)"),
        ("lenet", (1, 28, 32), {}, "lenet needs 28x28 or 32x32 images"),
        ("resnet18", (1, 28, 28), {}, r"resnet18 needs 32x32 images .* shape \(1, 28, 28\)"),
        ("resnet18", (3, 32, 32), {"norm": "groups"}, "norm 'groups' does not exist; did you mean 'group'"),
        ("resnet18", (3, 32, 32), {"width": 65}, "width is 65, but must be a whole number from 1 to 64"),
        ("mlp", (64,), {"widths": (0,)}, "a width of mlp is 0, but must be a whole number of at least 1"),
        ("mlp", (64,), {"widths": 200}, "widths is 200, but must be a list"),
        (
            "mlp",
            (64,),
            {"widths": [10**9, 10**9]},
            "mlp of 1000000074000000000 parameters needs over 1000 PB of memory",
        ),
        ("mlp", (64,), {"widths": [10**5000]}, "a width of mlp is a number with about 5000 digits, but must be"),
        ("mlp", (64,), {"widths": [1] * 1001}, "widths has 1001 entries, but mlp has at most 1000 hidden layers"),
        ("logistic", (10**12,), {}, "logistic of 10000000000000 parameters needs 120 TB of memory"),
        ("lenet", (10**12, 32, 32), {}, "lenet of .* parameters needs .* of memory"),
        ("resnet18", (10**12, 32, 32), {}, "resnet18 of .* parameters needs .* of memory"),
        ("mlp", (64,), {"dropout": 1.0}, "dropout is 1.0, but must be below 1"),
        ("mlp", (0,), {}, "a side of input_shape is 0"),
        ("logistic", (64,), {"widths": (3,)}, "model 'logistic' has no option 'widths'; its options are: none"),
        ("mlp", (64,), {"norm": "batch"}, "no option 'norm'; its options are: widths, dropout"),
        ("resnet", (3, 32, 32), {}, "model 'resnet' does not exist; did you mean 'resnet18'"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_with_the_rule(name, shape, options, message):
    with pytest.raises(UsageError, match=message):
        build_model(name, shape, 10, **options)


def test_classes_and_seed_must_be_whole():
    with pytest.raises(UsageError, match="classes is 0, but must be a whole number of at least 1"):
        build_model("logistic", (4,), 0)
    with pytest.raises(UsageError, match="seed is -1"):
        build_model("logistic", (4,), 2, seed=-1)

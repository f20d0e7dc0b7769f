"""What the commands of `kedge theory` and `kedge flower` take; as in `commands`, their code is imported when called."""

from pathlib import Path
from typing import Annotated

import typer

from kedge.cli import options

THEORY = "Constants"


def rates(
    clients: Annotated[int, typer.Option(help="N, all clients.", rich_help_panel=THEORY)] = 100,
    cohort: Annotated[
        int | None, typer.Option(help="S, the clients per round. Default: all.", rich_help_panel=THEORY)
    ] = None,
    local_steps: Annotated[int, typer.Option(help="K, the local steps.", rich_help_panel=THEORY)] = 16,
    smoothness: Annotated[float, typer.Option("--L", help="L, the smoothness.", rich_help_panel=THEORY)] = 1.0,
    delta: Annotated[float, typer.Option(help="Δ = f(x^0) - min f.", rich_help_panel=THEORY)] = 1.0,
    sigma: Annotated[float, typer.Option(help="σ, the noise of a minibatch.", rich_help_panel=THEORY)] = 1.0,
    zeta: Annotated[float, typer.Option(help="ζ, the heterogeneity; may be inf.", rich_help_panel=THEORY)] = 1.0,
    gradients: Annotated[
        float, typer.Option("--G", help="G, the largest client gradient; may be inf.", rich_help_panel=THEORY)
    ] = float("inf"),
    rounds: Annotated[int, typer.Option(help="Rounds at which the bounds are compared.")] = 1000,
    target: Annotated[
        float | None, typer.Option(help="Target for E|∇f|². Default: a hundredth of L Δ.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Draw the bounds against rounds to this file, as PNG and SVG.", show_default=False),
    ] = None,
) -> None:
    """Rank every row of the paper's Tables 1 and 2 for given constants.

    All numerical factors are 1: compare the rows, do not read them as predictions. A row whose assumptions do not hold
    comes last. Every row, its assumptions and the errata: docs/theory.md.
    """
    from kedge.cli.theory import rates as show
    from kedge.theory import Constants

    constants = Constants(
        L=smoothness, delta=delta, sigma=sigma, zeta=zeta, G=gradients, clients=clients, cohort=cohort,
        local_steps=local_steps,
    )  # fmt: skip
    show(constants, rounds, target, out)


def verify(
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer points, rounds and replicas: about 20 seconds.")
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this experiment; give it once per experiment.", show_default=False),
    ] = None,
    out: options.Out = None,
) -> None:
    """Try what the paper's theory says on problems whose constants are known: eight experiments, each with a figure.

    Exit 1 if an assertion fails. It reports every outcome that contradicts the paper: docs/theory.md.
    """
    from kedge.cli.theory import verify

    verify(only, out, quick=quick)


FEDERATED = ("run.rounds", "run.cohort", "run.local_steps", "run.local_epochs", "run.batch_size", "run.weight_decay",
             "run.weights", "run.seed", "run.shards", "run.eval_every")  # fmt: skip
"""The settings of a run that a federation has too."""

QUADRATICS = ("data.dim", "data.heterogeneity", "data.sigma")


def _flower() -> None:
    """Import what needs Flower, or say that it is missing."""
    import kedge.flower  # noqa: F401


@options.takes("algorithm", "data", "model", *FEDERATED, without=QUADRATICS)
def flower_new(
    given: options.Given,
    directory: Annotated[Path, typer.Argument(help="A new directory for the app.", show_default=False)],
    config: options.ConfigFile = None,
    set_: options.Set = None,
) -> None:
    """Write a Flower app that runs as it is: a model, data and an algorithm, to be replaced by your own."""
    _flower()
    from kedge.cli.flower import new

    new(directory, config, set_, given)


@options.takes("algorithm", "data", "model", *FEDERATED, without=[*QUADRATICS, "data.clients"], defaults=False)
def flower_demo(
    given: options.Given,
    config: options.ConfigFile = None,
    nodes: Annotated[int | None, typer.Option(help="SuperNodes, one per client. Default: 3.")] = None,
    set_: options.Set = None,
    out: options.Out = None,
    warm: Annotated[bool, typer.Option(help="Keep torch imported between messages (see `kedge flower node`).")] = True,
) -> None:
    """Run a real federation on this machine: a SuperLink and SuperNodes on free ports of the loopback interface.

    It needs no configuration of Flower and touches none. Everything that it starts ends with it.
    """
    _flower()
    from kedge.cli.flower import demo

    demo(config, set_, {**given, **({} if nodes is None else {"data.clients": nodes})}, out, warm=warm)


def flower_node(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- [OPTIONS OF flower-supernode]", help="As of flower-supernode.", show_default=False),
    ] = None,
) -> None:
    """Run a SuperNode that keeps torch imported and forks for every message, instead of starting Python each time.

    With a version of Flower that kedge was not tested with, this is plain flower-supernode.
    """
    _flower()
    from kedge.cli.flower import node

    node(arguments or [])

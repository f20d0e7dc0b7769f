"""`kedge partition`: how unequal the clients' data is."""

from pathlib import Path

import numpy as np
from rich.table import Table

from kedge.cli.console import output
from kedge.errors import UsageError
from kedge.problem import describe
from kedge.runs.config import Config, division, federation_of
from kedge.runs.own import entry_of, short_name


def partition(settings: Config, out: Path | None) -> None:
    """Show how the data of a configuration is divided."""
    if out is not None:
        _check_target(out)
    entry = entry_of(settings.data.dataset)
    if entry.known and entry.classes is None:
        raise UsageError(f"{settings.data.dataset} has no labels, so there is no partition to show")
    federation = federation_of(settings)
    parts = [index.numpy() for index in federation.indices]
    statistics = describe(federation.labels.numpy(), parts)
    title = f"{short_name(settings.data.dataset)}, {division(settings)}"
    output.print(f"{title}: {federation}", highlight=False, soft_wrap=True)
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_row("samples per client", f"{statistics.smallest} to {statistics.largest}, median {statistics.median:g}")
    entropy, most = statistics.mean_entropy, np.log2(statistics.label_counts.shape[1])
    table.add_row("label entropy per client", f"{entropy:.2f} bits on average, of at most {most:.2f}")
    table.add_row(
        "distance between clients", f"{statistics.mean_pairwise_distance:.2f} on average (0 equal, 1 disjoint)"
    )
    table.add_row("distance from the whole", f"{statistics.mean_global_distance:.2f} on average")
    output.print(table)
    counts = Table(title="samples by label", box=None, pad_edge=False, title_justify="left")
    for name in ("client", "samples", "entropy", *map(str, range(statistics.label_counts.shape[1]))):
        counts.add_column(name, justify="right")
    shown = 20
    for client, row in enumerate(statistics.label_counts[:shown]):
        cells = [str(count) if count else "." for count in row]
        counts.add_row(str(client), str(row.sum()), f"{statistics.entropies[client]:.2f}", *cells)
    output.print(counts)
    if len(parts) > shown:
        output.print(f"... and {len(parts) - shown} more clients")
    if out is not None:
        from kedge.report.figures import draw_partition  # matplotlib is slow to load

        written = draw_partition(statistics.label_counts, out, title)
        output.print(f"Drawn: {', '.join(str(path) for path in written)}", highlight=False, soft_wrap=True)


def _check_target(path: Path) -> None:
    if not path.name:
        raise UsageError(f"out is {path}, but must name a file")
    from kedge.report.figures import files_of  # matplotlib is slow to load

    for written in {path, *files_of(path)}:
        if written.exists():
            raise UsageError(f"out is {path}, but {written} exists; nothing was overwritten")
    if not path.parent.is_dir():
        raise UsageError(f"out is {path}, but the directory {path.parent} does not exist")

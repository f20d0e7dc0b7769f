"""Execute the notebooks and store what they print and draw.

    python -m docs.website.execute

rewrites docs/notebooks/*.ipynb, and the figure that the gallery takes from one of them.
"""

import sys
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient

from docs.website.notebooks import page_of

DOCS = Path(__file__).parents[1]
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
GALLERY = {"heterogeneity-2.png": DOCS / "images" / "heterogeneity.png"}


def executed(file: Path) -> nbformat.NotebookNode:
    """Run a notebook in an empty directory and return it with its outputs; an error in a cell is raised."""
    notebook = nbformat.read(file, as_version=4)
    with TemporaryDirectory() as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the kernel's own libraries
        NotebookClient(notebook, timeout=120, resources={"metadata": {"path": place}}).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # when it ran, which would differ every time
    return notebook


def main() -> None:
    """Execute all notebooks in place."""
    for file in NOTEBOOKS:
        notebook = executed(file)
        nbformat.write(notebook, file)
        _, images = page_of(file.stem, file.read_text(encoding="utf-8"))
        for name in images.keys() & GALLERY.keys():
            GALLERY[name].write_bytes(images[name])


if __name__ == "__main__":
    sys.exit(main())

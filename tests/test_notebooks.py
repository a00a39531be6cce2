"""Both notebooks run from top to bottom."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


@pytest.mark.parametrize("name", sorted(path.name for path in NOTEBOOKS.glob("*.ipynb")))
def test_notebook(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
    client = NotebookClient(notebook, timeout=500, resources={"metadata": {"path": str(NOTEBOOKS)}})
    client.execute()
    assert all(cell.get("outputs") is not None for cell in notebook.cells if cell.cell_type == "code")


def test_the_notebooks_are_kept_without_outputs() -> None:
    """Outputs would be of some machine and some day; `make test` makes them anew."""
    for path in NOTEBOOKS.glob("*.ipynb"):
        cells = nbformat.read(path, as_version=4).cells
        assert not any(cell.get("outputs") for cell in cells), path.name

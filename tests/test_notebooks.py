"""Both notebooks run from top to bottom."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


# of the quickstart's training, which takes long, this much will do; the slow version is as it stands
SHORTER = {
    "max_steps=20": "max_steps=2",
    "eval_steps=20": "eval_steps=2",
    '"test.jsonl")[:100]': '"test.jsonl")[:20]',
}


@pytest.mark.parametrize(
    ("name", "shorter"),
    [
        ("one_episode.ipynb", {}),
        ("quickstart.ipynb", SHORTER),
        pytest.param("quickstart.ipynb", {}, marks=pytest.mark.slow),
    ],
)
def test_notebook(name: str, shorter: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
    # beside other tests two threads crawl
    for old, new in (shorter | {"torch.set_num_threads(2)": "torch.set_num_threads(1)"}).items():
        (cell,) = (cell for cell in notebook.cells if old in cell.source)
        cell.source = cell.source.replace(old, new)
    client = NotebookClient(notebook, timeout=500, resources={"metadata": {"path": str(NOTEBOOKS)}})
    client.execute()
    assert all(cell.get("outputs") is not None for cell in notebook.cells if cell.cell_type == "code")


def test_every_notebook_is_run() -> None:
    assert {path.name for path in NOTEBOOKS.glob("*.ipynb")} == {"one_episode.ipynb", "quickstart.ipynb"}


def test_the_notebooks_are_kept_without_outputs() -> None:
    """Outputs would be of some machine and some day; `make test` makes them anew."""
    for path in NOTEBOOKS.glob("*.ipynb"):
        cells = nbformat.read(path, as_version=4).cells
        assert not any(cell.get("outputs") for cell in cells), path.name

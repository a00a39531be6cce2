"""The notebooks run from top to bottom, and are kept with what they say."""

from __future__ import annotations

from pathlib import Path

import pytest
from required import LONG

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


# of the quickstart's training, which takes long, this much will do; the long version is as it stands
SHORTER = {
    "max_steps=20": "max_steps=2",
    "eval_steps=20": "eval_steps=2",
    '"test.jsonl")[:100]': '"test.jsonl")[:20]',
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shorter"),
    [
        ("one_episode.ipynb", {}),
        ("quickstart.ipynb", SHORTER),
        pytest.param("quickstart.ipynb", {}, marks=LONG),
    ],
)
def test_notebook(name: str, shorter: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    import nbformat  # here, or each process of the tests would spend seconds on it
    from nbclient import NotebookClient

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
    threads = "torch.set_num_threads(2)"  # beside other tests two threads crawl
    for cell in notebook.cells:
        cell.source = cell.source.replace(threads, threads.replace("2", "1"))
    for old, new in shorter.items():
        (cell,) = (cell for cell in notebook.cells if old in cell.source)
        cell.source = cell.source.replace(old, new)
    client = NotebookClient(notebook, timeout=500, resources={"metadata": {"path": str(NOTEBOOKS)}})
    client.execute()
    assert all(cell.get("outputs") is not None for cell in notebook.cells if cell.cell_type == "code")


NAMES = {"one_episode.ipynb", "quickstart.ipynb"}


def test_every_notebook_is_run() -> None:
    assert {path.name for path in NOTEBOOKS.glob("*.ipynb")} == NAMES


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_notebook_is_kept_with_its_outputs(name: str) -> None:
    """As `python docs/make_notebooks.py` leaves it: nothing failed, and nothing tells of a machine."""
    import nbformat

    text = (NOTEBOOKS / name).read_text(encoding="utf-8")
    cells = [cell for cell in nbformat.reads(text, as_version=4).cells if cell.cell_type == "code"]
    outputs = [output for cell in cells for output in cell.outputs]
    assert len(outputs) >= 4, "run `python docs/make_notebooks.py`"
    assert not any(output.output_type == "error" or output.get("name") == "stderr" for output in outputs)
    assert not any(
        place in text for place in ("/tmp/", "/home/", "/root/", "site-packages", "execution_state")
    )

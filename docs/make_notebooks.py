"""Run the notebooks and save their outputs, so that they can be read without running them.

    python docs/make_notebooks.py [NAME ...]

Tables and figures are kept; the log, warnings and paths are not, since they differ from machine to machine.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
PROGRESS = "application/vnd.jupyter.widget-view+json"
FOLDERS = re.compile(re.escape(str(NOTEBOOKS.parent)) + r"|/tmp/tmp\w+")


def cleaned(output: Any) -> Any | None:
    """Return an output without paths of this machine; `None` if it is not kept."""
    if output.get("name") == "stderr" or PROGRESS in output.get("data", {}):
        return None
    if "text" in output:
        output["text"] = FOLDERS.sub("...", output["text"])
    for kind, content in output.get("data", {}).items():
        if kind.startswith("text/"):
            output["data"][kind] = FOLDERS.sub("...", content)
    return output


def main() -> None:
    names = sys.argv[1:] or sorted(path.name for path in NOTEBOOKS.glob("*.ipynb"))
    for name in names:
        notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
        place = {"metadata": {"path": str(NOTEBOOKS)}}
        NotebookClient(notebook, timeout=1200, resources=place).execute()
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)  # when it ran
            if cell.cell_type == "code":
                cell.outputs = [kept for each in cell.outputs if (kept := cleaned(each)) is not None]
        notebook.metadata.pop("widgets", None)
        nbformat.write(notebook, NOTEBOOKS / name)
        print(f"{NOTEBOOKS / name} is written.")


if __name__ == "__main__":
    main()

"""Measures of continual learning: what an agent keeps, forgets and transfers from stage to stage.

R is a matrix of accuracies, 0 to 1. Row 0 is measured before the training and row i after stage i; column j
has the held-out tasks of stage j. T is the number of stages.

- Average accuracy: the mean of the last row (ACC of Lopez-Paz and Ranzato, 2017, Gradient Episodic Memory).
- Forgetting: for each stage but the last, its best accuracy after a stage before the last one, less its last
  accuracy; the mean (Chaudhry et al., 2018, Riemannian Walk). Negative if later stages helped.
- Backward transfer: for each stage but the last, its last accuracy less the one right after it was learned;
  the mean (Lopez-Paz and Ranzato).
- Forward transfer: for each stage but the first, its accuracy right before it is learned less the one before
  the training; the mean (Lopez-Paz and Ranzato, whose baseline is a model with random weights; here it is
  the model that the training starts from).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

Matrix = Sequence[Sequence[float | None]]
"""R; a place is `None` if nothing was judged there."""


@dataclass(frozen=True)
class Continual:
    """The measures of a matrix, each 0 to 1 or a difference of such; `None` where it is not defined."""

    average_accuracy: float | None = None
    forgetting: float | None = None
    backward_transfer: float | None = None
    forward_transfer: float | None = None

    @classmethod
    def of(cls, matrix: Matrix) -> Continual:
        """Return the measures of a matrix (1 + stages learned, stages). Forgetting and backward transfer are
        of the stages before the last learned one; the average is of all."""
        last, learned = matrix[-1], len(matrix) - 1
        forgotten, backward, forward = [], [], []
        for stage in range(min(learned - 1, len(last))):
            after = [row[stage] for row in matrix[1:-1]]
            known = [value for value in after if value is not None]
            now = last[stage]
            if now is None:
                continue
            if known:
                forgotten.append(max(known) - now)
            if (then := matrix[stage + 1][stage]) is not None:
                backward.append(now - then)
        for stage in range(1, min(learned + 1, len(last))):
            before, start = matrix[stage][stage], matrix[0][stage]
            if before is not None and start is not None:
                forward.append(before - start)
        judged = [value for value in last if value is not None]
        return cls(*(mean(values) if values else None for values in (judged, forgotten, backward, forward)))

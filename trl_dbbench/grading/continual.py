"""Measures of continual learning: what an agent keeps, forgets and transfers from stage to stage.

R is a matrix of accuracies, 0 to 1. Row 0 is measured before the training and row i after stage i; column j
has the held-out tasks of stage j. T is the number of stages.

- Average accuracy: the mean of the last row (ACC of Lopez-Paz and Ranzato, 2017, Gradient Episodic Memory).
- Forgetting: the best accuracy on a stage, measured after any stage before the last one, minus the final
  accuracy on it; mean over all stages but the last (Chaudhry et al., 2018, Riemannian Walk). It is negative
  if later stages helped.
- Backward transfer: the final accuracy on a stage minus the accuracy right after it was learned; mean over
  all stages but the last (Lopez-Paz and Ranzato).
- Forward transfer: the accuracy on a stage right before it is learned minus the accuracy before the training;
  mean over all stages but the first (Lopez-Paz and Ranzato, whose baseline is a model with random weights;
  here it is the model that the training starts from).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

Matrix = Sequence[Sequence[float | None]]
"""Matrix R; an entry is `None` if nothing was judged."""


@dataclass(frozen=True)
class Continual:
    """Measures of a matrix, as accuracies (0 to 1) or differences between them; `None` if undefined."""

    average_accuracy: float | None = None
    forgetting: float | None = None
    backward_transfer: float | None = None
    forward_transfer: float | None = None

    @classmethod
    def of(cls, matrix: Matrix) -> Continual:
        """Return the measures of a matrix of shape (1 + stages learned, stages). Forgetting and backward
        transfer cover the stages before the last learned one; the average covers all."""
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

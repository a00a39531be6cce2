"""Figures of a model, and tests whether another one is better, for `trl-dbbench eval` and `compare`.

```
one model, or one model with several adapters      saved evaluations, runs
  play.py     greedy and sampled episodes, rewarded   saved.py
         \\                                          /
          arms.py         Arm: one model's episodes, task by task; estimators and tests with their sources
            figures.py    its figures: pass@k, majority@n, best-of-n, rewards, turns, ...
            comparison.py two or more arms, paired task by task, also as text
              page.py     as an HTML page
```
"""

from trl_dbbench.evaluation.compare.arms import Arm, best_of, majority, mcnemar, paired_interval, pass_at_k
from trl_dbbench.evaluation.compare.comparison import Comparison, compare_arms
from trl_dbbench.evaluation.compare.figures import Figures, figures_of

__all__ = [
    "Arm",
    "Comparison",
    "Figures",
    "best_of",
    "compare_arms",
    "figures_of",
    "majority",
    "mcnemar",
    "paired_interval",
    "pass_at_k",
]

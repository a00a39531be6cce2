"""Statistics of one model and tests of whether another is better, for `trl-dbbench eval` and `compare`.

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

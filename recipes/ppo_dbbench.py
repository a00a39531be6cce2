"""Train an agent by PPO on a database: grpo_dbbench.py, in this folder, with a critic.

    accelerate launch recipes/ppo_dbbench.py --config recipes/ppo_quickstart.yaml

Every key of the YAML is also an option of the command line, which wins. `--help` lists them.
"""

from __future__ import annotations

from functools import partial

import grpo_dbbench

from trl_dbbench import DBBenchGRPOConfig, DBBenchPPOConfig, DBBenchPPOTrainer
from trl_dbbench.cli.start import start

ARGUMENTS = tuple(DBBenchPPOConfig if each is DBBenchGRPOConfig else each for each in grpo_dbbench.ARGUMENTS)

if __name__ == "__main__":
    start(ARGUMENTS, partial(grpo_dbbench.main, trainer_class=DBBenchPPOTrainer))

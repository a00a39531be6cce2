"""The GRPO trainer and its parts.

`trainer` is TRL's `GRPOTrainer` with rollouts on a database; its docstring outlines one step, whose parts are
the other files. `ppo` adds a critic, `resume` makes a killed run resume exactly where it stopped.
In: a model, rewards, tasks, a database and a `DBBenchGRPOConfig`. Out: a run's folder.
"""

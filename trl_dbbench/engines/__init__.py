"""Engines that sample a rollout's tokens, with transformers or vLLM.

`policy` describes the weights, and `base` the backends that bring them to an engine. `shared_prompts` and
`token_trees` are training forward passes that share work between rows.
In: a policy and requests for turns. Out: completions with token ids and log-probabilities.
"""

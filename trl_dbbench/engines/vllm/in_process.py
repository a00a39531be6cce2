"""Generation of turns with a vLLM engine in this process, beside the trained model (`vllm_mode: colocate`).

`serve` runs the engine's step loop. An episode's next turn joins the running batch as soon as its SQL result
is back, and vLLM's prefix cache holds its earlier turns, so no turn waits for another. Each turn has its own
seed and temperature, and the log-probabilities are the policy's.

Which batch a token is computed in depends on how long the SQL statements took, and sums are rounded
differently in different batches. So two runs with the same seed can differ in the last bits of a logit, and
then in a token.

Each rank has its own engine for its own episodes. With `vllm_tensor_parallel_size` above 1, a group of ranks
shares one: they exchange their requests and step together.
"""

from __future__ import annotations

import logging
import math
import os
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from trl_dbbench.engines.asked import Asked, AskedEngine, bug_in
from trl_dbbench.engines.policy import Policy, ServedPolicy
from trl_dbbench.engines.vllm.loaded import AdapterWeights, FullWeights, WeightsOfDisk
from trl_dbbench.engines.vllm.servers import policys_logprobs, settings_of
from trl_dbbench.engines.vllm.weights import way_of
from trl_dbbench.episode.types import Completion, Request
from trl_dbbench.errors import ConfigError, DBBenchError, EngineError, RankError, one_line
from trl_dbbench.utils.ranks import Ranks, together

logger = logging.getLogger(__name__)

MAX_NUM_BATCHED_TOKENS = 4_096
"""Most tokens of an engine step. vLLM reserves memory for the intermediate results of that many."""

CPU_BLOCK_TOKENS = 32
"""Block size of the prefix cache on a CPU, in tokens. The block in which a turn ends is computed again in the
next turn: 64 tokens on average with vLLM's default of 128."""

IDLE_SECONDS = 0.005
"""Seconds between exchanges of requests in a tensor parallel group while nothing is generated."""


class InProcessEngine(AskedEngine):
    """Engine of one rollout. See `episode.types.Engine`.

    Args:
        llm, adapter: vLLM's `LLM`, and its `LoRARequest` for the adapter to generate with.
        processed: whether vLLM computes log-probabilities after it applies the temperature.
        group: the ranks that share the engine, if several do.
    """

    def __init__(
        self,
        llm: Any,
        eos_token_ids: Sequence[int],
        adapter: Any = None,
        *,
        processed: bool = False,
        group: torch.distributed.ProcessGroup | None = None,
    ):
        super().__init__()
        self.prompt_tokens = 0
        """Tokens before the turns, added up over all turns."""
        self.cached_tokens = 0
        """Number of `prompt_tokens` found in the prefix cache."""
        self._engine = llm.llm_engine
        self._eos_token_ids = list(eos_token_ids)
        self._adapter = adapter
        self._processed = processed
        self._group = group
        self._rank = 0 if group is None else torch.distributed.get_rank(group)
        self._asked: dict[str, Asked] = {}  # by vLLM's request id

    def serve(self, episodes: Sequence[Future]) -> None:
        """Step the engine until all episodes are done. Raise EngineError if vLLM fails."""
        self._watch(episodes)
        try:
            while self._take(episodes):
                if self._engine.has_unfinished_requests():
                    with _reporting("in the rollout"):
                        outputs = self._engine.step()
                    for output in outputs:
                        self._answer(output)
        except BaseException:
            with suppress(Exception):  # an engine that has failed may refuse
                self._engine.abort_request(list(self._asked))
            raise
        finally:
            self._waiting, self._asked = [], {}

    def _take(self, episodes: Sequence[Future]) -> bool:
        """Pass the episodes' requests to vLLM; return whether a rank of the group still plays an episode.

        Waits for a request if there is nothing to generate.
        """
        with self._changed:
            idle = not self._engine.has_unfinished_requests()
            if idle and not self._waiting and not all(episode.done() for episode in episodes):
                self._changed.wait(None if self._group is None else IDLE_SECONDS)
            waiting, self._waiting = self._waiting, []
        bug = bug_in(episodes)
        playing = not all(episode.done() for episode in episodes)
        asked = [(self._rank, place, each.request) for place, each in enumerate(waiting)]
        if self._group is not None:
            of_ranks: list[Any] = [None] * self._group.size()
            told = None if bug is None else f"{type(bug).__name__}: {bug}"
            torch.distributed.all_gather_object(of_ranks, (asked, playing, told), group=self._group)
            asked = [each for rank, _, _ in of_ranks for each in rank]
            playing = any(still for _, still, _ in of_ranks)
            if bug is None and (theirs := [text for _, _, text in of_ranks if text]):
                raise RankError(f"a rank that shares this vLLM failed, and all end with it: {theirs[0]}")
        if bug is not None:
            raise bug
        for rank, place, request in asked:
            id = self._add(rank, request)
            if rank == self._rank:
                self._asked[id] = waiting[place]
        return playing

    def _add(self, rank: int, request: Request) -> str:
        from vllm import SamplingParams
        from vllm.inputs import tokens_input
        from vllm.sampling_params import RequestOutputKind

        settings = settings_of(request, self._eos_token_ids)
        params = SamplingParams(**settings, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY)
        id = f"{rank}-{request.row}-{request.turn}"
        try:
            self._engine.add_request(id, tokens_input(list(request.ids)), params, lora_request=self._adapter)
        except ValueError as error:
            raise ConfigError(
                f"vLLM refuses a turn of {len(request.ids)} tokens: {one_line(error)}"
            ) from error
        return id

    def _answer(self, output: Any) -> None:
        asked = self._asked.pop(output.request_id, None)
        if asked is None:  # another rank's
            return
        request, written = asked.request, output.outputs[0]
        ids = list(written.token_ids)
        logprobs = [known[id].logprob for known, id in zip(written.logprobs, ids, strict=True)]
        if not policys_logprobs(request.sampling, self._processed):
            logprobs = [math.nan] * len(ids)
        self.prompt_tokens += len(request.ids)
        self.cached_tokens += output.num_cached_tokens or 0
        asked.answer(Completion(ids, logprobs))


@contextmanager
def _reporting(when: str) -> Iterator[None]:
    """Raise errors of vLLM, PyTorch or CUDA as EngineError."""
    try:
        yield
    except DBBenchError:
        raise
    except Exception as error:
        raise EngineError(
            f"vLLM failed {when}: {type(error).__name__}: {one_line(error)} Continue the training with "
            "resume_from_checkpoint; if memory was short, with a smaller vllm_gpu_memory_utilization or "
            "per_device_train_batch_size."
        ) from error


class InProcessBackend:
    """Backend that uses a vLLM engine in this process. See `engines.base.Backend` and `EngineSettings`."""

    collective = False  # the ranks' own models do not generate
    detached = False  # a rollout has this process to itself

    def __init__(self, args: Any, policy: Policy | ServedPolicy):
        if find_spec("vllm") is None:
            raise ConfigError(
                "vLLM is not installed here: pip install 'trl-dbbench[vllm]'. Or name running servers in "
                "vllm_server_urls, or generate with transformers (use_vllm: false)."
            )
        self._policy = policy
        self._weights = way_of(policy, "use_vllm", WeightsOfDisk, FullWeights, AdapterWeights)(policy, args)
        self._processed = self._weights.temperature != 1
        trained_on = self._weights.logprobs_of
        if trained_on and not policys_logprobs(trained_on, self._processed):
            raise ConfigError(
                "vLLM does not give the policy's log-probabilities where top_p or top_k restrict the draw "
                f"at a temperature of {trained_on.temperature:g}, and these settings train on them "
                "(use_rollout_logprobs, rollout_correction, off_policy_mask_threshold, kl_reference: rollout "
                "or kl_in_reward). Set temperature: 1, or leave top_p and top_k out."
            )
        self._sleeps = bool(args.vllm_enable_sleep_mode)
        self._group = _tensor_parallel_group(args.vllm_tensor_parallel_size)
        with together(), _random_state_kept():
            self._llm: Any = self._load(args)
        self._weights.open(self._llm)
        self._sleep()

    def _load(self, args: Any) -> Any:
        # in this process, and without binding threads to cores, which would last into training
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        ranks = Ranks()
        # with a longer context, vLLM uses longrope's long factors for every token
        lengths = filter(None, (args.vllm_max_model_length, self._policy.longrope_context))
        options: dict[str, Any] = {
            "model": self._policy.name_or_path,
            "gpu_memory_utilization": args.vllm_gpu_memory_utilization,
            "max_model_len": min(lengths, default=-1),  # -1: as long as memory allows
            "tensor_parallel_size": args.vllm_tensor_parallel_size,
            "enable_sleep_mode": self._sleeps,
            "model_impl": args.vllm_model_impl,
            "trust_remote_code": args.trust_remote_code,
            "enable_prefix_caching": True,
            "logprobs_mode": "processed_logprobs" if self._processed else "raw_logprobs",
            "generation_config": "vllm",  # not the sampling settings that the model's own recommends
            "seed": ranks.number // args.vllm_tensor_parallel_size,
            **({"distributed_executor_backend": "external_launcher"} if ranks.count > 1 else {}),
            **self._weights.options,
        }
        try:
            from vllm import LLM
            from vllm.platforms import current_platform

            if current_platform.is_cpu():
                from trl_dbbench.engines.vllm.cpu import use_one_adapter

                use_one_adapter()
                # vLLM cannot rewind a CPU's random generator after part of a prompt
                options["enable_chunked_prefill"] = False
                options["block_size"] = CPU_BLOCK_TOKENS
            else:
                options["max_num_batched_tokens"] = MAX_NUM_BATCHED_TOKENS
            return LLM(**options)
        except Exception as error:  # from pydantic, PyTorch or vLLM, which raises many kinds
            raise ConfigError(
                f"vLLM cannot load '{self._policy.name_or_path}': {one_line(error)} Its settings are the "
                "keys that begin with vllm_; or leave use_vllm out."
            ) from error

    @property
    def contexts(self) -> Sequence[int]:
        lengths = [self._policy.context, self._llm.llm_engine.model_config.max_model_len]
        return [length for length in lengths if length]

    @contextmanager
    def engine(self) -> Iterator[InProcessEngine]:
        """Wake vLLM and yield an engine with the current weights. Raise EngineError if memory is short."""
        with _reporting("before the rollout"):
            adapter = self._wake()
        try:
            yield InProcessEngine(
                self._llm,
                self._policy.eos_token_ids,
                adapter,
                processed=self._processed,
                group=self._group,
            )
        except BaseException:
            with suppress(Exception):  # after a failure of vLLM's, sleep may fail too
                self._sleep()
            raise
        self._sleep()

    def _wake(self) -> Any:
        """Give vLLM its memory and the current weights; return its `LoRARequest` for the adapter, if any."""
        if self._sleeps:
            torch.cuda.empty_cache()  # what the update has freed
            self._llm.wake_up(tags=["weights"])
        adapter = self._weights.bring(self._llm)
        if self._sleeps:
            self._llm.wake_up(tags=["kv_cache"])
        return adapter

    def _sleep(self) -> None:
        if self._sleeps:
            self._llm.sleep(level=self._weights.sleep_level)

    def close(self) -> None:
        """End the engine and free its memory."""
        if self._llm is not None:
            self._llm.llm_engine.engine_core.shutdown()
        self._llm = None


def _tensor_parallel_group(size: int) -> torch.distributed.ProcessGroup | None:
    """Return the ranks that share an engine with this one; `None` if none do."""
    ranks = Ranks()
    if ranks.count % size:
        raise ConfigError(
            f"vllm_tensor_parallel_size must divide the number of processes, {ranks.count}; it is {size}."
        )
    if size == 1:
        return None
    group, _ = torch.distributed.new_subgroups(size, backend="gloo")
    return group


@contextmanager
def _random_state_kept() -> Iterator[None]:
    """Restore the global random generators after the block: vLLM seeds them, and training draws from them."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        yield
    random.setstate(python)
    np.random.set_state(numpy)

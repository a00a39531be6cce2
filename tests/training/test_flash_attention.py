"""`attn_implementation: flash_attention_2`: the same episodes and losses, but each sample computes its prompt.

The kernels need a GPU; here functions with their signatures and meaning take their place.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
import transformers.modeling_flash_attention_utils as flash
from training import episodes_in, quickstart_trainer

FLASH = "flash_attention_2"


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool) -> torch.Tensor:
    """(Q, H, D) to (K, G, D); the last query sees the last key."""
    k, v = (each.repeat_interleave(q.shape[1] // each.shape[1], dim=1) for each in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    if causal:
        hidden = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1 + len(k) - len(q))
        scores = scores.masked_fill(hidden, -torch.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(dim=-1), v)


def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, deterministic=False):
    return torch.stack([attention(*row, softmax_scale, causal) for row in zip(q, k, v, strict=True)])


def flash_attn_varlen_func(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    deterministic=False,
):
    of_q, of_k = (pairwise(each.tolist()) for each in (cu_seqlens_q, cu_seqlens_k))
    rows = [(q[a:b], k[c:d], v[c:d]) for (a, b), (c, d) in zip(of_q, of_k, strict=True)]
    return torch.cat([attention(*row, softmax_scale, causal) for row in rows])


@pytest.mark.slow
def test_it_plays_and_trains_as_sdpa_does_and_says_what_it_gives_up(
    monkeypatch, sqlite_database, tmp_path, caplog
):
    loaded = {"_flash_fn": flash_attn_func, "_flash_varlen_fn": flash_attn_varlen_func}
    loaded |= {"_pad_fn": flash._pad_input, "_unpad_fn": flash._unpad_input}
    loaded |= {"_process_flash_kwargs_fn": flash._lazy_define_process_function(flash_attn_varlen_func)}
    loaded |= {"_flash_with_kvcache_fn": None, "_process_with_kvcache_kwargs_fn": dict}
    for name, value in {"_loaded_implementation": FLASH, **loaded}.items():
        monkeypatch.setattr(flash, name, value, raising=False)

    def train(attention: str) -> tuple[list[list[str]], list[float]]:
        folder = tmp_path / attention
        trainer = quickstart_trainer(
            sqlite_database, folder, max_steps=2, beta=0.02, learning_rate=1e-3, greedy_eval="batch"
        )
        trainer.model.config._attn_implementation = attention
        trainer.train()
        steps = [line for line in trainer.state.log_history if "loss" in line]
        episodes = [[turn["text"] for turn in episode["turns"]] for episode in episodes_in(folder)]
        return episodes, [line[name] for line in steps for name in ("loss", "kl", "grad_norm")]

    episodes, figures = train("sdpa")
    assert "anew" not in caplog.text
    by_flash = train(FLASH)
    assert by_flash[0] == episodes
    torch.testing.assert_close(by_flash[1], figures, rtol=1e-5, atol=1e-7)
    warned = [record for record in caplog.records if "anew" in record.getMessage()]
    assert [record.levelname for record in warned] == ["WARNING"]
    assert "it needs attn_implementation 'sdpa', not 'flash_attention_2'" in warned[0].getMessage()

"""The `sdpa` path: PyTorch's fused kernel, with nothing of size Q x K when there is no bias.

For: full heads and pre-softmax masks. Padding alone becomes a mask of the keys; several documents
in a row become columns of q and k (`features`), in float32 on a CPU. Documents in half precision
and, on other devices, all of it become a map of bools.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ala_encoder.kernels.features import cut, tiled, widen
from ala_encoder.kernels.visibility import Visibility, combine


def sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    bias: Tensor | None = None,
    visibility: Visibility | None = None,
    groups: Sequence[int] | None = None,
) -> Tensor:
    """Compute softmax(q k^T / sqrt(d) + bias) v; shapes as `dense`, returns [B, H, Q, d].

    A row with nothing to see is 0. The kernel wants a bias in the dtype of q, and bf16 cannot tell
    distances apart (it keeps 513 of 1,024), so in half precision a bias takes all to float32.
    """
    visibility = visibility or Visibility()
    if groups is not None:
        q, k = q[:, list(groups)], k[:, list(groups)]
    if bias is None and visibility.segments is not None and _takes_no_map(q, visibility):
        return _padded(q, k, v, visibility)
    if bias is None and visibility.segments is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=visibility.causal)
    mask, empty = combine(bias, visibility.pairs(q.shape[2], k.shape[2], q.device))
    given = q.dtype
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.to(torch.promote_types(given, torch.float32))
        q, k, v = (t.to(mask.dtype) for t in (q, k, v))
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).to(given)
    return mixed if empty is None else mixed.masked_fill(empty, 0.0)


def _takes_no_map(q: Tensor, visibility: Visibility) -> bool:
    """Tell whether padding or documents can be told without a map.

    Documents take columns, which half precision cannot hold; only the CPU's kernel takes a mask of
    keys beside causality, and elsewhere nobody waits to learn whether there are documents.
    """
    if q.device.type != "cpu":
        return False
    return q.dtype in (torch.float32, torch.float64) or not visibility.has_documents


def _padded(q: Tensor, k: Tensor, v: Tensor, visibility: Visibility) -> Tensor:
    """Attend with padding or documents and no bias, without a mask of size Q x K."""
    given: dict[str, Any] = {"is_causal": visibility.causal, "scale": q.shape[-1] ** -0.5}
    length, width = q.shape[2], v.shape[-1]
    if visibility.has_documents:
        q_columns, k_columns = visibility.columns
        q, k = widen(tiled(q), [q_columns]), widen(tiled(k), [k_columns])
        # Unequal widths of K and V would take the CPU to its slow kernel.
        v = F.pad(tiled(v), (0, q.shape[-1] - width))
    else:
        assert visibility.real_keys is not None
        keys, _ = combine(None, visibility.real_keys[:, None, None])
        given["attn_mask"] = keys
    mixed = F.scaled_dot_product_attention(q, k, v, **given)
    mixed = cut(mixed, length, width)
    assert visibility.blind is not None
    return mixed.masked_fill(visibility.blind[:, None, :, None], 0.0)

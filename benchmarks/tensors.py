"""The bytes of tensors that a piece of work makes, whatever the device has.

For: memory at sizes that this machine does not hold, on torch's device `meta`, which computes
nothing. Not for: what a library takes and gives back within one operation; that is not seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Tensors(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of the tensors that are made inside the block."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = self.largest = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = {id(t.untyped_storage()) for t in tree_leaves(args) if isinstance(t, torch.Tensor)}
        made = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                self._count(tensor.untyped_storage(), given)
        return made

    def _count(self, storage: torch.UntypedStorage, given: set[int]) -> None:
        key, size = id(storage), storage.nbytes()
        if key in given or key in self._seen:
            return
        self._seen.add(key)
        self.now += size
        self.peak, self.largest = max(self.peak, self.now), max(self.largest, size)
        weakref.finalize(storage, self._free, key, size)

    def _free(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.now -= size

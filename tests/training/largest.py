"""The largest tensor that is made meanwhile: on a device that memory is needed beside the model."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Largest(TorchDispatchMode):
    """Records the elements of the largest new tensor."""

    made = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and not func.is_view:
            given = {each.untyped_storage().data_ptr() for each in args if isinstance(each, torch.Tensor)}
            if result.untyped_storage().data_ptr() not in given:
                self.made = max(self.made, result.numel())
        return result

"""The `sp::` operators, as handles for rewritten graphs.  Importing this module registers them."""

import torch

from sp.runtime.ops import attention as _attention
from sp.runtime.ops import placement as _placement
from sp.runtime.ops import reduction as _reduction

del _attention, _placement, _reduction

attention = torch.ops.sp.attention.default
shard = torch.ops.sp.shard.default
unshard = torch.ops.sp.unshard.default
narrow = torch.ops.sp.narrow.default
replicate = torch.ops.sp.replicate.default
reduce = torch.ops.sp.reduce.default

__all__ = ["attention", "narrow", "reduce", "replicate", "shard", "unshard"]

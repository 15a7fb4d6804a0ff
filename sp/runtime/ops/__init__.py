"""The `sp::` operators, as handles for rewritten graphs.  Importing this module registers them."""

import torch

from sp.runtime.ops import attention as _attention
from sp.runtime.ops import move as _move
from sp.runtime.ops import noise as _noise
from sp.runtime.ops import placement as _placement
from sp.runtime.ops import redistribute as _redistribute
from sp.runtime.ops import reduction as _reduction
from sp.runtime.ops import share as _share
from sp.runtime.ops import sums as _sums

del _attention, _move, _noise, _placement, _redistribute, _reduction, _share, _sums

attention = torch.ops.sp.attention.default
shard = torch.ops.sp.shard.default
unshard = torch.ops.sp.unshard.default
widen = torch.ops.sp.widen.default
move = torch.ops.sp.move.default
narrow = torch.ops.sp.narrow.default
noise = torch.ops.sp.noise.default
peak = torch.ops.sp.peak.default
redistribute = torch.ops.sp.redistribute.default
replicate = torch.ops.sp.replicate.default
reduce = torch.ops.sp.reduce.default
share = torch.ops.sp.share.default
weigh = torch.ops.sp.weigh.default
promise = torch.ops.sp.promise.default
replicate_all = torch.ops.sp.replicate_all.default

__all__ = [
    "attention",
    "move",
    "narrow",
    "noise",
    "peak",
    "promise",
    "redistribute",
    "reduce",
    "replicate",
    "replicate_all",
    "shard",
    "share",
    "unshard",
    "weigh",
    "widen",
]

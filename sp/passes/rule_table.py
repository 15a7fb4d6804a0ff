"""Which rule speaks for which op.  A line of data per op; pointwise ops are known by torch's own tag.

Names are those of torch.ops.aten, without overload.  `normalize` has written synonyms as one op before they come here.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping

import torch
from torch import fx

from sp.passes import contraction_rules as contractions
from sp.passes import dim_rules as dims
from sp.passes import lookup_rules as lookups
from sp.passes import loss_rules as losses
from sp.passes import norm_rules as norms
from sp.passes import sequence_rules as sequences
from sp.passes import shape_rules as shapes
from sp.passes.contraction_rules import biased
from sp.passes.dim_rules import along, reading, reducing, summing
from sp.passes.fxtools import op_name
from sp.passes.refused_ops import REFUSED
from sp.passes.rule_book import BOOK
from sp.passes.rules import Refused, Rule, by_pattern, pointwise


def _each(names: str, rule: Rule) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), rule)


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


PATTERNS: Mapping[str, str] = {
    "mm": "m k, k n -> m n",
    "bmm": "b m k, b k n -> b m n",
    "mv": "m k, k -> m",
    "dot": "k, k ->",
    "vdot": "k, k ->",
    "outer": "m, n -> m n",
    "ger": "m, n -> m n",
    "bilinear": "... i!, ... j!, n i! j!, n -> ... n",
    "cdist": "... m k!, ... n k! -> ... m n",
    # Along the sequence a convolution is taken apart by `decompose`; of tokens each as a small image it is local.
    "conv1d": "b c! l!, o! i! k!, o! -> b o l",
    "conv2d": "b c! h! w!, o! i! k! m!, o! -> b o h w",
    "view_as_complex": "... t! -> ...",
    "view_as_real": "... -> ... t",
}

CONTRACTIONS: Mapping[str, Rule] = {
    "linear": contractions.linear,
    "matmul": contractions.matmul,
    "addmm": biased("m k!, k! n -> m n"),
    "baddbmm": biased("b m k!, b k! n -> b m n"),
    "addbmm": biased("b! m k!, b! k! n -> m n"),
    "addmv": biased("m k!, k! -> m"),
    "addr": biased("m, n -> m n"),
    "einsum": contractions.einsum,
    "inner": contractions.inner,
    "tensordot": contractions.tensordot,
    **_each("chain_matmul linalg_multi_dot", contractions.chain),
    "scaled_dot_product_attention": contractions.cross_attention,
}

SHAPES: Mapping[str, Rule] = {
    **_each("view reshape _unsafe_view", shapes.reshape),
    "flatten": shapes.merging,
    **_each("transpose swapaxes swapdims t mT mH matrix_H adjoint", shapes.transpose),
    "permute": shapes.permute,
    "unsqueeze": shapes.unsqueeze,
    "squeeze": shapes.squeeze,
    "expand": shapes.expand,
    **_each("repeat tile", shapes.repeat),
    "repeat_interleave": shapes.repeat_interleave,
    "slice": sequences.cut,
    **_each("split split_with_sizes chunk unbind tensor_split", shapes.split),
    **_each("unsafe_split unsafe_split_with_sizes unsafe_chunk", shapes.split),
    "select": shapes.select,
    "cat": sequences.join,
    "stack": shapes.stack,
    **_each("pad constant_pad_nd", sequences.pad),
    "diagonal": dims.diagonal,
    "unfold": dims.unfold,
    **_each("triu tril", along(-2, -1)),
}

_COUNT = "count instead, which ranks can do: (x != 0).sum(dim) > 0 for any, (x == 0).sum(dim) == 0 for all"
_NORM = "write sums, which ranks can do: x.square().sum(dim).sqrt()"
_SPREAD = "write sums, which ranks can do: (x - x.mean(dim, keepdim=True)).square().sum(dim) / (length - 1)"

ALONG_DIMS: Mapping[str, Rule] = {
    **_each("softmax log_softmax _softmax _log_softmax", along("dim")),
    **_each("cumsum cumprod cummax cummin logcumsumexp diff", along("dim")),
    **_each("sort argsort topk", along("dim")),
    "msort": along(0),
    "flip": along("dims"),
    "roll": along("dims"),
    "glu": along("dim"),
    **_each("cross linalg_cross", along("dim")),
    **_each("fft_fft fft_ifft fft_rfft fft_irfft fft_hfft fft_ihfft", along("dim")),
    **_each("fft_fft2 fft_ifft2 fft_rfft2 fft_irfft2 fft_fftn fft_ifftn fft_rfftn fft_irfftn", along("dim")),
    **_each("avg_pool1d max_pool1d adaptive_avg_pool1d adaptive_max_pool1d max_pool1d_with_indices", along(-1)),
    **_each("avg_pool2d max_pool2d adaptive_avg_pool2d adaptive_max_pool2d max_pool2d_with_indices", along(-2, -1)),
    **_each("avg_pool3d max_pool3d adaptive_avg_pool3d max_pool3d_with_indices", along(-3, -2, -1)),
    **_each("upsample_nearest1d upsample_linear1d", along(-1)),
    **_each("upsample_nearest2d upsample_bilinear2d upsample_bicubic2d", along(-2, -1)),
}

REDUCTIONS: Mapping[str, Rule] = {
    **_each("sum nansum count_nonzero linalg_vecdot", summing("dim")),
    "mean": dims.mean,
    "nanmean": reducing("dim"),
    **_each("max min", dims.extreme),
    **_each("amax amin aminmax argmax argmin prod logsumexp", reducing("dim")),
    **_each("median nanmedian mode kthvalue quantile nanquantile", reducing("dim")),
    **_each("any all", reducing("dim", remedy=_COUNT)),
    **_each("norm linalg_vector_norm linalg_norm linalg_matrix_norm", reducing("dim", remedy=_NORM)),
    **_each("var std var_mean std_mean", reducing("dim", remedy=_SPREAD)),
    "cosine_similarity": reducing("dim"),
    "pairwise_distance": reducing(-1),
    "histc": dims.histogram,
}

NORMS: Mapping[str, Rule] = {
    **_each("layer_norm rms_norm native_layer_norm", norms.normalized),
    "group_norm": norms.grouped,
    "instance_norm": norms.instance,
    "batch_norm": norms.batch,
    "prelu": norms.prelu,
}

LOOKUPS: Mapping[str, Rule] = {
    "embedding": lookups.embedding,
    "one_hot": lookups.one_hot,
    "where": lookups.where,
    **_each("gather scatter scatter_add scatter_reduce", lookups.lined_up),
    "index_select": lookups.index_select,
    **_each("index_add index_copy index_fill", lookups.index_add),
    "select_scatter": lookups.select_scatter,
    "slice_scatter": along("dim"),
    "index": lookups.index,
    "index_put": lookups.index_put,
    "searchsorted": lookups.searchsorted,
    **_each("bucketize isin", reading()),
}

LOSSES: Mapping[str, Rule] = {
    **_each("mse_loss l1_loss smooth_l1_loss huber_loss kl_div soft_margin_loss", losses.per_element),
    **_each("binary_cross_entropy binary_cross_entropy_with_logits", losses.per_element),
    **_each("poisson_nll_loss margin_ranking_loss hinge_embedding_loss", losses.per_element),
    **_each("triplet_margin_loss cosine_embedding_loss", losses.per_vector),
    **_each("cross_entropy_loss nll_loss nll_loss_nd", losses.per_class),
}

# Pointwise ops that torch does not tag: copies, casts, complex numbers, …
UNTAGGED = _names(
    "to _to_copy clone contiguous detach alias copy fill lift_fresh_copy broadcast_tensors "
    "zeros_like ones_like full_like empty_like hardswish log_sigmoid isclose isreal "
    "polar complex real imag conj _conj resolve_conj resolve_neg"
)
# … and second names of tagged ones.
ALIASES = _names(
    "absolute negative multiply divide true_divide subtract floor_divide rsub fix __and__ __or__ __xor__ "
    "greater greater_equal less less_equal not_equal arccos arccosh arcsin arcsinh arctan arctan2 arctanh "
    "special_digamma special_erf special_erfc special_erfinv special_exp2 special_expit special_expm1 "
    "special_gammainc special_gammaincc special_gammaln special_i0 special_log1p special_logit "
    "special_multigammaln special_ndtr special_polygamma special_psi special_round special_sinc special_xlogy"
)

# Ops that read no more of their operand than dtype and device: the result is whole whatever that is.
CREATIONS = frozenset({"aten.new_ones", "aten.new_zeros", "aten.new_full", "aten.new_empty"})

TABLE: Mapping[str, Rule] = {
    **{f"aten.{name}": by_pattern(text) for name, text in PATTERNS.items()},
    **{
        f"aten.{name}": rule
        for group in (CONTRACTIONS, SHAPES, ALONG_DIMS, REDUCTIONS, NORMS, LOOKUPS, LOSSES)
        for name, rule in group.items()
    },
    **{f"aten.{name}": pointwise for name in UNTAGGED | ALIASES},
    "sp.attention": sequences.attention,
    "sp.peak": sequences.peak,
    "sp.noise": sequences.noise,
}


def find_rule(node: fx.Node) -> Rule:
    """The rule for this node's op; Refused when there is none."""
    name = op_name(node)
    if isinstance(node.target, torch._ops.OpOverload):
        assert not node.target._schema.is_mutable, f"normalize has refused {name}"
        if registered := BOOK.find(name):
            return registered
        if name in TABLE:
            return TABLE[name]
        if torch.Tag.pointwise in node.target.tags:
            return pointwise
    if name in REFUSED:
        raise Refused(*REFUSED[name])
    raise Refused(
        f"sp has no placement rule for {name}",
        f'keep it off the sequence, or say how it meets each dim: sp.register_rule("{name.replace(".", "::")}", '
        '"... d!, d -> ... d")',
    )


def passes_through(node: fx.Node) -> bool:
    """`getitem` hands on one of several results, all placed alike."""
    return node.target is operator.getitem

"""Ops that no placement rule can make exact, or that have none on purpose: why, and what to write instead.

An op that stands neither here nor in the table of rules is refused all the same, by its name.
"""

from __future__ import annotations

from collections.abc import Mapping

Reason = tuple[str, str]


def _each(names: str, reason: Reason) -> dict[str, Reason]:
    return dict.fromkeys(names.split(), reason)


_DATA: Reason = (
    "the size of its result depends on the data, which differ between ranks",
    "use torch.where or masked_fill, which keep every element",
)
_ORDER: Reason = (
    "it takes elements in row-major order of the whole tensor",
    "use gather or torch.where, which stay within a position",
)
_COUNT: Reason = (
    "the length of its result depends on the data, which differ between ranks",
    "use one_hot(x, number).sum(dim), which sums over ranks",
)
_LOWERED: Reason = (
    "it is a lowered form that torch.export of a model does not make",
    "capture the model itself, before its ops are decomposed",
)
_GRADIENT: Reason = ("it computes a gradient", "capture the forward; sp differentiates what it makes of it")
_STORAGE: Reason = ("it reads memory by stride, past every dim", "use view, slice, unfold or diagonal")
_WINDOW: Reason = (
    "its windows may reach over to tokens of other ranks",
    "keep it off the sequence: run it before the inputs are cut",
)
_BAGS: Reason = ("its bags are spans of the flattened ids", "use embedding and a sum over a dim")
_MIXED: Reason = ("it mixes channels with positions", "use view and permute")
_RECURRENT: Reason = (
    "it goes through the sequence step by step, which ranks cannot do side by side",
    "keep recurrent layers off the sequence",
)
_PAIRS: Reason = ("it relates every pair of rows of one tensor", "use cdist with the second operand whole")
_PRODUCT: Reason = ("its results have the sequence in different dims", "use unsqueeze, which broadcasts")
_LABELS: Reason = (
    "it compares class scores with sets of labels and averages them",
    "use binary_cross_entropy_with_logits",
)
_ALIGNMENT: Reason = ("it aligns the whole sequence with its labels", "compute it outside, on gathered scores")

_FIXED: Reason = (
    "torch.export fixes the sizes of whatever meets it",
    "use gather, with an index of its result's shape",
)

_REFUSED: Mapping[str, Reason] = {
    **_each("nonzero argwhere masked_select _unique2 unique_consecutive unique_dim", _DATA),
    **_each("take put masked_scatter", _ORDER),
    "bincount": _COUNT,
    "take_along_dim": _FIXED,
    **_each("as_strided empty_strided", _STORAGE),
    **_each("embedding_bag _embedding_bag", _BAGS),
    **_each("pixel_shuffle pixel_unshuffle channel_shuffle", _MIXED),
    **_each("lstm gru rnn_tanh rnn_relu", _RECURRENT),
    **_each("pdist _pdist_forward", _PAIRS),
    **_each("meshgrid cartesian_prod combinations", _PRODUCT),
    **_each("multi_margin_loss multilabel_margin_loss", _LABELS),
    "ctc_loss": _ALIGNMENT,
    **_each("col2im im2col grid_sampler grid_sampler_2d grid_sampler_3d convolution", _WINDOW),
    **_each("reflection_pad1d reflection_pad2d reflection_pad3d", _WINDOW),
    **_each("replication_pad1d replication_pad2d replication_pad3d", _WINDOW),
    **_each("_adaptive_avg_pool2d _adaptive_avg_pool3d _cdist_forward native_group_norm", _LOWERED),
    **_each("_native_batch_norm_legit _native_batch_norm_legit_no_training", _LOWERED),
    **_each("_fft_c2r _fft_r2c _fft_c2c native_dropout nll_loss2d", _LOWERED),
    **_each("embedding_dense_backward convolution_backward avg_pool2d_backward", _GRADIENT),
    **_each("_adaptive_avg_pool2d_backward max_pool2d_with_indices_backward", _GRADIENT),
    **_each("native_group_norm_backward native_layer_norm_backward", _GRADIENT),
}

REFUSED: Mapping[str, Reason] = {f"aten.{name}": reason for name, reason in _REFUSED.items()}

"""The category of each operation: what kind of work it is, by the name that PyTorch gives it."""

from __future__ import annotations

MATRIX, BINARY, UNARY, REDUCTION = "Matrix Multiply", "Elementwise Binary", "Elementwise Unary", "Reduction"
FUSED, CONSTANT = "Fused", "Constant"
RESHAPE, TRANSPOSE, MEMORY, INDEXING, OTHER = "Reshape", "Transpose", "Memory", "Indexing", "Other"

OPS = {
    MATRIX: "mm bmm addmm baddbmm addbmm addmv mv dot matmul linear einsum convolution _convolution conv2d conv1d",
    BINARY: """add sub mul div pow maximum minimum fmod remainder rsub floor_divide where lerp addcmul addcdiv atan2
    masked_fill eq ne lt le gt ge logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor __and__ __or__
    clamp_min clamp_max copysign hypot xlogy""",
    UNARY: """gelu relu silu sigmoid tanh erf exp exp2 expm1 log log2 log1p rsqrt sqrt reciprocal square neg abs
    sign sin cos tan hardswish hardsigmoid hardtanh relu6 leaky_relu elu
    mish softplus logit clamp clip floor ceil round trunc isnan isinf isfinite logical_not bitwise_not erfinv
    nan_to_num native_dropout dropout bernoulli""",
    REDUCTION: """mean var var_mean std std_mean sum amax amin max min argmax argmin any all prod cumsum cumprod
    logsumexp linalg_vector_norm norm topk sort argsort count_nonzero bincount
    adaptive_avg_pool2d _adaptive_avg_pool2d avg_pool2d max_pool2d max_pool2d_with_indices""",
    FUSED: """_softmax _log_softmax _safe_softmax softmax log_softmax native_layer_norm native_group_norm
    native_batch_norm layer_norm batch_norm group_norm _fused_rms_norm rms_norm _native_multi_head_attention
    _transformer_encoder_layer_fwd scaled_dot_product_attention
    _native_batch_norm_legit _native_batch_norm_legit_no_training cudnn_batch_norm""",
    CONSTANT: """full zeros ones empty arange eye scalar_tensor linspace full_like zeros_like ones_like empty_like
    new_full new_zeros new_ones new_empty empty_strided rand randn triu tril triu_indices tril_indices""",
    RESHAPE: """view _unsafe_view reshape _reshape_alias flatten unflatten view_as view_as_real view_as_complex unfold
    as_strided pixel_shuffle pixel_unshuffle im2col col2im""",
    TRANSPOSE: "t transpose permute movedim mT swapaxes numpy_T adjoint",
    MEMORY: """clone contiguous copy copy_ expand expand_as cat stack repeat detach alias to _to_copy lift lift_fresh
    lift_fresh_copy split split_with_sizes chunk unsafe_split unsafe_chunk unbind constant_pad_nd pad roll flip
    resize_ set_ detach_ fill _conj _local_scalar_dense is_nonzero repeat_interleave
    upsample_bicubic2d upsample_bilinear2d""",
    INDEXING: """squeeze unsqueeze index select slice narrow gather scatter scatter_add index_select index_put embedding
    diagonal nonzero take masked_select masked_scatter select_scatter slice_scatter""",
}
"""Categories in the order in which they are shown, with their operations; the layout ones come last."""

COMPUTING = (MATRIX, BINARY, UNARY, REDUCTION, FUSED, OTHER)
"""The categories of arithmetic; the rest moves data, or makes constants."""

CARRYING = frozenset(
    """cat stack repeat repeat_interleave constant_pad_nd pad flip roll fill upsample_bicubic2d upsample_bilinear2d
    im2col col2im pixel_shuffle pixel_unshuffle view_as_real view_as_complex embedding gather index index_put
    index_select masked_scatter masked_select nonzero scatter scatter_add select_scatter slice_scatter take linspace
    rand randn tril tril_indices triu triu_indices""".split()
)
"""Operations of the other categories that are a line of the textbook all the same: they choose, join, repeat or draw
numbers, so that what they give is not what they were given in another layout."""

ORDER = (MATRIX, BINARY, UNARY, REDUCTION, FUSED, OTHER, RESHAPE, TRANSPOSE, MEMORY, INDEXING, CONSTANT)

_CATEGORY = {op: category for category, ops in OPS.items() for op in ops.split()}
_LAYOUT = frozenset(op for op, category in _CATEGORY.items() if category not in COMPUTING) - CARRYING


def category(op: str) -> str:
    """The category of an operation or primitive by its name: `addmm` is a "Matrix Multiply".

    What does the work of several categories at once, such as a layer norm, a softmax or fused attention, is "Fused";
    what is not known here is "Other". In-place operations (`add_`) count as what they compute. Note 003 counts softmax
    as elementwise, but each of its values depends on the whole row.
    """
    name = op.removeprefix("aten.")
    known = _CATEGORY.get(name) or _CATEGORY.get(name.rstrip("_"))
    return known or (FUSED if name.startswith("_scaled_dot_product_") else OTHER)


def is_layout(op: str) -> bool:
    """Whether an operation or primitive only lays data out anew, or makes a constant out of nothing. All others belong
    to a step, and count as computing."""
    return op in _LAYOUT or op.removesuffix("_") in _LAYOUT

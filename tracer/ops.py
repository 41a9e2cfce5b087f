"""Semantics of PyTorch's ops: one table that recorder, probes, derivation and figures read.

A new op is one entry; its formula, if it has one, is a row of `tracer/lowering/aten/formulas.py`.
"""

from __future__ import annotations

from functools import cache

__all__ = ["COMPUTING", "ORDER", "TRAITS", "Op", "base", "category", "is_layout", "ops_with", "schema"]


# Entries of the table of ops.

MATRIX, BINARY, UNARY, REDUCTION = "Matrix Multiply", "Elementwise Binary", "Elementwise Unary", "Reduction"
FUSED_OP, CONSTANT = "Fused", "Constant"
RESHAPE, TRANSPOSE, MEMORY, INDEXING, OTHER_OP = "Reshape", "Transpose", "Memory", "Indexing", "Other"

ORDER = (MATRIX, BINARY, UNARY, REDUCTION, FUSED_OP, OTHER_OP, RESHAPE, TRANSPOSE, MEMORY, INDEXING, CONSTANT)
"""Categories in the order in which they are shown."""
COMPUTING = (MATRIX, BINARY, UNARY, REDUCTION, FUSED_OP, OTHER_OP)
"""The categories of arithmetic; the rest moves data, or creates constants."""
ATTENTION = "scaled_dot_product_attention"
"""The name of fused attention as code asks for it."""

TRAITS = {
    # layouts: they only move numbers, as one pattern of axes
    "layout": "moves numbers, as one pattern of axes",
    "reshape": "keeps the order of the elements and groups axes anew",
    "squeeze": "inserts or removes axes of size 1",
    "transpose": "exchanges axes",
    "expand": "repeats numbers without a copy",
    "repeat": "repeats numbers",
    "slice": "takes a range of an axis",
    "select": "takes one index of an axis",
    "split": "deals an axis out to several tensors",
    # ops that return the numbers they take, perhaps in another dtype
    "identity": "returns the numbers it takes, perhaps in another dtype",
    "alias": "returns the same memory",
    "copy": "returns a copy in the same dtype",
    "cast": "may change the dtype",
    "dropout": "drops numbers while training",
    # joining, picking, writing
    "pad": "adds numbers around a tensor",
    "concat": "joins tensors along an axis",
    "stack": "joins tensors along a new axis",
    "lookup": "looks entries up by their numbers",
    "movement": "carries numbers to other places, in ways that are not followed axis by axis",
    "overwrite": "writes into a part of a tensor",
    "scatter-reduce": "adds up what goes to one place",
    "anchor": "a line of the textbook has at most one: product, convolution, norm, softmax, pooling or table",
    "line": "a line of the textbook, although of no computing category: it chooses, joins, repeats or draws",
    # ops that create tensors
    "uninitialised": "takes memory, whatever it holds",
    "factory": "creates numbers of nothing",
    "shape-only": "takes the shape of a tensor and none of its numbers",
    "shape-arguments": "its numbers are sizes and axes, which the shapes of its results say already",
    "data-dependent": "numbers or sizes follow from values",
    # arithmetic
    "matmul": "multiplies matrices",
    "linear": "a linear map of each token alone",
    "convolution": "a convolution",
    "projection": "a linear map that projects: a matrix, or a convolution of patches",
    "attention": "fused attention",
    "softmax": "a softmax",
    "log-softmax": "the logarithm of a softmax",
    "norm": "a norm",
    "recurrent": "a recurrent layer",
    "arithmetic": "arithmetic cell by cell",
    "activation": "an activation function by its name",
    "spelled": "a function of each number that code also spells out, and that is recognised there",
    "pointwise": "cell by cell, as activations are composed of",
    "exponential": "raises to a power",
    "broadcast": "its operands are aligned at their last axes, so axes of size 1 in front may be left out",
    "compare": "compares, or keeps a triangle: masks are built so, biases are not",
    "mask-builder": "applies a mask, or builds one",
    "score": "may stand between QKᵀ and the softmax, cell by cell",
    "reduce": "reduces an axis to one number",
    "loss": "says how far a prediction is from its target",
    "ambiguous": "has several right results, which differ in their signs",
    "leaves-out": "leaves out what is labelled by `ignore_index`",
    "argreduce": "says where the extreme of an axis stands",
}
"""The traits that an op may have."""


class Op:
    """Everything that is known of an op besides its formula.

    `name` is that of ATen, without overload and without the underscore of ops in place. `title` names a line of the
    textbook that is this op and has no role. `traits` are words of `TRAITS`; a row has them as text, divided by spaces.
    `formulas` are the arguments whose numbers may be formulas of sizes in an equation. `size_rule` names the rule of
    `tracer.shapes.alignment` by which its arguments give the sizes of its results. `operands` are the arguments of a
    linear map: what is mapped, and the matrix.

    From these follow `is_layout`, that the op only changes the layout of data, or creates a constant; `is_heavy`, that
    a step contains at most one such call; and `takes_shape`, that it reads only the shape of a tensor, as `zeros_like`
    does.
    """

    __slots__ = (
        "category",
        "formulas",
        "is_heavy",
        "is_layout",
        "name",
        "operands",
        "size_rule",
        "takes_shape",
        "title",
        "traits",
    )

    def __init__(
        self,
        name: str,
        category: str = OTHER_OP,
        title: str = "",
        traits: str = "",
        formulas: str = "",
        size_rule: str = "",
        operands: str = "",
    ):
        self.name, self.category, self.title, self.size_rule = name, category, title, size_rule
        self.traits, self.formulas = frozenset(traits.split()), frozenset(formulas.split())
        self.operands = tuple(operands.split())
        self.is_layout = category not in COMPUTING and "line" not in self.traits
        self.is_heavy = name == ATTENTION or "anchor" in self.traits
        self.takes_shape = "_like" in name or "new_" in name

    def __reduce__(self) -> tuple:
        return schema, (self.name,)  # an op has one entry in a process

    def __repr__(self) -> str:
        return f"Op({self.name!r})"


# Table of ops: one entry for each op of PyTorch, with everything that is known of it besides its formula.
#
# Names are those of ATen without overload and without the underscore of ops in place; composite ops (`linear`) are
# here, and the ops that they lower to (`addmm`). `tracer.ops` says what the fields and traits mean.

OPS = (
    # Matrix Multiply
    Op("mm", MATRIX, "Matrix product", "matmul linear projection broadcast anchor", operands="self mat2"),
    Op("bmm", MATRIX, "Matrix product", "matmul broadcast anchor"),
    Op("addmm", MATRIX, "Linear map", "linear projection anchor", formulas="alpha beta", operands="mat1 mat2"),
    Op("baddbmm", MATRIX, "Matrix product", "matmul broadcast anchor", formulas="alpha beta"),
    Op("addbmm", MATRIX),
    Op("addmv", MATRIX, "Matrix times vector", "anchor", formulas="alpha beta"),
    Op("mv", MATRIX, "Matrix times vector", "anchor"),
    Op("dot", MATRIX, "Dot product", "anchor"),
    Op("matmul", MATRIX, "Matrix product", "matmul broadcast anchor"),
    Op("linear", MATRIX, "Linear map", "linear projection anchor", operands="input weight"),
    Op("einsum", MATRIX, "Einstein sum", "matmul linear projection anchor"),
    Op("convolution", MATRIX, "Convolution", "convolution anchor", formulas="groups", size_rule="convolution"),
    Op("_convolution", MATRIX, traits="convolution anchor"),
    Op("conv2d", MATRIX, "Convolution", "convolution projection anchor", formulas="groups"),
    Op("conv1d", MATRIX, "Convolution", "convolution projection anchor", formulas="groups"),
    Op("_grouped_mm", MATRIX, "Products of the experts", "anchor"),
    Op("conv3d", MATRIX, "Convolution", "convolution anchor", formulas="groups"),
    Op("conv_transpose1d", MATRIX, "Transposed convolution", "convolution anchor", formulas="groups"),
    Op("conv_transpose2d", MATRIX, "Transposed convolution", "convolution anchor", formulas="groups"),
    Op("conv_transpose3d", MATRIX, "Transposed convolution", "convolution anchor", formulas="groups"),
    Op("bilinear", MATRIX, "Bilinear map", "linear anchor"),
    Op("ger", MATRIX, "Outer product"),
    Op("inner", MATRIX, "Dot product", "anchor"),
    Op("mkldnn_convolution", MATRIX, traits="convolution"),
    Op("outer", MATRIX, "Outer product"),
    Op("vdot", MATRIX, "Dot product", "anchor"),
    # Elementwise Binary
    Op("add", BINARY, "Sum", "arithmetic pointwise broadcast score", formulas="other alpha value"),
    Op("sub", BINARY, "Difference", "arithmetic pointwise broadcast score", formulas="other alpha value"),
    Op("mul", BINARY, "Element-wise product", "arithmetic pointwise mask-builder broadcast score", formulas="other"),
    Op("div", BINARY, "Element-wise quotient", "arithmetic pointwise broadcast score", formulas="other"),
    Op("pow", BINARY, "Power", "pointwise exponential broadcast score", formulas="self exponent"),
    Op("maximum", BINARY, "Element-wise maximum", "pointwise broadcast score"),
    Op("minimum", BINARY, "Element-wise minimum", "pointwise broadcast score"),
    Op("fmod", BINARY, "Remainder", formulas="other"),
    Op("remainder", BINARY, "Remainder", formulas="other"),
    Op("rsub", BINARY, "Difference", "arithmetic pointwise broadcast", formulas="other alpha value"),
    Op("floor_divide", BINARY, "Integer division", formulas="other"),
    Op(
        "where",
        BINARY,
        "Element-wise choice",
        "arithmetic pointwise mask-builder compare broadcast score",
        formulas="self other",
    ),
    Op("lerp", BINARY, "Interpolate", "broadcast", formulas="weight"),
    Op("addcmul", BINARY, "Sum with a product", "broadcast", formulas="other alpha value"),
    Op("addcdiv", BINARY, "Sum with a quotient", "broadcast", formulas="other alpha value"),
    Op("atan2", BINARY, "Angle"),
    Op(
        "masked_fill",
        BINARY,
        "Fill where masked",
        "arithmetic pointwise mask-builder compare broadcast score",
        formulas="value",
    ),
    Op("eq", BINARY, "Equal", "compare broadcast", formulas="other"),
    Op("ne", BINARY, "Not equal", "compare broadcast", formulas="other"),
    Op("lt", BINARY, "Less than", "compare broadcast", formulas="other"),
    Op("le", BINARY, "Less or equal", "compare broadcast", formulas="other"),
    Op("gt", BINARY, "Greater than", "compare broadcast", formulas="other"),
    Op("ge", BINARY, "Greater or equal", "compare broadcast", formulas="other"),
    Op("logical_and", BINARY, "And", "broadcast"),
    Op("logical_or", BINARY, "Or", "broadcast"),
    Op("logical_xor", BINARY),
    Op("bitwise_and", BINARY, "And", "broadcast"),
    Op("bitwise_or", BINARY, "Or", "broadcast"),
    Op("bitwise_xor", BINARY),
    Op("__and__", BINARY),
    Op("__or__", BINARY),
    Op("clamp_min", BINARY, "Clamp", "pointwise score", formulas="min max"),
    Op("clamp_max", BINARY, "Clamp", "pointwise score", formulas="min max"),
    Op("copysign", BINARY),
    Op("hypot", BINARY),
    Op("xlogy", BINARY),
    Op("__iand__", BINARY),
    Op("__ior__", BINARY),
    Op("__ixor__", BINARY),
    Op("__xor__", BINARY),
    Op("arctan2", BINARY, "Angle"),
    Op("divide", BINARY, "Element-wise quotient", formulas="other"),
    Op("fmax", BINARY, "Element-wise maximum"),
    Op("fmin", BINARY, "Element-wise minimum"),
    Op("greater", BINARY, formulas="other"),
    Op("greater_equal", BINARY, formulas="other"),
    Op("less", BINARY, formulas="other"),
    Op("less_equal", BINARY, formulas="other"),
    Op("logaddexp", BINARY, "Log-sum-exp"),
    Op("multiply", BINARY, "Element-wise product", formulas="other"),
    Op("not_equal", BINARY, formulas="other"),
    Op("subtract", BINARY, "Difference", formulas="other alpha value"),
    Op("true_divide", BINARY, "Element-wise quotient", "arithmetic pointwise broadcast", formulas="other"),
    # Elementwise Unary
    Op("gelu", UNARY, "GELU", "activation pointwise spelled"),
    Op("relu", UNARY, "ReLU", "activation pointwise score"),
    Op("silu", UNARY, "SiLU", "activation pointwise spelled"),
    Op("sigmoid", UNARY, "Sigmoid", "activation pointwise spelled"),
    Op("tanh", UNARY, "Tanh", "activation pointwise score spelled"),
    Op("erf", UNARY, traits="pointwise"),
    Op("exp", UNARY, "Exponential", "pointwise exponential score"),
    Op("exp2", UNARY, traits="exponential"),
    Op("expm1", UNARY),
    Op("log", UNARY, "Logarithm", "score"),
    Op("log2", UNARY),
    Op("log1p", UNARY, traits="pointwise"),
    Op("rsqrt", UNARY, "Reciprocal square root"),
    Op("sqrt", UNARY, "Square root"),
    Op("reciprocal", UNARY, "Reciprocal"),
    Op("square", UNARY, "Square", "pointwise"),
    Op("neg", UNARY, "Negative", "pointwise score"),
    Op("abs", UNARY, "Absolute value"),
    Op("sign", UNARY),
    Op("sin", UNARY),
    Op("cos", UNARY),
    Op("tan", UNARY),
    Op("hardswish", UNARY, "Hard swish", "activation pointwise spelled"),
    Op("hardsigmoid", UNARY, "Hard sigmoid", "spelled"),
    Op("hardtanh", UNARY, "Clamp", "pointwise", formulas="min_val max_val"),
    Op("relu6", UNARY, "ReLU6", "activation pointwise"),
    Op("leaky_relu", UNARY, "Leaky ReLU", "activation pointwise"),
    Op("elu", UNARY, "ELU", "activation pointwise spelled"),
    Op("mish", UNARY, traits="activation pointwise spelled"),
    Op("softplus", UNARY, "Softplus", "activation pointwise spelled"),
    Op("logit", UNARY),
    Op("clamp", UNARY, "Clamp", "pointwise score", formulas="min max"),
    Op("clip", UNARY, "Clamp", formulas="min max"),
    Op("floor", UNARY, "Floor"),
    Op("ceil", UNARY, "Ceiling"),
    Op("round", UNARY, "Round"),
    Op("trunc", UNARY),
    Op("isnan", UNARY, "NaN test"),
    Op("isinf", UNARY, "Infinity test"),
    Op("isfinite", UNARY, "Finiteness test"),
    Op("logical_not", UNARY, "Not", "compare"),
    Op("bitwise_not", UNARY, "Not", "compare"),
    Op("erfinv", UNARY),
    Op("nan_to_num", UNARY, "Replace NaN"),
    Op("native_dropout", UNARY, "Dropout", "identity dropout"),
    Op("dropout", UNARY, "Dropout", "identity dropout"),
    Op("bernoulli", UNARY, "Random numbers"),
    Op("_prelu_kernel", UNARY),
    Op("absolute", UNARY),
    Op("alpha_dropout", UNARY, "Dropout", "identity dropout"),
    Op("arctan", UNARY),
    Op("atan", UNARY),
    Op("celu", UNARY, "CELU"),
    Op("conj", UNARY, "Conjugate"),
    Op("conj_physical", UNARY, "Conjugate"),
    Op("cosh", UNARY),
    Op("deg2rad", UNARY),
    Op("feature_dropout", UNARY, "Dropout", "identity dropout"),
    Op("fix", UNARY),
    Op("hardshrink", UNARY),
    Op("log10", UNARY),
    Op("log_sigmoid", UNARY, "Log-sigmoid", "spelled"),
    Op("log_sigmoid_forward", UNARY, "Log-sigmoid"),
    Op("negative", UNARY),
    Op("positive", UNARY, traits="identity"),
    Op("prelu", UNARY, "PReLU"),
    Op("rad2deg", UNARY),
    Op("selu", UNARY, "SELU", "spelled"),
    Op("sgn", UNARY),
    Op("sinh", UNARY),
    Op("softshrink", UNARY),
    Op("special_erf", UNARY),
    Op("special_expit", UNARY),
    Op("threshold", UNARY, "Clamp", formulas="threshold value"),
    # Reduction
    Op("mean", REDUCTION, "Mean", "reduce"),
    Op("var", REDUCTION, "Variance"),
    Op("var_mean", REDUCTION, "Variance"),
    Op("std", REDUCTION, "Standard deviation"),
    Op("std_mean", REDUCTION, "Standard deviation"),
    Op("sum", REDUCTION, "Sum along an axis", "reduce"),
    Op("amax", REDUCTION, "Maximum", "reduce"),
    Op("amin", REDUCTION, "Minimum", "reduce"),
    Op("max", REDUCTION, "Maximum", "reduce"),
    Op("min", REDUCTION, "Minimum"),
    Op("argmax", REDUCTION, "Argmax", "argreduce"),
    Op("argmin", REDUCTION, "Argmin", "argreduce"),
    Op("any", REDUCTION, "Any"),
    Op("all", REDUCTION, "All"),
    Op("prod", REDUCTION),
    Op("cumsum", REDUCTION, "Running sum"),
    Op("cumprod", REDUCTION, "Running product"),
    Op("logsumexp", REDUCTION, "Log-sum-exp"),
    Op("linalg_vector_norm", REDUCTION, "Vector norm"),
    Op("norm", REDUCTION, "Vector norm"),
    Op("topk", REDUCTION, "Top k", "anchor"),
    Op("sort", REDUCTION, "Sort", "anchor"),
    Op("argsort", REDUCTION, "Sort order", "anchor"),
    Op("count_nonzero", REDUCTION, "Count non-zeros"),
    Op("bincount", REDUCTION, traits="data-dependent"),
    Op("adaptive_avg_pool2d", REDUCTION, "Average pooling", "anchor"),
    Op("_adaptive_avg_pool2d", REDUCTION, traits="anchor"),
    Op("avg_pool2d", REDUCTION, "Average pooling", "anchor", size_rule="pooling"),
    Op("max_pool2d", REDUCTION, "Max pooling", "anchor"),
    Op("max_pool2d_with_indices", REDUCTION, traits="anchor", size_rule="pooling"),
    Op("_adaptive_avg_pool3d", REDUCTION, traits="anchor"),
    Op("_is_all_true", REDUCTION, "All"),
    Op("_is_any_true", REDUCTION),
    Op("adaptive_avg_pool1d", REDUCTION, "Average pooling", "anchor"),
    Op("adaptive_avg_pool3d", REDUCTION, "Average pooling", "anchor"),
    Op("adaptive_max_pool1d", REDUCTION, traits="anchor"),
    Op("adaptive_max_pool2d", REDUCTION, traits="anchor"),
    Op("adaptive_max_pool3d", REDUCTION, traits="anchor"),
    Op("avg_pool1d", REDUCTION, "Average pooling", "anchor", size_rule="pooling"),
    Op("avg_pool3d", REDUCTION, "Average pooling", "anchor", size_rule="pooling"),
    Op("frobenius_norm", REDUCTION, "Vector norm"),
    Op("linalg_norm", REDUCTION, "Vector norm"),
    Op("max_pool1d", REDUCTION, "Max pooling", "anchor"),
    Op("max_pool1d_with_indices", REDUCTION, traits="anchor"),
    Op("max_pool3d", REDUCTION, "Max pooling", "anchor"),
    Op("max_pool3d_with_indices", REDUCTION, traits="anchor", size_rule="pooling"),
    Op("special_logsumexp", REDUCTION),
    # Fused
    Op("_softmax", FUSED_OP, "Softmax", "softmax anchor"),
    Op("_log_softmax", FUSED_OP, "Log-softmax", "log-softmax anchor"),
    Op("_safe_softmax", FUSED_OP, traits="softmax"),
    Op("softmax", FUSED_OP, "Softmax", "softmax anchor"),
    Op("log_softmax", FUSED_OP, "Log-softmax", "log-softmax anchor"),
    Op("native_layer_norm", FUSED_OP, "Layer norm", "norm anchor"),
    Op("native_group_norm", FUSED_OP, "Group norm", "norm anchor"),
    Op("native_batch_norm", FUSED_OP, "Batch norm", "anchor"),
    Op("layer_norm", FUSED_OP, "Layer norm", "norm anchor"),
    Op("batch_norm", FUSED_OP, "Batch norm", "norm anchor"),
    Op("group_norm", FUSED_OP, "Group norm", "norm anchor"),
    Op("_fused_rms_norm", FUSED_OP, "RMS norm", "anchor"),
    Op("rms_norm", FUSED_OP, "RMS norm", "norm anchor"),
    Op("_native_multi_head_attention", FUSED_OP),
    Op("_transformer_encoder_layer_fwd", FUSED_OP),
    Op("scaled_dot_product_attention", FUSED_OP, traits="attention", formulas="scale"),
    Op("_native_batch_norm_legit", FUSED_OP, "Batch norm", "anchor"),
    Op("_native_batch_norm_legit_no_training", FUSED_OP, "Batch norm", "anchor"),
    Op("cudnn_batch_norm", FUSED_OP),
    Op("_batch_norm_no_update", FUSED_OP, "Batch norm", "anchor"),
    Op("_weight_norm", FUSED_OP, "Weight norm"),
    Op("_weight_norm_interface", FUSED_OP, "Weight norm"),
    Op("instance_norm", FUSED_OP, "Instance norm", "norm anchor"),
    Op("cross_entropy_loss", FUSED_OP, "Cross-entropy", "loss leaves-out anchor"),
    Op("nll_loss_nd", FUSED_OP, "Negative log-likelihood", "loss leaves-out anchor"),
    Op("nll_loss", FUSED_OP, "Negative log-likelihood", "loss leaves-out anchor"),
    Op("nll_loss2d", FUSED_OP, "Negative log-likelihood", "loss leaves-out anchor"),
    Op("nll_loss_forward", FUSED_OP, "Negative log-likelihood", "loss leaves-out anchor"),
    Op("nll_loss2d_forward", FUSED_OP, "Negative log-likelihood", "loss leaves-out anchor"),
    Op("mse_loss", FUSED_OP, "Mean squared error", "loss"),
    Op("l1_loss", FUSED_OP, "Mean absolute error", "loss"),
    Op("huber_loss", FUSED_OP, "Huber loss", "loss"),
    Op("smooth_l1_loss", FUSED_OP, "Smooth L1 loss", "loss"),
    Op("binary_cross_entropy", FUSED_OP, "Binary cross-entropy", "loss"),
    Op("binary_cross_entropy_with_logits", FUSED_OP, "Binary cross-entropy", "loss"),
    # Constant
    Op("full", CONSTANT, "Fill with one number", "factory", formulas="fill_value value"),
    Op("zeros", CONSTANT, "Zeros", "factory shape-arguments"),
    Op("ones", CONSTANT, "Ones", "factory shape-arguments"),
    Op("empty", CONSTANT, traits="uninitialised factory shape-arguments"),
    Op("arange", CONSTANT, "Count", formulas="start step"),
    Op("eye", CONSTANT, "Identity matrix"),
    Op("scalar_tensor", CONSTANT),
    Op("linspace", CONSTANT, "Evenly spaced numbers", "line", formulas="start end"),
    Op("full_like", CONSTANT, "Fill with one number", "shape-only", formulas="fill_value value"),
    Op("zeros_like", CONSTANT, "Zeros", "shape-only"),
    Op("ones_like", CONSTANT, "Ones", "shape-only"),
    Op("empty_like", CONSTANT, traits="uninitialised factory shape-only"),
    Op("new_full", CONSTANT, "Fill with one number", "shape-only", formulas="fill_value value"),
    Op("new_zeros", CONSTANT, "Zeros", "shape-only shape-arguments"),
    Op("new_ones", CONSTANT, "Ones", "shape-only shape-arguments"),
    Op("new_empty", CONSTANT, traits="uninitialised factory shape-only shape-arguments"),
    Op("empty_strided", CONSTANT, traits="uninitialised factory"),
    Op("new_empty_strided", CONSTANT, traits="uninitialised factory shape-only"),
    Op("_efficientzerotensor", CONSTANT, "Zeros", "factory shape-arguments"),
    Op("rand", CONSTANT, "Random numbers", "line"),
    Op("randn", CONSTANT, "Random numbers", "line"),
    Op("triu", CONSTANT, "Upper triangle", "mask-builder compare line", formulas="diagonal"),
    Op("tril", CONSTANT, "Lower triangle", "compare line", formulas="diagonal"),
    Op("triu_indices", CONSTANT, "Indices of the upper triangle", "line anchor", formulas="row col offset"),
    Op("tril_indices", CONSTANT, "Indices of the lower triangle", "line anchor", formulas="row col offset"),
    # Reshape
    Op("view", RESHAPE, traits="layout reshape shape-arguments", size_rule="merge"),
    Op("_unsafe_view", RESHAPE, traits="layout reshape shape-arguments", size_rule="merge"),
    Op("reshape", RESHAPE, traits="layout reshape shape-arguments"),
    Op("_reshape_alias", RESHAPE, traits="layout reshape shape-arguments"),
    Op("flatten", RESHAPE, traits="layout reshape"),
    Op("unflatten", RESHAPE, traits="layout reshape"),
    Op("view_as", RESHAPE, traits="layout reshape"),
    Op("view_as_real", RESHAPE, "Real and imaginary parts", "line"),
    Op("view_as_complex", RESHAPE, "Complex numbers", "line"),
    Op("unfold", RESHAPE, "Overlapping windows", size_rule="unfold"),
    Op("as_strided", RESHAPE, "Overlapping windows", "shape-arguments"),
    Op("pixel_shuffle", RESHAPE, traits="layout line"),
    Op("pixel_unshuffle", RESHAPE, traits="layout line"),
    Op("im2col", RESHAPE, "Overlapping windows", "movement line anchor"),
    Op("col2im", RESHAPE, "Sum of overlapping windows", "line anchor"),
    # Transpose
    Op("t", TRANSPOSE, traits="layout transpose shape-arguments"),
    Op("transpose", TRANSPOSE, traits="layout transpose shape-arguments"),
    Op("permute", TRANSPOSE, traits="layout transpose shape-arguments"),
    Op("movedim", TRANSPOSE, traits="layout transpose"),
    Op("mT", TRANSPOSE, traits="layout transpose"),
    Op("swapaxes", TRANSPOSE, traits="layout transpose"),
    Op("numpy_T", TRANSPOSE, traits="layout transpose"),
    Op("adjoint", TRANSPOSE, traits="layout transpose"),
    # Memory
    Op("clone", MEMORY, "Copy", "copy identity shape-arguments"),
    Op("contiguous", MEMORY, "Copy", "copy identity shape-arguments"),
    Op("copy", MEMORY, "Copy", "identity overwrite"),
    Op("expand", MEMORY, traits="layout expand shape-arguments"),
    Op("expand_as", MEMORY, traits="layout expand"),
    Op("cat", MEMORY, "Join", "concat movement score line"),
    Op("stack", MEMORY, "Stack", "stack movement line"),
    Op("repeat", MEMORY, traits="layout repeat shape-arguments line"),
    Op("detach", MEMORY, traits="alias identity shape-arguments"),
    Op("alias", MEMORY, traits="alias identity shape-arguments"),
    Op("to", MEMORY, "Cast", "cast identity shape-arguments"),
    Op("_to_copy", MEMORY, "Cast", "cast identity shape-arguments"),
    Op("lift", MEMORY, traits="identity"),
    Op("lift_fresh", MEMORY, "Copy", "alias identity"),
    Op("lift_fresh_copy", MEMORY, "Copy", "identity"),
    Op("split", MEMORY, traits="layout split"),
    Op("split_with_sizes", MEMORY, traits="layout split"),
    Op("chunk", MEMORY, traits="layout split"),
    Op("unsafe_split", MEMORY, traits="layout split"),
    Op("unsafe_chunk", MEMORY, traits="layout split"),
    Op("unbind", MEMORY, traits="layout select"),
    Op("constant_pad_nd", MEMORY, "Pad", "pad movement line", formulas="pad", size_rule="pad"),
    Op("pad", MEMORY, "Pad", "pad line", formulas="pad"),
    Op("roll", MEMORY, "Roll", "movement line", formulas="shifts"),
    Op("flip", MEMORY, "Flip", "movement line"),
    Op("resize", MEMORY),
    Op("set", MEMORY),
    Op("fill", MEMORY, "Fill with one number", "overwrite line", formulas="fill_value value"),
    Op("_conj", MEMORY, "Conjugate"),
    Op("_local_scalar_dense", MEMORY, traits="data-dependent"),
    Op("is_nonzero", MEMORY),
    Op("is_same_size", MEMORY),
    Op("_has_same_storage_numel", MEMORY),
    Op("_linalg_check_errors", MEMORY),
    Op("repeat_interleave", MEMORY, traits="layout repeat data-dependent line"),
    Op("upsample_bicubic2d", MEMORY, "Resize", "line anchor"),
    Op("upsample_bilinear2d", MEMORY, "Resize", "line anchor"),
    # Indexing
    Op("squeeze", INDEXING, traits="layout squeeze shape-arguments"),
    Op("unsqueeze", INDEXING, traits="layout squeeze shape-arguments"),
    Op("index", INDEXING, "Choose entries", "lookup movement line"),
    Op("select", INDEXING, traits="layout select"),
    Op("slice", INDEXING, traits="layout slice", size_rule="slice"),
    Op("narrow", INDEXING, traits="layout slice"),
    Op("gather", INDEXING, "Choose entries", "lookup movement line"),
    Op("scatter", INDEXING, "Scatter", "overwrite line"),
    Op("scatter_add", INDEXING, "Scatter and add", "scatter-reduce line"),
    Op("index_select", INDEXING, "Choose entries", "lookup movement line"),
    Op("index_put", INDEXING, "Scatter", "overwrite line"),
    Op("embedding", INDEXING, "Look up", "lookup line anchor"),
    Op("diagonal", INDEXING, traits="layout"),
    Op("nonzero", INDEXING, traits="data-dependent line"),
    Op("take", INDEXING, traits="line"),
    Op("masked_select", INDEXING, "Choose marked entries", "data-dependent line"),
    Op("masked_scatter", INDEXING, "Fill marked entries", "overwrite line"),
    Op("select_scatter", INDEXING, "Scatter", "line"),
    Op("slice_scatter", INDEXING, "Scatter", "line"),
    # Other
    Op("_index_put_impl", OTHER_OP, "Scatter", "overwrite"),
    Op("_unique2", OTHER_OP, traits="data-dependent"),
    Op("_unsafe_index", OTHER_OP, "Choose entries"),
    Op("_unsafe_index_put", OTHER_OP, "Scatter"),
    Op("_upsample_nearest_exact1d", OTHER_OP, traits="anchor"),
    Op("_upsample_nearest_exact2d", OTHER_OP, traits="anchor"),
    Op("_upsample_nearest_exact3d", OTHER_OP, traits="anchor"),
    Op("broadcast_to", OTHER_OP, traits="layout expand"),
    Op("channel_shuffle", OTHER_OP, traits="layout"),
    Op("complex", OTHER_OP, "Complex numbers"),
    Op("concat", OTHER_OP, "Join", "concat"),
    Op("concatenate", OTHER_OP, "Join"),
    Op("diff", OTHER_OP),
    Op("dsplit", OTHER_OP, traits="layout split"),
    Op("expand_copy", OTHER_OP, traits="layout expand"),
    Op("experts", OTHER_OP, traits="anchor"),
    Op("glu", OTHER_OP, "GLU", "activation"),
    Op("gru", OTHER_OP, "GRU", "recurrent anchor"),
    Op("gru_cell", OTHER_OP, "One step of a GRU", "anchor"),
    Op("hsplit", OTHER_OP, traits="layout split"),
    Op("imag", OTHER_OP, "Imaginary part"),
    Op("index_add", OTHER_OP, "Scatter and add", "scatter-reduce"),
    Op("index_copy", OTHER_OP, "Scatter"),
    Op("index_fill", OTHER_OP, "Fill chosen entries", "overwrite", formulas="value"),
    Op("interpolate", OTHER_OP, "Resize"),
    Op("linalg_eig", OTHER_OP, "Eigenvalues and eigenvectors", "ambiguous"),
    Op("_linalg_eigh", OTHER_OP, "Eigenvalues and eigenvectors", "ambiguous"),
    Op("linalg_inv_ex", OTHER_OP, "Inverse"),
    Op("linalg_qr", OTHER_OP, "QR decomposition", "ambiguous"),
    Op("linalg_solve_ex", OTHER_OP, "Solution of linear equations"),
    Op("_linalg_svd", OTHER_OP, "Singular value decomposition", "ambiguous"),
    Op("lstm", OTHER_OP, "LSTM", "recurrent anchor"),
    Op("lstm_cell", OTHER_OP, "One step of an LSTM", "anchor"),
    Op("matrix_H", OTHER_OP, traits="layout transpose"),
    Op("moveaxis", OTHER_OP, traits="layout transpose"),
    Op("normal", OTHER_OP, "Random numbers"),
    Op("one_hot", OTHER_OP, "One-hot rows"),
    Op("overwrite", OTHER_OP, "Write into a part"),
    Op("permute_copy", OTHER_OP, traits="layout transpose"),
    Op("polar", OTHER_OP, "Complex numbers"),
    Op("rand_like", OTHER_OP, "Random numbers", "shape-only"),
    Op("randint", OTHER_OP, "Random numbers"),
    Op("randn_like", OTHER_OP, "Random numbers", "shape-only"),
    Op("ravel", OTHER_OP, traits="layout reshape"),
    Op("real", OTHER_OP, "Real part"),
    Op("reflection", OTHER_OP, "Pad"),
    Op("reflection_pad1d", OTHER_OP),
    Op("reflection_pad2d", OTHER_OP),
    Op("reflection_pad3d", OTHER_OP),
    Op("replication", OTHER_OP, "Pad"),
    Op("replication_pad1d", OTHER_OP),
    Op("replication_pad2d", OTHER_OP),
    Op("replication_pad3d", OTHER_OP),
    Op("requires_grad", OTHER_OP, traits="identity"),
    Op("reshape_as", OTHER_OP, traits="layout reshape"),
    Op("resolve_conj", OTHER_OP, traits="identity"),
    Op("resolve_neg", OTHER_OP, traits="identity"),
    Op("rnn_relu", OTHER_OP, "Recurrent layer", "recurrent anchor"),
    Op("rnn_relu_cell", OTHER_OP, "One step of a recurrent layer", "anchor"),
    Op("rnn_tanh", OTHER_OP, "Recurrent layer", "recurrent anchor"),
    Op("rnn_tanh_cell", OTHER_OP, "One step of a recurrent layer", "anchor"),
    Op("scatter_reduce", OTHER_OP, "Scatter and add", "scatter-reduce"),
    Op("select_copy", OTHER_OP, traits="layout select"),
    Op("sinusoids", OTHER_OP, traits="anchor"),
    Op("rope", OTHER_OP, "Rotary positions", "broadcast anchor"),
    Op("deviation_norm", OTHER_OP, "Layer norm", "norm anchor"),
    Op("channel_norm", OTHER_OP, "Layer norm", "norm anchor"),
    Op("unit_length", OTHER_OP, "Unit length"),
    Op("slice_copy", OTHER_OP, traits="layout slice"),
    Op("swapdims", OTHER_OP, traits="layout transpose"),
    Op("take_along_dim", OTHER_OP, "Choose entries"),
    Op("tensor_split", OTHER_OP, traits="layout split"),
    Op("tile", OTHER_OP, traits="layout repeat"),
    Op("type_as", OTHER_OP, "Cast", "identity"),
    Op("uniform", OTHER_OP, "Random numbers"),
    Op("unique_consecutive", OTHER_OP, traits="data-dependent"),
    Op("unique_dim", OTHER_OP, traits="data-dependent"),
    Op("unsafe_split_with_sizes", OTHER_OP, traits="layout split"),
    Op("unsqueeze_copy", OTHER_OP, traits="layout squeeze"),
    Op("upsample_linear1d", OTHER_OP, "Resize", "anchor"),
    Op("upsample_nearest1d", OTHER_OP, traits="anchor"),
    Op("upsample_nearest2d", OTHER_OP, "Resize", "anchor"),
    Op("upsample_nearest3d", OTHER_OP, traits="anchor"),
    Op("upsample_trilinear3d", OTHER_OP, "Resize", "anchor"),
    Op("view_copy", OTHER_OP, traits="layout reshape"),
    Op("vsplit", OTHER_OP, traits="layout split"),
    Op("zero", OTHER_OP, "Zeros", "overwrite"),
)


_SCHEMAS = {op.name: op for op in OPS}


@cache
def base(name: str) -> str:
    """Return the name of an op's computation, in place or not: `"aten::add_.Tensor"` and `"add_"` are `"add"`."""
    name = name.split("::")[-1].removeprefix("aten.").split(".")[0]
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


@cache
def schema(name: str) -> Op:
    """Return the entry of an op, an empty one for an op that the table lacks."""
    return _SCHEMAS.get(base(name)) or Op(base(name))


def ops_with(*traits: str) -> frozenset[str]:
    """Return the names of all ops with one of these traits. Raise KeyError for a trait that no op has."""
    return frozenset().union(*(_BY_TRAIT[trait] for trait in traits))


def category(op: str) -> str:
    """Return the category of an operation or primitive by its name: `addmm` is a "Matrix Multiply".

    What does the work of several categories at once, such as a layer norm, a softmax or fused attention, is "Fused";
    what is not known is "Other". In-place operations (`add_`) count as what they compute. Note 003 counts softmax as
    elementwise, but each of its values depends on the whole row.
    """
    known = schema(op).category
    return FUSED_OP if known == OTHER_OP and base(op).startswith("_scaled_dot_product_") else known


def is_layout(op: str) -> bool:
    """Return whether an op or primitive only changes the layout of data, or creates a constant. All others belong to
    a step, and count as computing."""
    return schema(op).is_layout


def title(call: str) -> str:
    """Return the title of a line that is one call, in words."""
    return schema(call).title or call.strip("_").replace("_", " ").capitalize() or "Rearrange"


def _by_trait() -> dict[str, frozenset[str]]:
    ops: dict[str, set[str]] = {trait: set() for trait in TRAITS}
    for op in OPS:
        for trait in op.traits:
            ops[trait].add(op.name)
    return {trait: frozenset(names) for trait, names in ops.items()}


_BY_TRAIT = _by_trait()

RESHAPES = ops_with("reshape")
SQUEEZES = ops_with("squeeze")
TRANSPOSES = ops_with("transpose")
LAYOUTS = ops_with("layout")
NOOP_VIEWS = RESHAPES | ops_with("slice", "expand")
"""Layouts that change nothing where they return the shape that they take."""
IDENTITIES = ops_with("identity")
JOINS = ops_with("concat")
PADS = ops_with("pad")
FACTORIES = ops_with("factory")
MATMULS = ops_with("matmul")
LINEAR = ops_with("linear")
CONVOLUTIONS = ops_with("convolution")
PROJECTIONS = ops_with("projection")
SOFTMAXES = ops_with("softmax")
NORMS = ops_with("norm")
ARITHMETIC = ops_with("arithmetic")
ACTIVATIONS = ops_with("activation")
POINTWISE = ops_with("pointwise")
SPLITS = ops_with("split")
REPEATS = ops_with("expand", "repeat")
"""Layouts that may return more numbers than they take."""
LOOKUPS = ops_with("lookup")
COMPARES = ops_with("compare")
MASK_BUILDERS = ops_with("mask-builder")
UNINITIALISED_OPS = ops_with("uninitialised")
RECURRENT = ops_with("recurrent")
OVERWRITES = ops_with("overwrite")
CONCATENATIONS = ops_with("concat", "stack")
SHAPE_ONLY = ops_with("shape-only")
NO_LABEL = -(2**63)
"""In the place of a label that is left out, where there is none: no label is this number."""

"""Semantics of PyTorch's ops: one table that recorder, probes, derivation and figures read.

A new op is one row, or a name in one; its formula, if it has one, is a row of `tracer/lowering/aten/formulas.py`.
"""

from __future__ import annotations

from functools import cache

__all__ = ["COMPUTING", "ORDER", "TRAITS", "Op", "base", "category", "is_layout", "ops_with", "schema", "sentence"]


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


SENTENCES = {
    # by title
    "Matrix product": "Multiplies matrices: each number is the sum of the products of a row and a column.",
    "Linear map": "Multiplies by a matrix, and adds a bias where there is one.",
    "Matrix times vector": "Multiplies a matrix by a vector.",
    "Dot product": "Multiplies two vectors number by number, and adds the products up.",
    "Outer product": "Multiplies each number of one vector by each number of another.",
    "Einstein sum": "Multiplies tensors along axes that letters name, and adds up along those that the result lacks.",
    "Convolution": "Slides kernels over its input, and adds up the products of a kernel and the numbers under it.",
    "Sum": "Adds two tensors number by number.",
    "Difference": "Subtracts one tensor from another, number by number.",
    "Element-wise product": "Multiplies two tensors number by number.",
    "Element-wise quotient": "Divides one tensor by another, number by number.",
    "Power": "Raises each number to a power.",
    "Element-wise maximum": "Takes the larger of two numbers at each place.",
    "Element-wise minimum": "Takes the smaller of two numbers at each place.",
    "Integer division": "Divides, and rounds down to a whole number.",
    "Remainder": "Returns what a division leaves over.",
    "Element-wise choice": "Takes each number from one tensor or the other, as a condition says.",
    "Fill where masked": "Writes one number wherever a mask says so.",
    "Equal": "Says at each place whether two numbers are equal.",
    "Not equal": "Says at each place whether two numbers differ.",
    "Less than": "Says at each place whether one number is less than another.",
    "Less or equal": "Says at each place whether one number is at most another.",
    "Greater than": "Says at each place whether one number is greater than another.",
    "Greater or equal": "Says at each place whether one number is at least another.",
    "And": "Says at each place whether both hold.",
    "Or": "Says at each place whether one of two holds.",
    "Not": "Says at each place whether something does not hold.",
    "Clamp": "Keeps each number within bounds.",
    "GELU": "Multiplies each number by the share of a normal distribution that lies below it.",
    "ReLU": "Replaces negative numbers by 0.",
    "SiLU": "Multiplies each number by its own sigmoid.",
    "Sigmoid": "Turns each number x into 1/(1 + e⁻ˣ), which lies between 0 and 1.",
    "Tanh": "Turns each number into its hyperbolic tangent, which lies between −1 and 1.",
    "Exponential": "Raises e to each number.",
    "Logarithm": "Takes the natural logarithm of each number.",
    "Square root": "Takes the square root of each number.",
    "Reciprocal square root": "Divides 1 by the square root of each number.",
    "Reciprocal": "Divides 1 by each number.",
    "Square": "Multiplies each number by itself.",
    "Negative": "Changes the sign of each number.",
    "Absolute value": "Drops the sign of each number.",
    "Floor": "Rounds each number down.",
    "Ceiling": "Rounds each number up.",
    "Dropout": "Replaces a random share of the numbers by 0 while training, and does nothing else.",
    "Random numbers": "Draws random numbers.",
    "Mean": "Averages the numbers along an axis.",
    "Variance": "Averages the squared distances from the mean along an axis.",
    "Standard deviation": "Takes the square root of the variance along an axis.",
    "Sum along an axis": "Adds up the numbers along an axis.",
    "Maximum": "Takes the largest number along an axis.",
    "Minimum": "Takes the smallest number along an axis.",
    "Argmax": "Says where along an axis the largest number stands.",
    "Argmin": "Says where along an axis the smallest number stands.",
    "Running sum": "Adds up the numbers along an axis, and keeps every sum on the way.",
    "Vector norm": "Takes the length of the vectors along an axis.",
    "Top k": "Takes the k largest numbers along an axis, and their places.",
    "Sort": "Puts the numbers along an axis in order.",
    "Any": "Says whether at least one of the numbers along an axis is true.",
    "All": "Says whether all numbers along an axis are true.",
    "Softmax": "Raises e to each number of a row, and divides by their sum, so that the row sums to 1.",
    "Log-softmax": "Takes the logarithm of the softmax of each row.",
    "Layer norm": "Subtracts each token's mean, divides by its standard deviation, then scales and shifts.",
    "RMS norm": "Divides each token by the root of its mean square, then scales.",
    "Batch norm": "Subtracts each channel's mean over the batch, divides by its deviation, then scales and shifts.",
    "Fill with one number": "Fills a tensor with one number.",
    "Zeros": "Creates a tensor of zeros.",
    "Ones": "Creates a tensor of ones.",
    "Count": "Counts up in equal steps.",
    "Upper triangle": "Keeps the numbers above a diagonal, and replaces the others by 0.",
    "Lower triangle": "Keeps the numbers below a diagonal, and replaces the others by 0.",
    "Copy": "Copies the numbers, in the same dtype.",
    "Cast": "Copies the numbers to another dtype or device.",
    "Join": "Joins tensors along an axis.",
    "Stack": "Joins tensors along a new axis.",
    "Pad": "Adds numbers around a tensor.",
    "Roll": "Moves the numbers along an axis; those that leave at one end come back at the other.",
    "Flip": "Reverses the numbers along an axis.",
    "Choose entries": "Takes the entries whose numbers are given.",
    "Look up": "Takes the rows of a table whose numbers are given.",
    "Scatter": "Writes numbers at the places that are given.",
    "Scatter and add": "Adds numbers up at the places that are given.",
    # by name
    "erf": "Turns each number into its error function, which lies between −1 and 1.",
    "log1p": "Takes the natural logarithm of 1 plus each number.",
    "sin": "Takes the sine of each number.",
    "cos": "Takes the cosine of each number.",
    "exp2": "Raises 2 to each number.",
    "var_mean": "Returns the variance and the mean of the numbers along an axis.",
    "std_mean": "Returns the standard deviation and the mean of the numbers along an axis.",
    "t": "Exchanges the two axes of a matrix.",
    "transpose": "Exchanges two axes.",
    "permute": "Puts the axes into another order.",
    "squeeze": "Removes axes of size 1.",
    "unsqueeze": "Inserts an axis of size 1.",
    "scalar_tensor": "Creates a tensor of one number without axes.",
    "_local_scalar_dense": "Reads the one number of a tensor into Python.",
    "scaled_dot_product_attention": "Computes softmax(QKᵀ/√d_k)·V in one kernel, and never stores the scores.",
    # by trait
    "reshape": "Groups the same numbers into other axes, in the same order.",
    "expand": "Repeats numbers along an axis without a copy.",
    "repeat": "Repeats numbers along an axis.",
    "slice": "Takes a range of an axis.",
    "select": "Takes one index of an axis.",
    "split": "Cuts an axis into several tensors.",
    "alias": "Returns the same memory under another name.",
    "identity": "Returns the numbers it takes.",
    "uninitialised": "Takes memory, whatever it holds.",
    # by category
    MATRIX: "Multiplies numbers in pairs, and adds products up.",
    BINARY: "Combines two tensors number by number.",
    UNARY: "Turns each number into another one, by itself.",
    REDUCTION: "Brings the numbers along an axis down to fewer.",
    FUSED_OP: "Does the work of several operations in one.",
    RESHAPE: "Groups numbers into other axes.",
    TRANSPOSE: "Puts the axes into another order.",
    MEMORY: "Moves or copies numbers.",
    INDEXING: "Takes or writes entries by their places.",
    CONSTANT: "Creates numbers that follow from no value of the input.",
    OTHER_OP: "Does what its name says in PyTorch's documentation.",
}
"""Sentence on what an op does: by its name, else by its title, else by a trait, else by its category."""


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


# Table of ops: one row for the ops of PyTorch that are alike, with everything that is known of it besides its formula.
#
# Names are those of ATen without overload and without the underscore of ops in place; composite ops (`linear`) are
# here, and the ops that they lower to (`addmm`). `tracer.ops` says what the fields and traits mean.


def _ops(names: str, *known: str, **more: str) -> list[Op]:
    """Return the entries of ops of which all but the name is the same; the names are divided by spaces."""
    return [Op(name, *known, **more) for name in names.split()]


OPS = (
    # Matrix Multiply
    *_ops("mm", MATRIX, "Matrix product", "matmul linear projection broadcast anchor", operands="self mat2"),
    *_ops("bmm matmul", MATRIX, "Matrix product", "matmul broadcast anchor"),
    *_ops("addmm", MATRIX, "Linear map", "linear projection anchor", formulas="alpha beta", operands="mat1 mat2"),
    *_ops("baddbmm", MATRIX, "Matrix product", "matmul broadcast anchor", formulas="alpha beta"),
    *_ops("addbmm", MATRIX),
    *_ops("addmv", MATRIX, "Matrix times vector", "anchor", formulas="alpha beta"),
    *_ops("mv", MATRIX, "Matrix times vector", "anchor"),
    *_ops("dot inner vdot", MATRIX, "Dot product", "anchor"),
    *_ops("linear", MATRIX, "Linear map", "linear projection anchor", operands="input weight"),
    *_ops("einsum", MATRIX, "Einstein sum", "matmul linear projection anchor"),
    *_ops("convolution", MATRIX, "Convolution", "convolution anchor", formulas="groups", size_rule="convolution"),
    *_ops("_convolution", MATRIX, traits="convolution anchor"),
    *_ops("conv2d conv1d", MATRIX, "Convolution", "convolution projection anchor", formulas="groups"),
    *_ops("_grouped_mm", MATRIX, "Products of the experts", "anchor"),
    *_ops("conv3d", MATRIX, "Convolution", "convolution anchor", formulas="groups"),
    *_ops(
        "conv_transpose1d conv_transpose2d conv_transpose3d",
        MATRIX,
        "Transposed convolution",
        "convolution anchor",
        formulas="groups",
    ),
    *_ops("bilinear", MATRIX, "Bilinear map", "linear anchor"),
    *_ops("ger outer", MATRIX, "Outer product"),
    *_ops("mkldnn_convolution", MATRIX, traits="convolution"),
    # Elementwise Binary
    *_ops("add", BINARY, "Sum", "arithmetic pointwise broadcast score", formulas="other alpha value"),
    *_ops("sub", BINARY, "Difference", "arithmetic pointwise broadcast score", formulas="other alpha value"),
    *_ops("mul", BINARY, "Element-wise product", "arithmetic pointwise mask-builder broadcast score", formulas="other"),
    *_ops("div", BINARY, "Element-wise quotient", "arithmetic pointwise broadcast score", formulas="other"),
    *_ops("pow", BINARY, "Power", "pointwise exponential broadcast score", formulas="self exponent"),
    *_ops("maximum", BINARY, "Element-wise maximum", "pointwise broadcast score"),
    *_ops("minimum", BINARY, "Element-wise minimum", "pointwise broadcast score"),
    *_ops("fmod remainder", BINARY, "Remainder", formulas="other"),
    *_ops("rsub", BINARY, "Difference", "arithmetic pointwise broadcast", formulas="other alpha value"),
    *_ops("floor_divide", BINARY, "Integer division", formulas="other"),
    *_ops(
        "where",
        BINARY,
        "Element-wise choice",
        "arithmetic pointwise mask-builder compare broadcast score",
        formulas="self other",
    ),
    *_ops("lerp", BINARY, "Interpolate", "broadcast", formulas="weight"),
    *_ops("addcmul", BINARY, "Sum with a product", "broadcast", formulas="other alpha value"),
    *_ops("addcdiv", BINARY, "Sum with a quotient", "broadcast", formulas="other alpha value"),
    *_ops("atan2 arctan2", BINARY, "Angle"),
    *_ops(
        "masked_fill",
        BINARY,
        "Fill where masked",
        "arithmetic pointwise mask-builder compare broadcast score",
        formulas="value",
    ),
    *_ops("eq", BINARY, "Equal", "compare broadcast", formulas="other"),
    *_ops("ne", BINARY, "Not equal", "compare broadcast", formulas="other"),
    *_ops("lt", BINARY, "Less than", "compare broadcast", formulas="other"),
    *_ops("le", BINARY, "Less or equal", "compare broadcast", formulas="other"),
    *_ops("gt", BINARY, "Greater than", "compare broadcast", formulas="other"),
    *_ops("ge", BINARY, "Greater or equal", "compare broadcast", formulas="other"),
    *_ops("logical_and bitwise_and", BINARY, "And", "broadcast"),
    *_ops("logical_or bitwise_or", BINARY, "Or", "broadcast"),
    *_ops("logical_xor bitwise_xor __and__ __or__ copysign hypot xlogy __iand__ __ior__ __ixor__ __xor__", BINARY),
    *_ops("clamp_min clamp_max", BINARY, "Clamp", "pointwise score", formulas="min max"),
    *_ops("divide", BINARY, "Element-wise quotient", formulas="other"),
    *_ops("fmax", BINARY, "Element-wise maximum"),
    *_ops("fmin", BINARY, "Element-wise minimum"),
    *_ops("greater greater_equal less less_equal not_equal", BINARY, formulas="other"),
    *_ops("logaddexp", BINARY, "Log-sum-exp"),
    *_ops("multiply", BINARY, "Element-wise product", formulas="other"),
    *_ops("subtract", BINARY, "Difference", formulas="other alpha value"),
    *_ops("true_divide", BINARY, "Element-wise quotient", "arithmetic pointwise broadcast", formulas="other"),
    # Elementwise Unary
    *_ops("gelu", UNARY, "GELU", "activation pointwise spelled"),
    *_ops("relu", UNARY, "ReLU", "activation pointwise score"),
    *_ops("silu", UNARY, "SiLU", "activation pointwise spelled"),
    *_ops("sigmoid", UNARY, "Sigmoid", "activation pointwise spelled"),
    *_ops("tanh", UNARY, "Tanh", "activation pointwise score spelled"),
    *_ops("erf log1p", UNARY, traits="pointwise"),
    *_ops("exp", UNARY, "Exponential", "pointwise exponential score"),
    *_ops("exp2", UNARY, traits="exponential"),
    *_ops(
        "expm1 log2 sign sin cos tan logit trunc erfinv _prelu_kernel absolute arctan atan cosh deg2rad fix "
        "hardshrink log10 negative rad2deg sgn sinh softshrink special_erf special_expit",
        UNARY,
    ),
    *_ops("log", UNARY, "Logarithm", "score"),
    *_ops("rsqrt", UNARY, "Reciprocal square root"),
    *_ops("sqrt", UNARY, "Square root"),
    *_ops("reciprocal", UNARY, "Reciprocal"),
    *_ops("square", UNARY, "Square", "pointwise"),
    *_ops("neg", UNARY, "Negative", "pointwise score"),
    *_ops("abs", UNARY, "Absolute value"),
    *_ops("hardswish", UNARY, "Hard swish", "activation pointwise spelled"),
    *_ops("hardsigmoid", UNARY, "Hard sigmoid", "spelled"),
    *_ops("hardtanh", UNARY, "Clamp", "pointwise", formulas="min_val max_val"),
    *_ops("relu6", UNARY, "ReLU6", "activation pointwise"),
    *_ops("leaky_relu", UNARY, "Leaky ReLU", "activation pointwise"),
    *_ops("elu", UNARY, "ELU", "activation pointwise spelled"),
    *_ops("mish", UNARY, traits="activation pointwise spelled"),
    *_ops("softplus", UNARY, "Softplus", "activation pointwise spelled"),
    *_ops("clamp", UNARY, "Clamp", "pointwise score", formulas="min max"),
    *_ops("clip", UNARY, "Clamp", formulas="min max"),
    *_ops("floor", UNARY, "Floor"),
    *_ops("ceil", UNARY, "Ceiling"),
    *_ops("round", UNARY, "Round"),
    *_ops("isnan", UNARY, "NaN test"),
    *_ops("isinf", UNARY, "Infinity test"),
    *_ops("isfinite", UNARY, "Finiteness test"),
    *_ops("logical_not bitwise_not", UNARY, "Not", "compare"),
    *_ops("nan_to_num", UNARY, "Replace NaN"),
    *_ops("native_dropout dropout alpha_dropout feature_dropout", UNARY, "Dropout", "identity dropout"),
    *_ops("bernoulli", UNARY, "Random numbers"),
    *_ops("celu", UNARY, "CELU"),
    *_ops("conj conj_physical", UNARY, "Conjugate"),
    *_ops("log_sigmoid", UNARY, "Log-sigmoid", "spelled"),
    *_ops("log_sigmoid_forward", UNARY, "Log-sigmoid"),
    *_ops("positive", UNARY, traits="identity"),
    *_ops("prelu", UNARY, "PReLU"),
    *_ops("selu", UNARY, "SELU", "spelled"),
    *_ops("threshold", UNARY, "Clamp", formulas="threshold value"),
    # Reduction
    *_ops("mean", REDUCTION, "Mean", "reduce"),
    *_ops("var var_mean", REDUCTION, "Variance"),
    *_ops("std std_mean", REDUCTION, "Standard deviation"),
    *_ops("sum", REDUCTION, "Sum along an axis", "reduce"),
    *_ops("amax max", REDUCTION, "Maximum", "reduce"),
    *_ops("amin", REDUCTION, "Minimum", "reduce"),
    *_ops("min", REDUCTION, "Minimum"),
    *_ops("argmax", REDUCTION, "Argmax", "argreduce"),
    *_ops("argmin", REDUCTION, "Argmin", "argreduce"),
    *_ops("any", REDUCTION, "Any"),
    *_ops("all _is_all_true", REDUCTION, "All"),
    *_ops("prod _is_any_true special_logsumexp", REDUCTION),
    *_ops("cumsum", REDUCTION, "Running sum"),
    *_ops("cumprod", REDUCTION, "Running product"),
    *_ops("logsumexp", REDUCTION, "Log-sum-exp"),
    *_ops("linalg_vector_norm norm frobenius_norm linalg_norm", REDUCTION, "Vector norm"),
    *_ops("topk", REDUCTION, "Top k", "anchor"),
    *_ops("sort", REDUCTION, "Sort", "anchor"),
    *_ops("argsort", REDUCTION, "Sort order", "anchor"),
    *_ops("count_nonzero", REDUCTION, "Count non-zeros"),
    *_ops("bincount", REDUCTION, traits="data-dependent"),
    *_ops("adaptive_avg_pool2d adaptive_avg_pool1d adaptive_avg_pool3d", REDUCTION, "Average pooling", "anchor"),
    *_ops(
        "_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d "
        "adaptive_max_pool3d max_pool1d_with_indices",
        REDUCTION,
        traits="anchor",
    ),
    *_ops("avg_pool2d avg_pool1d avg_pool3d", REDUCTION, "Average pooling", "anchor", size_rule="pooling"),
    *_ops("max_pool2d max_pool1d max_pool3d", REDUCTION, "Max pooling", "anchor"),
    *_ops("max_pool2d_with_indices max_pool3d_with_indices", REDUCTION, traits="anchor", size_rule="pooling"),
    # Fused
    *_ops("_softmax softmax", FUSED_OP, "Softmax", "softmax anchor"),
    *_ops("_log_softmax log_softmax", FUSED_OP, "Log-softmax", "log-softmax anchor"),
    *_ops("_safe_softmax", FUSED_OP, traits="softmax"),
    *_ops("native_layer_norm layer_norm", FUSED_OP, "Layer norm", "norm anchor"),
    *_ops("native_group_norm group_norm", FUSED_OP, "Group norm", "norm anchor"),
    *_ops(
        "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training _batch_norm_no_update",
        FUSED_OP,
        "Batch norm",
        "anchor",
    ),
    *_ops("batch_norm", FUSED_OP, "Batch norm", "norm anchor"),
    *_ops("_fused_rms_norm", FUSED_OP, "RMS norm", "anchor"),
    *_ops("rms_norm", FUSED_OP, "RMS norm", "norm anchor"),
    *_ops("_native_multi_head_attention _transformer_encoder_layer_fwd cudnn_batch_norm", FUSED_OP),
    *_ops("scaled_dot_product_attention", FUSED_OP, traits="attention", formulas="scale"),
    *_ops("_weight_norm _weight_norm_interface", FUSED_OP, "Weight norm"),
    *_ops("instance_norm", FUSED_OP, "Instance norm", "norm anchor"),
    *_ops("cross_entropy_loss", FUSED_OP, "Cross-entropy", "loss leaves-out anchor"),
    *_ops(
        "nll_loss_nd nll_loss nll_loss2d nll_loss_forward nll_loss2d_forward",
        FUSED_OP,
        "Negative log-likelihood",
        "loss leaves-out anchor",
    ),
    *_ops("mse_loss", FUSED_OP, "Mean squared error", "loss"),
    *_ops("l1_loss", FUSED_OP, "Mean absolute error", "loss"),
    *_ops("huber_loss", FUSED_OP, "Huber loss", "loss"),
    *_ops("smooth_l1_loss", FUSED_OP, "Smooth L1 loss", "loss"),
    *_ops("binary_cross_entropy binary_cross_entropy_with_logits", FUSED_OP, "Binary cross-entropy", "loss"),
    # Constant
    *_ops("full", CONSTANT, "Fill with one number", "factory", formulas="fill_value value"),
    *_ops("zeros _efficientzerotensor", CONSTANT, "Zeros", "factory shape-arguments"),
    *_ops("ones", CONSTANT, "Ones", "factory shape-arguments"),
    *_ops("empty", CONSTANT, traits="uninitialised factory shape-arguments"),
    *_ops("arange", CONSTANT, "Count", formulas="start step"),
    *_ops("eye", CONSTANT, "Identity matrix"),
    *_ops("scalar_tensor", CONSTANT),
    *_ops("linspace", CONSTANT, "Evenly spaced numbers", "line", formulas="start end"),
    *_ops("full_like new_full", CONSTANT, "Fill with one number", "shape-only", formulas="fill_value value"),
    *_ops("zeros_like", CONSTANT, "Zeros", "shape-only"),
    *_ops("ones_like", CONSTANT, "Ones", "shape-only"),
    *_ops("empty_like new_empty_strided", CONSTANT, traits="uninitialised factory shape-only"),
    *_ops("new_zeros", CONSTANT, "Zeros", "shape-only shape-arguments"),
    *_ops("new_ones", CONSTANT, "Ones", "shape-only shape-arguments"),
    *_ops("new_empty", CONSTANT, traits="uninitialised factory shape-only shape-arguments"),
    *_ops("empty_strided", CONSTANT, traits="uninitialised factory"),
    *_ops("rand randn", CONSTANT, "Random numbers", "line"),
    *_ops("triu", CONSTANT, "Upper triangle", "mask-builder compare line", formulas="diagonal"),
    *_ops("tril", CONSTANT, "Lower triangle", "compare line", formulas="diagonal"),
    *_ops("triu_indices", CONSTANT, "Indices of the upper triangle", "line anchor", formulas="row col offset"),
    *_ops("tril_indices", CONSTANT, "Indices of the lower triangle", "line anchor", formulas="row col offset"),
    # Reshape
    *_ops("view _unsafe_view", RESHAPE, traits="layout reshape shape-arguments", size_rule="merge"),
    *_ops("reshape _reshape_alias", RESHAPE, traits="layout reshape shape-arguments"),
    *_ops("flatten unflatten view_as", RESHAPE, traits="layout reshape"),
    *_ops("view_as_real", RESHAPE, "Real and imaginary parts", "line"),
    *_ops("view_as_complex", RESHAPE, "Complex numbers", "line"),
    *_ops("unfold", RESHAPE, "Overlapping windows", size_rule="unfold"),
    *_ops("as_strided", RESHAPE, "Overlapping windows", "shape-arguments"),
    *_ops("pixel_shuffle pixel_unshuffle", RESHAPE, traits="layout line"),
    *_ops("im2col", RESHAPE, "Overlapping windows", "movement line anchor"),
    *_ops("col2im", RESHAPE, "Sum of overlapping windows", "line anchor"),
    # Transpose
    *_ops("t transpose permute", TRANSPOSE, traits="layout transpose shape-arguments"),
    *_ops("movedim mT swapaxes numpy_T adjoint", TRANSPOSE, traits="layout transpose"),
    # Memory
    *_ops("clone contiguous", MEMORY, "Copy", "copy identity shape-arguments"),
    *_ops("copy", MEMORY, "Copy", "identity overwrite"),
    *_ops("expand", MEMORY, traits="layout expand shape-arguments"),
    *_ops("expand_as", MEMORY, traits="layout expand"),
    *_ops("cat", MEMORY, "Join", "concat movement score line"),
    *_ops("stack", MEMORY, "Stack", "stack movement line"),
    *_ops("repeat", MEMORY, traits="layout repeat shape-arguments line"),
    *_ops("detach alias", MEMORY, traits="alias identity shape-arguments"),
    *_ops("to _to_copy", MEMORY, "Cast", "cast identity shape-arguments"),
    *_ops("lift", MEMORY, traits="identity"),
    *_ops("lift_fresh", MEMORY, "Copy", "alias identity"),
    *_ops("lift_fresh_copy", MEMORY, "Copy", "identity"),
    *_ops("split split_with_sizes chunk unsafe_split unsafe_chunk", MEMORY, traits="layout split"),
    *_ops("unbind", MEMORY, traits="layout select"),
    *_ops("constant_pad_nd", MEMORY, "Pad", "pad movement line", formulas="pad", size_rule="pad"),
    *_ops("pad", MEMORY, "Pad", "pad line", formulas="pad"),
    *_ops("roll", MEMORY, "Roll", "movement line", formulas="shifts"),
    *_ops("flip", MEMORY, "Flip", "movement line"),
    *_ops("resize set is_nonzero is_same_size _has_same_storage_numel _linalg_check_errors", MEMORY),
    *_ops("fill", MEMORY, "Fill with one number", "overwrite line", formulas="fill_value value"),
    *_ops("_conj", MEMORY, "Conjugate"),
    *_ops("_local_scalar_dense", MEMORY, traits="data-dependent"),
    *_ops("repeat_interleave", MEMORY, traits="layout repeat data-dependent line"),
    *_ops("upsample_bicubic2d upsample_bilinear2d", MEMORY, "Resize", "line anchor"),
    # Indexing
    *_ops("squeeze unsqueeze", INDEXING, traits="layout squeeze shape-arguments"),
    *_ops("index gather index_select", INDEXING, "Choose entries", "lookup movement line"),
    *_ops("select", INDEXING, traits="layout select"),
    *_ops("slice", INDEXING, traits="layout slice", size_rule="slice"),
    *_ops("narrow", INDEXING, traits="layout slice"),
    *_ops("scatter index_put", INDEXING, "Scatter", "overwrite line"),
    *_ops("scatter_add", INDEXING, "Scatter and add", "scatter-reduce line"),
    *_ops("embedding", INDEXING, "Look up", "lookup line anchor"),
    *_ops("diagonal", INDEXING, traits="layout"),
    *_ops("nonzero", INDEXING, traits="data-dependent line"),
    *_ops("take", INDEXING, traits="line"),
    *_ops("masked_select", INDEXING, "Choose marked entries", "data-dependent line"),
    *_ops("masked_scatter", INDEXING, "Fill marked entries", "overwrite line"),
    *_ops("select_scatter slice_scatter", INDEXING, "Scatter", "line"),
    # Other
    *_ops("_index_put_impl", OTHER_OP, "Scatter", "overwrite"),
    *_ops("_unique2 unique_consecutive unique_dim", OTHER_OP, traits="data-dependent"),
    *_ops("_unsafe_index take_along_dim", OTHER_OP, "Choose entries"),
    *_ops("_unsafe_index_put index_copy", OTHER_OP, "Scatter"),
    *_ops(
        "_upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d experts sinusoids "
        "upsample_nearest1d upsample_nearest3d",
        OTHER_OP,
        traits="anchor",
    ),
    *_ops("broadcast_to expand_copy", OTHER_OP, traits="layout expand"),
    *_ops("channel_shuffle", OTHER_OP, traits="layout"),
    *_ops("complex polar", OTHER_OP, "Complex numbers"),
    *_ops("concat", OTHER_OP, "Join", "concat"),
    *_ops("concatenate", OTHER_OP, "Join"),
    *_ops(
        "diff reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d",
        OTHER_OP,
    ),
    *_ops("dsplit hsplit tensor_split unsafe_split_with_sizes vsplit", OTHER_OP, traits="layout split"),
    *_ops("glu", OTHER_OP, "GLU", "activation"),
    *_ops("gru", OTHER_OP, "GRU", "recurrent anchor"),
    *_ops("gru_cell", OTHER_OP, "One step of a GRU", "anchor"),
    *_ops("imag", OTHER_OP, "Imaginary part"),
    *_ops("index_add scatter_reduce", OTHER_OP, "Scatter and add", "scatter-reduce"),
    *_ops("index_fill", OTHER_OP, "Fill chosen entries", "overwrite", formulas="value"),
    *_ops("interpolate", OTHER_OP, "Resize"),
    *_ops("linalg_eig _linalg_eigh", OTHER_OP, "Eigenvalues and eigenvectors", "ambiguous"),
    *_ops("linalg_inv_ex", OTHER_OP, "Inverse"),
    *_ops("linalg_qr", OTHER_OP, "QR decomposition", "ambiguous"),
    *_ops("linalg_solve_ex", OTHER_OP, "Solution of linear equations"),
    *_ops("_linalg_svd", OTHER_OP, "Singular value decomposition", "ambiguous"),
    *_ops("lstm", OTHER_OP, "LSTM", "recurrent anchor"),
    *_ops("lstm_cell", OTHER_OP, "One step of an LSTM", "anchor"),
    *_ops("matrix_H moveaxis permute_copy swapdims", OTHER_OP, traits="layout transpose"),
    *_ops("normal randint uniform", OTHER_OP, "Random numbers"),
    *_ops("one_hot", OTHER_OP, "One-hot rows"),
    *_ops("overwrite", OTHER_OP, "Write into a part"),
    *_ops("rand_like randn_like", OTHER_OP, "Random numbers", "shape-only"),
    *_ops("ravel reshape_as view_copy", OTHER_OP, traits="layout reshape"),
    *_ops("real", OTHER_OP, "Real part"),
    *_ops("reflection replication", OTHER_OP, "Pad"),
    *_ops("requires_grad resolve_conj resolve_neg", OTHER_OP, traits="identity"),
    *_ops("rnn_relu rnn_tanh", OTHER_OP, "Recurrent layer", "recurrent anchor"),
    *_ops("rnn_relu_cell rnn_tanh_cell", OTHER_OP, "One step of a recurrent layer", "anchor"),
    *_ops("select_copy", OTHER_OP, traits="layout select"),
    *_ops("rope", OTHER_OP, "Rotary positions", "broadcast anchor"),
    *_ops("deviation_norm channel_norm", OTHER_OP, "Layer norm", "norm anchor"),
    *_ops("unit_length", OTHER_OP, "Unit length"),
    *_ops("vector_cosine", OTHER_OP, "Cosine similarity"),
    *_ops("label_entropy", OTHER_OP, "Cross-entropy", "loss anchor"),
    *_ops("triangle", OTHER_OP, "Triangle", "compare mask-builder line"),
    *_ops("slice_copy", OTHER_OP, traits="layout slice"),
    *_ops("tile", OTHER_OP, traits="layout repeat"),
    *_ops("type_as", OTHER_OP, "Cast", "identity"),
    *_ops("unsqueeze_copy", OTHER_OP, traits="layout squeeze"),
    *_ops("upsample_linear1d upsample_nearest2d upsample_trilinear3d", OTHER_OP, "Resize", "anchor"),
    *_ops("zero", OTHER_OP, "Zeros", "overwrite"),
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


def sentence(op: str) -> str:
    """Return what an operation or primitive does, in one sentence."""
    known, kind = schema(op), category(op)
    name = ATTENTION if kind == FUSED_OP and base(op).startswith("_scaled_dot_product_") else known.name
    keys = (name, known.title, *(trait for trait in TRAITS if trait in known.traits), kind)
    return next(SENTENCES[key] for key in keys if key in SENTENCES)


def is_layout(op: str) -> bool:
    """Return whether an op or primitive only changes the layout of data, or creates a constant. All others belong to
    a step, and count as computing."""
    return schema(op).is_layout


def title(call: str) -> str:
    """Return the title of a line that is one call, in words."""
    return schema(call).title or call.strip("_").replace("_", " ").capitalize() or "Rearrange"


_BY_TRAIT = {trait: frozenset(op.name for op in OPS if trait in op.traits) for trait in TRAITS}

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

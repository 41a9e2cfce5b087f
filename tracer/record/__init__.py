"""Record of one run: plain frozen data, no module, no open handle.

Everything that is shown, saved, compared or printed is read from a `Trace`. Shapes are tuples of
integers; symbolic shapes are tuples of strings (sympy's `str` of each dimension, `"?"` where none was
verified), read back with `tracer.symbols.notation.parse`.
"""

from tracer.record.steps import (
    ATTENTION_WEIGHTS,
    CHANGED_SUFFIX,
    INPUT,
    LOGITS,
    MOVED_TOKENS,
    RESIDUAL_STREAM,
    SCORES,
    SELECTED_TOKENS,
    SEQUENCE,
    Argument,
    AttentionRecord,
    CallRecord,
    Decomposition,
    Finding,
    ModuleRecord,
    Name,
    Op,
    Operand,
    Picture,
    Primitive,
    ReturnedTensor,
    Segment,
    Source,
    Step,
    Symbol,
    TensorRecord,
    dtype_name,
    split_id,
    tolerance,
    verdict,
    verdict_within,
)
from tracer.record.trace import Trace

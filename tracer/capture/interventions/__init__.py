"""Interventions: a run in which some values are replaced as soon as they are computed.

An intervention belongs to a copy of the module that shares all parameters, so every run of that copy has it: plain
ones, traces, probes and proofs. It is pushed above the recorder, which sees the ops of the replacement like any others.
Also known as causal interventions or activation patching (Vig et al. 2020; Meng et al. 2022).
"""

from tracer.capture.interventions.call_sites import CallSite, ParameterSite, call_sites
from tracer.capture.interventions.changed_module import with_interventions
from tracer.capture.interventions.mode import Intervention

__all__ = ["CallSite", "Intervention", "ParameterSite", "call_sites", "with_interventions"]

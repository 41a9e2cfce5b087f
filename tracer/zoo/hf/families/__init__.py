"""Families of transformers that need a file of their own, found by the `model_type` of a configuration.

Such a file has a docstring (what the family is), `HEADS` (the classes of transformers that it knows and what each
answers, `tracer.zoo.hf.spec_builders`, the one of a family without a checkpoint first) and `spec(config, files)`,
perhaps with hints for the derived textbook.
"""

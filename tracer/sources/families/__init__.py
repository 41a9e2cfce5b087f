"""Families of transformers' models: one file each, found by the `model_type` of a configuration.

Such a file has a docstring (what the family is), `config()` (its configuration where no checkpoint is given),
`architecture(config)` (the class of transformers that is run) and `spec(config, files)`.
"""

"""Cost rules. Importing the package fills the table of `costir.ops.registry`."""

import importlib

# The modules that register rules, in reading order.
MODULES = (
    "contract", "contract_packed", "einsum", "conv", "attention", "rnn", "pointwise", "reduce", "norm", "loss", "move",
    "index", "spatial", "linalg", "optim", "collective", "sharded", "kernel",
)  # fmt: skip
for _name in MODULES:
    importlib.import_module(f"costir.ops.{_name}")

"""What it takes to watch a model run on fake tensors: sizes that remember comparisons, values of small tensors, a recorder."""

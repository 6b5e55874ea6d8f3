"""Fusing: one concrete trace -> the kernels that a compiler would make of it, with the bytes that are left.

    lower      calls -> pieces: what each computes per element, which values it reads and where
    rules      what may be one kernel, in order, as data: TorchInductor's and XLA's
    group      pieces -> groups, greedily, largest saving first
    kernels    groups -> events like those of the trace, to be lifted like any other

Nothing here knows size names: sizes are numbers, and formulas come from doing this at several points.
"""

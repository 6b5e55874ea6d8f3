"""A model on many devices: what one of them runs and sends, recorded from torch.distributed's own engine.

    Family --distributed--> Family whose sizes include the axes of the mesh --trace, lift--> as for one device

`plan` reads what the user typed. `world` is a process group of any size in one process that sends nothing; `collectives`
writes down what would be sent; `strategies` wraps the module by torch's own means. Importing this package imports no torch.
"""

from costir.parallel.plan import Plan, plan_of

__all__ = ["Plan", "plan_of"]

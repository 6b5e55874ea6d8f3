"""Recovering expressions from traces at several sizes: choice of points, alignment of traces, fitting of numbers."""

"""Calibrate this machine, run models on it, and set bound, estimate and measurement side by side."""

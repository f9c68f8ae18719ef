"""Faults on real processes: each with its beginning, its end, and a look whether it happened."""

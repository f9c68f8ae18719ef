"""Checkpoints of a running cluster: taken by the servers, conducted by the coordinator, loaded."""

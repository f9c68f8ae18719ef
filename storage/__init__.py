"""Durability: checkpoints in object storage."""

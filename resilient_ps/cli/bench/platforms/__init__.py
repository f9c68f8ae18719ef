"""`resilient-ps bench platforms`: the same models beside PyTorch, Spark and scikit-learn."""

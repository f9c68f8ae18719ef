"""The in-memory host: production machines, one thread, virtual time, a seed."""

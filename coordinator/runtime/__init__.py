"""etcd, its embedded stand-in, and their processes."""

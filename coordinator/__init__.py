"""The control plane: what the cluster agrees on through etcd."""

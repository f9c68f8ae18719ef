"""A shard on several servers: its log, its primary, its backups, and who may be which."""

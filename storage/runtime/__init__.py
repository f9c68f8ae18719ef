"""The real object stores: S3 and compatible ones, and a directory."""

"""What the worker processes of a run do: repeatable programs on the public API."""

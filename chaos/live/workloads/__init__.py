"""The harness's side of what workers do: how they are started, followed, and judged."""

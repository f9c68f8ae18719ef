"""The world outside: sockets, loops, clocks, processes."""

"""Programs for workers whose histories the checkers judge."""

"""Front ends: each reads one way of writing a config into the same tree."""

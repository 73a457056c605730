"""Front ends: each reads one language of configs into the same tree."""

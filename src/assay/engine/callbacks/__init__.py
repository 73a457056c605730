"""What listens to a run: evaluation, saving, the display, signals. Each uses only what a user's
handler could use."""

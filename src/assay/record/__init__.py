"""Writing of runs: the recorder, and all that it puts into a run's folder. No torch."""

"""What happened, written: the recorder and everything that it puts into a run's folder. No
torch."""

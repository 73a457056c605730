"""Storage of runs: folders, series, blobs, and an index that may be deleted. No torch."""

"""Read only: finding runs, looking at one, listing many, comparing two. Nothing here writes."""

"""Where it is kept: folders, series, blobs, and an index that may be deleted at any time. No
torch."""

"""Parts that the older systems bring and a training here does not need: readers, BERT, features."""

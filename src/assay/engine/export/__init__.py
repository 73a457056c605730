"""Models that leave the house: exported by torch, and compared with the model of the record."""

"""Pipes over things that have a length."""


class SequenceWrapper:
    def __init__(self, datapipe):
        self.datapipe = datapipe

    def __call__(self, items):
        yield from self.datapipe

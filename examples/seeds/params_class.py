"""Parameters with defaults in a class of their own, as the README of thexp shows them, in both its
forms.

Other than there: the import, and the second class for the form that stands in a comment there.
"""

from assay import Params


class BaseParams(Params):
    def __init__(self):
        super().__init__()
        self.batch_size = 50
        self.topk = (1, 2, 3, 4)
        self.optim_option(lr=0.009, moment=0.9)


class AssignedParams(Params):
    def __init__(self):
        super().__init__()
        self.batch_size = 50
        self.topk = (1, 2, 3, 4)
        self.optim = self.optim_option(lr=0.009, moment=0.9)


params = BaseParams()
print(params)
print(AssignedParams())

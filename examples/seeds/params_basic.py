"""The basic use of parameters, as the README of thexp shows it.

Other than there: the import. The device that is printed is cuda:0 once torch is loaded and sees a
GPU.
"""

from assay import Params

params = Params()
params.epoch = 400
params.batch_size = 25
print(params)

"""Keypoints, checkpoints and models, each with its info beside it.

From thexp, "模型保存". Changed: the import; a checkpoint is a folder, and what is printed are the
names.
"""

from assay.engine import Saver

saver = Saver("./sav")
for i in range(10):
    saver.save_keypoint(i, {"a": i}, {"b": i})
    print(saver.find_keypoints())
for i in range(10):
    saver.save_checkpoint(i, {"a": i}, {"b": i})
    print(saver.find_checkpoints())
for i in range(10):
    saver.save_model(i, {"a": i}, {"b": i})
    print(saver.find_models())

"""The composition root: the one room that knows config, build, engine and record.

What is heavy (torch above all) is imported when it is used, so that a mistake in a config is told
before.
"""

from assay.compose.checks import Examiner as Examiner
from assay.compose.checks import examined as examined
from assay.compose.checks import problems_of_shape as problems_of_shape
from assay.compose.checks import sound as sound
from assay.compose.data import audit_data as audit_data
from assay.compose.data import bench_data as bench_data
from assay.compose.diverge import Diverged as Diverged
from assay.compose.diverge import diverge as diverge
from assay.compose.house import check_device as check_device
from assay.compose.launch import Launch as Launch
from assay.compose.launch import RunResult as RunResult
from assay.compose.many import run as run
from assay.compose.many import train_each as train_each
from assay.compose.replay import Replayed as Replayed
from assay.compose.replay import replay as replay
from assay.compose.testing import test as test
from assay.compose.testing import train_and_test as train_and_test
from assay.compose.training import listeners as listeners
from assay.compose.training import load_model as load_model
from assay.compose.training import rerun as rerun
from assay.compose.training import resume as resume
from assay.compose.training import resume_or_train as resume_or_train
from assay.compose.training import train as train
from assay.compose.verify_resume import ResumeCheck as ResumeCheck
from assay.compose.verify_resume import verify_resume as verify_resume

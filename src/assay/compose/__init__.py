"""The composition root: the one room that knows config, build, engine and record.

What is heavy (torch above all) is imported when it is used, so that a mistake in a config is told
before.
"""

from assay.compose.checks import Examiner as Examiner
from assay.compose.checks import examined as examined
from assay.compose.checks import missing_sections as missing_sections
from assay.compose.checks import problems_of_shape as problems_of_shape
from assay.compose.checks import sound as sound
from assay.compose.data_tools import audit_data as audit_data
from assay.compose.data_tools import bench_data as bench_data
from assay.compose.launch_settings import Launch as Launch
from assay.compose.launch_settings import RunResult as RunResult
from assay.compose.run_many import run as run
from assay.compose.run_many import run_one as run_one
from assay.compose.run_many import train_each as train_each
from assay.compose.run_scope import check_device as check_device
from assay.compose.testing import test as test
from assay.compose.testing import train_and_test as train_and_test
from assay.compose.training import config_of_run as config_of_run
from assay.compose.training import listeners as listeners
from assay.compose.training import load_model as load_model
from assay.compose.training import rerun as rerun
from assay.compose.training import resume as resume
from assay.compose.training import resume_or_train as resume_or_train
from assay.compose.training import train as train
from assay.compose.trust import open_given as open_given

"""Proofs of exactness: replay, exact resume, divergence of two runs, golden digests.

Golden digests are compared with the first steps of a config. Runs are trained again in fresh OS
processes. Torch is imported there, never here.
"""

from assay.proof.diverge import DivergeResult as DivergeResult
from assay.proof.diverge import diverge as diverge
from assay.proof.prove import prove as prove
from assay.proof.prove import write_golden_run as write_golden_run
from assay.proof.replay import ReplayResult as ReplayResult
from assay.proof.replay import replay as replay
from assay.proof.verify_resume import ResumeCheck as ResumeCheck
from assay.proof.verify_resume import verify_resume as verify_resume

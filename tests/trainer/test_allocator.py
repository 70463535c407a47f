"""The allocator's settings: agreed to where the C library is glibc, left alone elsewhere."""

import platform
import subprocess
import sys

import pytest

from course_lm.trainer.allocator import tune_allocator

FAULTS_AFTER_WARM_UP = """
import resource, sys, torch
from course_lm.trainer.allocator import tune_allocator
if sys.argv[1] == "tuned":
    assert tune_allocator() is True and tune_allocator() is True
def churn(times):
    for _ in range(times):
        torch.ones(8 * 2**20)  # 32 MiB, asked for and given back
churn(10)  # small blocks settle around the big one
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
churn(10)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

needs_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")


def page_faults(mode: str) -> int:
    command = [sys.executable, "-c", FAULTS_AFTER_WARM_UP, mode]
    return int(subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout)


@needs_glibc
def test_glibc_agrees_and_then_gives_freed_tensors_out_again_without_fresh_pages():
    assert page_faults("tuned") < 0.5 * page_faults("as it is")


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    monkeypatch.setattr("course_lm.trainer.allocator.ctypes.CDLL", None)
    assert tune_allocator() is False


@needs_glibc
def test_a_refusal_is_reported(monkeypatch):
    class Refusing:
        @staticmethod
        def mallopt(name: int, value: int) -> int:
            return 0

    monkeypatch.setattr("course_lm.trainer.allocator.ctypes.CDLL", lambda name: Refusing)
    assert tune_allocator() is False

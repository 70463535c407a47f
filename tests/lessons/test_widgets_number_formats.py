"""The explorer of number formats: its bits, its rounding and its words are those of torch's own types."""

import math
import struct

import pytest
import torch

from course_lm.classroom import widgets

pytestmark = pytest.mark.usefixtures("course_figures")

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def line_of(name, value, scale=1.0):
    words = widgets.draw_number_formats(value, scale=scale)[1]
    return next(line for line in words.splitlines() if line.startswith(name))


def drawn_bits(value, scale=1.0):
    """The rows of bits in the picture, from the top."""
    axes = widgets.draw_number_formats(value, scale=scale)[0].axes[0]
    rows: dict[float, str] = {}
    for text in axes.texts:
        if text.get_text() in ("0", "1"):
            height = text.get_position()[1]
            rows[height] = rows.get(height, "") + text.get_text()
    return list(rows.values())


@pytest.mark.parametrize("value", [0.1, -2.5, 1e-8, 3e-7, 65504.0, 0.0])
def test_the_bits_are_those_of_the_number_in_memory(value):
    single, brain, half = drawn_bits(value)
    assert single == f"{int.from_bytes(struct.pack('>f', value)):032b}"
    assert half == f"{int.from_bytes(struct.pack('>e', value)):016b}"
    pattern = int(torch.tensor(value).bfloat16().view(torch.int16)) % 2**16
    assert brain == f"{pattern:016b}"


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("value", [0.1, 3e-7, 12345.678])
def test_the_words_give_the_nearest_number_and_its_relative_error(name, value):
    nearest = float(torch.tensor(value, dtype=torch.float64).to(DTYPES[name]))
    assert f"{nearest:.9g}" in line_of(name, value)
    assert f"error {abs(nearest / value - 1):.1e}" in line_of(name, value)


def test_underflow_overflow_subnormal_and_exact_numbers_are_called_so():
    assert "underflow" in line_of("fp16", 1e-8) and "underflow" not in line_of("bf16", 1e-8)
    assert "overflow" in line_of("fp16", 1e5) and "overflow" not in line_of("bf16", 1e5)
    assert "subnormal" in line_of("fp16", 3e-7) and "subnormal" not in line_of("bf16", 3e-7)
    assert all("exact" in line_of(name, 0.375) for name in DTYPES)


def test_a_scale_lifts_a_number_out_of_the_underflow_and_is_divided_off_again():
    assert "underflow" in line_of("fp16", 1e-8)
    kept = float(torch.tensor(1e-8 * 2**16).half()) / 2**16
    assert f"{kept:.9g}" in line_of("fp16", 1e-8, scale=2.0**16)
    assert math.isclose(kept, 1e-8, rel_tol=1e-3)

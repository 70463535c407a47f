"""The comparison with other libraries gives every loop the same run, and trusts no figure of a busy machine."""

import peer_loops
import peers
import pytest

SPEC = {"module": "ours", "size": "tiny", "steps": 12, "warmup": 2, "precision": "fp32", "threads": 1}
LIBRARIES = {"hugging_face": "accelerate", "lightning": "lightning", "fabric": "lightning", "accelerate": "accelerate"}


def result(tokens_per_second):
    return {"tokens_per_second": tokens_per_second, "first_step": 0.5, "peak_mib": 100.0, "val_loss": 4.0}


@pytest.fixture
def loss_of_a_plain_loop():
    return peer_loops.measure(SPEC | {"loop": "plain"})["val_loss"]


@pytest.mark.parametrize("loop", [loop for loop in peer_loops.LOOPS if loop != "plain"])
def test_every_loop_ends_on_the_loss_of_a_plain_one(loop, loss_of_a_plain_loop):
    pytest.importorskip(LIBRARIES.get(loop, "torch"))
    measured = peer_loops.measure(SPEC | {"loop": loop})
    assert measured["val_loss"] == pytest.approx(loss_of_a_plain_loop, abs=1e-4)
    assert measured["tokens_per_second"] > 0 and measured["first_step"] > 0


def test_a_loop_that_leaves_steps_out_is_refused(monkeypatch):
    monkeypatch.setitem(peer_loops.LOOPS, "plain", lambda task: None)
    with pytest.raises(RuntimeError, match="plain made 0 optimizer steps of 12"):
        peer_loops.measure(SPEC | {"loop": "plain"})


def test_a_disturbed_run_is_measured_again(monkeypatch, capsys):
    seconds = iter([0.0, 1000.0, 1000.0, 1000.0])  # of all processes: many during the first run, none during the second
    results = iter([result(1.0), result(2.0)])
    monkeypatch.setattr(peers, "busy_seconds", lambda: next(seconds))
    monkeypatch.setattr(peers, "in_child", lambda script, spec: next(results))
    assert peers.undisturbed({"loop": "plain"}) == result(2.0)
    assert "measured again" in capsys.readouterr().out


def test_a_machine_that_is_never_quiet_is_said_to_be_busy(monkeypatch):
    seconds = iter(range(0, 10**9, 10**6))
    monkeypatch.setattr(peers, "busy_seconds", lambda: next(seconds))
    monkeypatch.setattr(peers, "in_child", lambda script, spec: result(1.0))
    with pytest.raises(RuntimeError, match="kept the machine busy 4 times"):
        peers.undisturbed({"loop": "plain"})


def test_ratios_are_taken_within_a_round(capsys):
    peers.show({"plain": [result(100), result(200), result(300)], "other": [result(200), result(300), result(300)]})
    assert capsys.readouterr().out.splitlines()[-1].split()[:5] == ["other", "300", "1.50", "1.00", "2.00"]


def test_every_row_names_a_loop_and_a_module_that_exist():
    assert all(row["loop"] in peer_loops.LOOPS and row["module"] in peer_loops.MODULES for row in peers.ROWS.values())

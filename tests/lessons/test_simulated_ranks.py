"""Simulated ranks: sums over all of them, the rank that would hang the others, and a call made again afterwards."""

import pytest
import torch

from course_lm.classroom import checks
from course_lm.classroom.checks.outcomes import Refused
from course_lm.classroom.checks.simulated_ranks import in_lockstep


def test_each_rank_gets_the_sum_of_what_all_ranks_give():
    assert in_lockstep(lambda rank, all_reduce: all_reduce(10**rank), 4) == [1111] * 4


def test_sums_of_sums_are_known_on_all_ranks():
    def answer(rank, all_reduce):
        return all_reduce(all_reduce(rank) * rank)  # 6 · (0 + 1 + 2 + 3)

    assert in_lockstep(answer, 4) == [36] * 4


def test_a_sum_of_tensors_is_a_new_one_without_a_graph_for_each_rank():
    def answer(rank, all_reduce):
        given = torch.tensor([1.0, rank], requires_grad=True)
        summed = all_reduce(given)
        assert given.tolist() == [1.0, rank] and not summed.requires_grad
        return summed.add_(rank)

    assert [one.tolist() for one in in_lockstep(answer, 2)] == [[2.0, 1.0], [3.0, 2.0]]


def test_numbers_and_tensors_of_one_number_add_up():
    summed = in_lockstep(lambda rank, all_reduce: all_reduce(torch.tensor(2.0) if rank else 1), 2)
    assert summed == [3.0, 3.0]


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        ((0, 1, 1), "rank 0 returns without calling all_reduce, and rank 1 calls it and waits for ever"),
        ((1, 1, 2), "rank 0 returns after one call of all_reduce, and rank 2 calls once more and waits for ever"),
        ((3, 2, 3), "rank 1 returns after 2 calls of all_reduce, and rank 0 calls once more and waits for ever"),
    ],
)
def test_the_rank_that_leaves_a_call_out_is_named(calls, said):
    with pytest.raises(Refused, match=f"{said}: rank {calls.index(min(calls))} would hang the others"):
        in_lockstep(lambda rank, all_reduce: [all_reduce(1) for _ in range(calls[rank])], 3)


def test_no_except_clause_of_an_answer_hides_a_waiting_rank():
    def answer(rank, all_reduce):
        try:
            return all_reduce(1)
        except Exception:
            return 0

    assert in_lockstep(answer, 2) == [2, 2]


def test_ranks_that_never_end_are_refused():
    def endless(rank, all_reduce):
        while True:
            all_reduce(1)

    with pytest.raises(Refused, match="more than 50 times"):
        in_lockstep(endless, 2)


def test_what_is_no_number_and_no_tensor_is_refused():
    with pytest.raises(TypeError, match="all_reduce takes a number or a tensor, got list"):
        in_lockstep(lambda rank, all_reduce: all_reduce([rank]), 2)


def test_the_call_that_a_report_shows_can_be_made_again_beside_ranks_that_do_right():
    def local_norm(parts, all_reduce):
        return all_reduce(sum(float(part.square().sum()) for part in parts))

    assert "local_norm(*checks.last.args)" in checks.norm_of_parts(local_norm).details
    assert [local_norm(*checks.last.args) for _ in range(2)] == [25.0, 25.0]


def test_a_loss_of_many_numbers_is_refused():
    def many(loss_sum, targets, all_reduce, world):
        return loss_sum.expand(3) * world / max(1, all_reduce(targets))

    assert "backward needs one number, and rank 0 returns the shape (3,)" in checks.loss_to_backward(many).message

"""Forgetting and transfer, by hand."""

from __future__ import annotations

import pytest

from trl_dbbench.grading.continual import Continual

#             select  insert  update
MATRIX = (
    (0.10, 0.20, 0.00),  # before the training
    (0.80, 0.30, 0.10),  # after select
    (0.50, 0.90, 0.20),  # after insert
    (0.60, 0.70, 0.75),  # after update
)


def test_by_hand():
    measures = Continual.of(MATRIX)
    assert measures.average_accuracy == pytest.approx((0.60 + 0.70 + 0.75) / 3)
    # the best before the last stage: 0.80 after select, 0.90 after insert
    assert measures.forgetting == pytest.approx(((0.80 - 0.60) + (0.90 - 0.70)) / 2)
    # 0.80 and 0.90 right after they were learned
    assert measures.backward_transfer == pytest.approx(((0.60 - 0.80) + (0.70 - 0.90)) / 2)
    # insert had 0.30 before it was learned, update 0.20; before the training 0.20 and 0.00
    assert measures.forward_transfer == pytest.approx(((0.30 - 0.20) + (0.20 - 0.00)) / 2)


def test_the_best_accuracy_need_not_be_the_one_right_after_the_stage():
    """Forgetting counts from the best, backward transfer from the stage's own."""
    measures = Continual.of([(0.0, 0.0, 0.0), (0.4, 0.0, 0.0), (0.9, 0.5, 0.0), (0.6, 0.5, 0.5)])
    assert measures.forgetting == pytest.approx(((0.9 - 0.6) + (0.5 - 0.5)) / 2)
    assert measures.backward_transfer == pytest.approx(((0.6 - 0.4) + (0.5 - 0.5)) / 2)


def test_before_the_end_they_are_of_the_stages_so_far():
    measures = Continual.of(MATRIX[:3])
    assert measures.average_accuracy == pytest.approx((0.50 + 0.90 + 0.20) / 3)
    assert measures.forgetting == pytest.approx(0.80 - 0.50)
    assert measures.forward_transfer == pytest.approx(((0.30 - 0.20) + (0.20 - 0.00)) / 2)


def test_before_the_first_stage_there_is_an_average_alone():
    assert Continual.of(MATRIX[:1]) == Continual(average_accuracy=pytest.approx(0.1))


def test_a_stage_without_held_out_tasks_counts_nowhere():
    without = [(row[0], None, row[2]) for row in MATRIX]
    measures = Continual.of(without)
    assert measures.average_accuracy == pytest.approx((0.60 + 0.75) / 2)
    assert measures.forgetting == pytest.approx(0.80 - 0.60)
    assert measures.forward_transfer == pytest.approx(0.20)

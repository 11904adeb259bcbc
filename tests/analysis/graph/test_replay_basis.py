from drawing import timeline_from_text
from gapped_runs import run
from random_pipelines import one_f_one_b
from stagescope.analysis.graph.operations import find_operations
from stagescope.analysis.graph.replay_basis import find_replay_basis
from stagescope.analysis.idle.ledger import build_ledger
from stagescope.analysis.prediction.what_if import NoCommunication, predict_steps


def test_a_basis_that_is_made_once_gives_what_each_would_make_for_itself():
    operations = find_operations(run(one_f_one_b(3, 4), lambda job, rank: 10 + rank, hop_ns=3, gap_ns=2))
    basis = find_replay_basis(operations)
    assert build_ledger(operations, basis).steps.equals(build_ledger(operations).steps)
    asked = [(NoCommunication(),)]
    assert predict_steps(operations, asked, basis=basis).table.equals(predict_steps(operations, asked).table)


def test_what_the_plan_and_the_lags_could_not_tell_is_said_together():
    basis = find_replay_basis(find_operations(timeline_from_text("B0 F0\nB0 F0")))
    assert [row.message.split(";")[0] for row in basis.diagnostics] == [
        "needs go in a circle with the order of the ranks",
        "needs between ranks have no recorded transfer",
    ]

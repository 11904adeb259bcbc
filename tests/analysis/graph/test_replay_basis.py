from delayed_runs import run
from drawing import timeline_from_text
from random_pipelines import one_f_one_b
from stagescope.analysis.graph.actions import find_actions
from stagescope.analysis.graph.replay_basis import find_replay_basis
from stagescope.analysis.idle.ledger import build_ledger
from stagescope.analysis.prediction.changes import FreeTransfers
from stagescope.analysis.prediction.what_if import predict_steps


def test_shared_basis_gives_the_same_results():
    actions = find_actions(
        run(one_f_one_b(3, 4), lambda action, rank: 10 + rank, hop_ns=3, launch_delay_ns=2)
    )
    basis = find_replay_basis(actions)
    assert build_ledger(actions, basis).steps.equals(build_ledger(actions).steps)
    asked = [(FreeTransfers(),)]
    assert predict_steps(actions, asked, basis=basis).table.equals(predict_steps(actions, asked).table)


def test_basis_has_the_diagnostics_of_plan_and_lags():
    basis = find_replay_basis(find_actions(timeline_from_text("B0 F0\nB0 F0")))
    assert [row.message.split(";")[0] for row in basis.diagnostics] == [
        "dependencies form a cycle with the order of the ranks",
        "transfers between ranks were not recorded",
    ]

import socket

import pytest

from drawing import timeline_from_text
from running_server import assets_in, resting, run_of, serving
from stagescope.viewer.server.serve import LOOPBACK, listen
from stagescope.vocabulary.errors import CommandError, UsageError


@pytest.fixture
def live(tmp_path):
    return resting(run_of(timeline_from_text("F0 B0"), tmp_path / "run"))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.1", "example.com", "", "127.0.0.2"])  # noqa: S104 - refused
def test_a_host_that_others_can_reach_is_refused(live, host):
    with pytest.raises(UsageError, match="the viewer only serves this machine"):
        listen(live, host)


def test_port_in_use_is_an_error(live):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(
            CommandError, match=f"cannot listen on port {port} of 127.0.0.1: Address already in use"
        ):
            listen(live, port=port)


@pytest.mark.parametrize("host", LOOPBACK)
def test_only_the_loopback_listens(live, tmp_path, host):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        if host == "::1":
            pytest.skip("this machine has no IPv6 loopback")
    with serving(live, assets_in(tmp_path / "assets"), host) as visitor:
        visitor.enter()
        assert visitor.ask("/run/run/")[0] == 200
        with pytest.raises(OSError):  # noqa: PT011 - refused, whichever way
            socket.create_connection((own_address(), visitor.port), timeout=5)


def own_address():
    """Return an address of this machine that others can reach, or one of the loopback that is not listened on."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return "127.0.0.2"
        return probe.getsockname()[0]


def test_the_server_ends_though_somebody_is_connected(live, tmp_path):
    with serving(live, assets_in(tmp_path / "assets")) as visitor:
        connection = socket.create_connection(("127.0.0.1", visitor.port), timeout=30)
    connection.close()

"""``stagescope receive``: receive OpenTelemetry traces of a training on this machine."""

from __future__ import annotations

import threading
from pathlib import Path

import click

from stagescope.cli.console import echo
from stagescope.cli.ending import ending
from stagescope.cli.finite_range import FiniteRange
from stagescope.vocabulary.printable import printable


@click.command(
    "receive",
    epilog="""
    \b
    Examples:
      stagescope receive -o traces
      stagescope receive -o traces --port 0 --seconds 60
      OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318 OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf \\
        MEGATRON_OTEL_ENABLED=1 MEGATRON_OTEL_RANK_STRATEGY=all_ranks \\
        MEGATRON_OTEL_SPAN_GROUPS=per_step,microbatch,communication torchrun ... pretrain_gpt.py
      stagescope report traces
    """,
)
@click.option(
    "-o",
    "--output",
    metavar="DIR",
    required=True,
    type=click.Path(path_type=Path),
    help="Directory of the file.",
)
@click.option("--host", metavar="HOST", default="127.0.0.1", show_default=True, help="Loopback address.")
@click.option(
    "--port",
    metavar="N",
    type=click.IntRange(0, 65535),
    default=4318,
    show_default=True,
    help="Port; 0 for a free one.",
)
@click.option("--most", metavar="SIZE", default="4GB", show_default=True, help="Largest size of the file.")
@click.option(
    "--seconds", metavar="S", type=FiniteRange(min=0.0), help="End after this time, without Ctrl-C."
)
def command(output: Path, host: str, port: int, most: str, seconds: float | None) -> int:
    """Receive OpenTelemetry traces (OTLP over HTTP) of programs on this machine.

    The spans are written to a new file in DIR, as JSON lines, which the other commands read. Ctrl-C ends it; the file
    is complete at any time. Only this machine can send.
    """
    ended = threading.Event()
    with ending(ended):  # from here on: loading the libraries takes a second or more
        from stagescope import api
        from stagescope.vocabulary.sizes import parse_size_bytes

        receiver = api.TraceReceiver(
            output, host=host, port=port, most_bytes=parse_size_bytes(most), on_new=_print_process
        )
        with ending(ended), receiver:
            echo(
                f"receiving traces at {receiver.endpoint} (set OTEL_EXPORTER_OTLP_ENDPOINT to it); Ctrl-C ends"
            )
            ended.wait(seconds)
    counts = receiver.counts
    if counts.span_count:
        echo(f"received {counts.span_count:,} spans of {len(counts.spans)} processes: {receiver.path}")
    else:
        echo("received no span; no file was written")
    for count, what in (
        (counts.not_stored, "spans were not stored: the file has reached its size limit (--most)"),
        (counts.refused, "requests were refused"),
        (counts.discarded, "requests with metrics or logs were discarded"),
    ):
        if count:
            echo(f"  {count:,} {what}")
    return 1 if counts.not_stored or not counts.span_count else 0


def _print_process(rank: int | None, host: str | None) -> None:
    name = "a process without a rank" if rank is None else f"rank {rank}"
    echo(f"  first spans of {name}" + (f" on {printable(host)}" if host else ""))

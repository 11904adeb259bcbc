"""A pipeline training whose schedule is written by hand; the actions are marked unless MARKS is none.

Usage: fork_ranks.py RANKS handwritten_training.py SCHEDULE TRANSFERS MARKS

SCHEDULE is gpipe or 1f1b, TRANSFERS is blocking (gpipe only), async or batch, MARKS is none, actions or steps. Every
rank prints a line of JSON: its rank, what it did with the times of its own clock, and its losses. An action is [kind,
step, stage, micro-batch, start, end], a transfer is ["send" or "recv", step, peer, start, end of the wait].
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import contextmanager, nullcontext

import torch
import torch.distributed as dist
from torch import nn

from stagescope import record

MICROBATCHES, ROWS, WIDTH, STEPS = 6, 64, 256, 3
FORWARD_S, BACKWARD_S = 0.003, 0.005


class Rank:
    """One stage of the pipeline and its transfers."""

    def __init__(self, how, marks):
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.how, self.marks = how, marks
        torch.manual_seed(self.rank)
        self.module = nn.Linear(WIDTH, WIDTH)
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.01)
        self.step, self.log, self.losses, self.sends = 0, [], [], []

    @contextmanager
    def timed(self, kind, microbatch):
        mark = getattr(record, kind) if self.marks != "none" else lambda **_: nullcontext()
        with mark(microbatch=microbatch, stage=self.rank):
            start_ns = time.monotonic_ns()
            yield
            end_ns = time.monotonic_ns()
        self.log.append([kind, self.step, self.rank, microbatch, start_ns, end_ns])

    def forward(self, x, microbatch):
        with self.timed("forward", microbatch):
            time.sleep(FORWARD_S)
            y = torch.tanh(self.module(x))
            if self.rank == self.ranks - 1:
                y = y.pow(2).mean()
                self.losses.append(float(y.detach()))
        return y

    def backward(self, x, y, gradient, microbatch):
        with self.timed("backward", microbatch):
            time.sleep(BACKWARD_S)
            torch.autograd.backward(y, gradient)
        return x.grad

    def exchange(self, sent=None, to=None, source=None):
        """Send a tensor, receive one, or both at once; return what was received."""
        start_ns = time.monotonic_ns()
        received = None if source is None else torch.empty(ROWS, WIDTH)
        if self.how == "batch":
            operations = [] if sent is None else [dist.P2POp(dist.isend, sent, to)]
            operations += [] if received is None else [dist.P2POp(dist.irecv, received, source)]
            for work in dist.batch_isend_irecv(operations) if operations else ():
                work.wait()
        elif self.how == "async":
            if sent is not None:
                self.sends.append((dist.isend(sent, to), sent))
            if received is not None:
                dist.irecv(received, source).wait()
        else:
            if sent is not None:
                dist.send(sent, to)
            if received is not None:
                dist.recv(received, source)
        end_ns = time.monotonic_ns()
        self.log += [["send", self.step, to, start_ns, end_ns]] if sent is not None else []
        self.log += [["recv", self.step, source, start_ns, end_ns]] if received is not None else []
        return received

    def input(self, received):
        x = torch.ones(ROWS, WIDTH) if received is None else received
        return x.requires_grad_()

    @property
    def previous(self):
        return self.rank - 1 if self.rank else None

    @property
    def next(self):
        return self.rank + 1 if self.rank < self.ranks - 1 else None

    def send(self, tensor, to, source=None):
        """Send a tensor to a neighbor if there is one, and receive one from the neighbor `source`."""
        return self.exchange(None if to is None else tensor.detach(), to, source)

    def gpipe(self):
        inputs, outputs = [], []
        for microbatch in range(MICROBATCHES):
            inputs.append(self.input(self.exchange(source=self.previous)))
            outputs.append(self.forward(inputs[-1], microbatch))
            self.send(outputs[-1], self.next)
        for microbatch in range(MICROBATCHES):
            gradient = self.exchange(source=self.next)
            self.send(
                self.backward(inputs[microbatch], outputs[microbatch], gradient, microbatch), self.previous
            )

    def one_forward_one_backward(self):
        ahead = min(self.ranks - 1 - self.rank, MICROBATCHES)
        waiting = []
        for microbatch in range(ahead):
            x = self.input(self.exchange(source=self.previous))
            waiting.append((x, self.forward(x, microbatch), microbatch))
            self.send(waiting[-1][1], self.next)
        received = self.exchange(source=self.previous)
        for microbatch in range(ahead, MICROBATCHES):
            x = self.input(received)
            waiting.append((x, self.forward(x, microbatch), microbatch))
            gradient = self.send(waiting[-1][1], self.next, self.next)
            x, y, done = waiting.pop(0)
            is_last = microbatch == MICROBATCHES - 1
            received = self.send(
                self.backward(x, y, gradient, done), self.previous, None if is_last else self.previous
            )
        for x, y, done in waiting:
            gradient = self.exchange(source=self.next)
            self.send(self.backward(x, y, gradient, done), self.previous)

    def train(self, schedule):
        for self.step in range(STEPS):
            with record.step() if self.marks == "steps" else nullcontext():
                self.gpipe() if schedule == "gpipe" else self.one_forward_one_backward()
                for work, _ in self.sends:
                    work.wait()
                self.sends.clear()
                self.optimizer.step()
                self.optimizer.zero_grad()


def main():
    schedule, how, marks = sys.argv[1:4]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    one = Rank(how, marks)
    dist.barrier()
    one.train(schedule)
    sys.stdout.write(json.dumps([one.rank, one.log, one.losses]) + "\n")
    sys.stdout.flush()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main()

"""What a lock costs that many blocks want: bounded by the blocks, not by their turns."""

import numpy as np
import pytest

from attnverify.ptx.launchers.nvrtc import compile_source
from attnverify.ptx.storage.order import Order

BLOCKS = 48

SOURCE = r"""
extern "C" __global__ void add(int *lock, int *sum) {
  __shared__ int closed;
  do {
    __syncthreads();
    if (threadIdx.x == 0) closed = atomicCAS(lock, 0, 1);
    __syncthreads();
  } while (closed);
  __threadfence();
  if (threadIdx.x == 0) sum[0] += blockIdx.x + 1;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) atomicExch(lock, 0);
}
"""


@pytest.fixture
def orders(monkeypatch):
    made, begin = [], Order.__init__

    def noted(self, *args):
        begin(self, *args)
        made.append(self)

    monkeypatch.setattr(Order, "__init__", noted)
    return made


def test_a_closed_lock_costs_few_turns(orders):
    lock, total = np.zeros(1, np.int32), np.zeros(1, np.int32)
    done = compile_source(SOURCE)["add"].launch(BLOCKS, 64, [lock, total])
    assert total[0] == BLOCKS * (BLOCKS + 1) // 2
    assert done.steps < 100 * BLOCKS
    (order,) = orders
    assert max(len(actors) for actors in order.sets) <= 2 * BLOCKS


def test_of_a_warp_the_latest_actor_stands_for_those_before():
    order = Order(2, 2)
    actors = []
    for _ in range(3):
        actors += order.actors(np.arange(2), np.array([0, 1]), np.array([1, 0])).who.tolist()
        order.pass_barrier(np.arange(2))
    assert order.members(order.number_of(actors)) == frozenset(actors[-2:])


def test_turns_that_change_nothing_are_taken_at_once(monkeypatch):
    """A thousand threads of 32 blocks want a ticket of which there is one."""
    source = r"""
    extern "C" __global__ void take(int *ticket, int *got) {
      int who = blockIdx.x * blockDim.x + threadIdx.x;
      got[who] = atomicCAS(ticket, 0, who + 1);
    }
    """
    calls, within = [], np.delete

    def counted(left, turn):
        calls.append(len(left))
        return within(left, turn)

    monkeypatch.setattr(np, "delete", counted)
    ticket, got = np.zeros(1, np.int32), np.zeros(1024, np.int32)
    compile_source(source)["take"].launch(32, 32, [ticket, got])
    assert len(calls) <= 2
    winner = int(ticket[0]) - 1
    assert got[winner] == 0
    assert (np.delete(got, winner) == winner + 1).all()


def test_blocks_that_were_laid_aside_are_counted_once():
    lock, total, told = np.zeros(1, np.int32), np.zeros(1, np.int32), []
    compile_source(SOURCE)["add"].launch(
        12, 64, [lock, total], lanes=128, tell=lambda name, ended, blocks: told.append(ended)
    )
    assert told[-1] == 12
    assert len(told) == 6

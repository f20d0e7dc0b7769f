"""Tensors over sockets arrive as they were sent, and whoever is gone is named."""

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kedge.errors import LostProcessError, UnlikeError
from kedge.shards import completed, within
from kedge.simulator.ranks import Ranks
from kedge.simulator.transport import SocketTransport, mesh


@contextmanager
def transports(count: int) -> Iterator[list[SocketTransport]]:
    made = [SocketTransport(rank, peers) for rank, peers in enumerate(mesh(count))]
    try:
        yield made
    finally:
        for transport in made:
            transport.close()


def at_once(each: Callable[[int], Any], count: int) -> list[Any]:
    """Return what each rank returns or raises, all running at once."""
    found: list[Any] = [RuntimeError("still waits")] * count

    def run(rank: int) -> None:
        try:
            found[rank] = each(rank)
        except Exception as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return found


DTYPES = st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
SHAPES = st.lists(st.integers(0, 300), max_size=2) | st.just([1_000_003])


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 4), DTYPES, SHAPES)
def test_every_rank_receives_what_the_others_sent(count, dtype, shape):
    sent = [torch.randint(0, 2, shape).to(dtype) * (rank + 1) for rank in range(count)]
    sent = [tensor.to(dtype) for tensor in sent]
    with transports(count) as made:

        def play(rank: int) -> bool:
            all_of_them = [torch.empty_like(sent[0]) for _ in range(count)]
            made[rank].all_gather(all_of_them, sent[rank])
            first = sent[rank].clone()
            made[rank].broadcast(first)
            turned = [tensor.movedim(0, -1) if shape else tensor for tensor in sent]
            right = all(map(torch.equal, [*all_of_them, first], [*sent, sent[0]]))
            if rank > 0:
                made[rank].send(turned[rank], 0)
                return right
            for other in range(1, count):
                received = torch.empty(turned[other].shape, dtype=dtype)
                made[0].receive(received, other)
                right = right and torch.equal(received, turned[other])
            return right

        assert at_once(play, count) == [True] * count


def test_whoever_is_gone_is_named():
    with transports(3) as made:
        made[2].close()

        def play(rank: int) -> None:
            if rank < 2:
                made[rank].all_gather([torch.zeros(9) for _ in range(3)], torch.zeros(9))

        first, second, _ = at_once(play, 3)
    for error in (first, second):
        assert isinstance(error, LostProcessError)
        assert str(error) == "process 2 of this run is gone"


FACTS = st.dictionaries(st.text(max_size=5), st.none() | st.integers() | st.text(max_size=5), max_size=5)


@settings(max_examples=50, deadline=None)
@given(FACTS, st.lists(FACTS | st.none(), min_size=1, max_size=3))
def test_ranks_are_alike_or_all_say_the_same_difference(facts, others):
    told = [facts, *(facts if other is None else other for other in others)]
    with transports(len(told)) as made:
        ranks = [Ranks(rank, len(told), made[rank]) for rank in range(len(told))]
        found = at_once(lambda rank: ranks[rank].check_alike(lambda: told[rank]), len(told))
    if all(other == facts for other in told):
        assert found == [None] * len(told)
    else:
        assert all(isinstance(error, UnlikeError) for error in found)
        assert len({str(error) for error in found}) == 1


@pytest.mark.parametrize("flags", [[(False, True), (False, False)], [(True, False), (False, True)]])
def test_a_flag_of_any_rank_is_agreed_on(flags):
    with transports(2) as made:
        ranks = [Ranks(rank, 2, made[rank]) for rank in range(2)]
        expected = [any(column) for column in zip(*flags, strict=True)]
        assert at_once(lambda rank: ranks[rank].agree(*flags[rank]), 2) == [expected] * 2


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=4),
    st.integers(2, 4),
    st.sampled_from([16, 64, 1 << 21]),
    st.integers(0, 2**32),
)
@settings(max_examples=40, deadline=None)
def test_sums_in_pieces_are_the_sums_of_one_process_to_the_bit(sizes, count, chunk, seed):
    source, shards = torch.Generator().manual_seed(seed), 8
    leaves = {
        (shard, shard + 1): [torch.randn(size, generator=source) for size in sizes] + [torch.ones(2).double()]
        for shard in range(shards)
        if shard % 3 or shard == seed % 8
    }
    ends = [shards * rank // count for rank in range(count + 1)]
    branches = [
        [node for node in within((0, shards), *some) if completed(node, leaves) is not None]
        for some in itertools.pairwise(ends)
    ]
    wanted = completed((0, shards), leaves)
    with mock.patch("kedge.simulator.ranks.CHUNK", chunk), transports(count) as made:
        ranks = [Ranks(rank, count, made[rank]) for rank in range(count)]

        def total(rank):
            own = {node: completed(node, leaves) for node in branches[rank]}
            return ranks[rank].total(own, branches, (0, shards), wanted)

        for found in at_once(total, count):
            assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))

"""Ranks that are threads: what arrives, what is counted, and what happens when one goes astray."""

from __future__ import annotations

import pytest
import torch

from hedgerow.core.errors import ConfigError, ExchangeError, InputError
from hedgerow.sharding.exchange import Exchange, LocalExchange


def send_all(exchange: Exchange) -> tuple[list[int], list[float]]:
    """Rank r sends each rank q as many as r + q, all r; one of them sends nothing to itself."""
    rank, ranks = exchange.rank, exchange.ranks
    sizes = [rank + q for q in range(ranks)]
    coming = exchange.counts(torch.tensor(sizes)).tolist()
    going = exchange.start_floats(torch.full((sum(sizes),), rank + 0.5), sizes, coming)
    ids = exchange.ids(torch.full((sum(sizes),), rank), sizes, coming)
    return ids.tolist(), going.wait().tolist()


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_everything_arrives_in_the_order_of_ranks(ranks: int) -> None:
    def work(exchange: LocalExchange) -> dict[str, int]:
        wanted = [q for q in range(ranks) for _ in range(q + exchange.rank)]
        assert send_all(exchange) == (wanted, [q + 0.5 for q in wanted])
        return exchange.counters.snapshot()

    for rank, counted in enumerate(LocalExchange.run(ranks, work)):
        others = sum(rank + q for q in range(ranks) if q != rank)
        assert counted["ids_sent_bytes"] == counted["ids_received_bytes"] == 8 * others
        assert counted["floats_sent_bytes"] == 4 * others
        assert counted["counts_sent_bytes"] == 8 * (ranks - 1)


def test_an_error_of_one_rank_frees_the_others_and_is_raised() -> None:
    def work(exchange: LocalExchange) -> None:
        if exchange.rank == 1:
            raise ZeroDivisionError("rank 1")
        exchange.counts(torch.zeros(3, dtype=torch.int64))

    with pytest.raises(ZeroDivisionError, match="rank 1"):
        LocalExchange.run(3, work)


def test_a_rank_that_never_comes() -> None:
    def work(exchange: LocalExchange) -> None:
        if exchange.rank == 0:
            exchange.ids(torch.tensor([1]), [0, 1], [0, 0])

    with pytest.raises(
        ExchangeError, match="exchange of ids failed on rank 0 of 2: a rank is miss"
    ):
        LocalExchange.run(2, work, timeout_s=0.2)


def test_ranks_that_make_different_calls() -> None:
    def work(exchange: LocalExchange) -> None:
        if exchange.rank == 0:
            exchange.counts(torch.zeros(2, dtype=torch.int64))
        else:
            exchange.floats(torch.zeros(2), [1, 1], [1, 1])

    with pytest.raises(ExchangeError, match=r"ranks exchange \['counts', 'floats'\]"):
        LocalExchange.run(2, work)


def test_what_an_exchange_refuses() -> None:
    alone = Exchange()
    with pytest.raises(ConfigError, match="wire"):
        Exchange(wire="int8")
    with pytest.raises(InputError, match="send adds up to 1 of 2 ids"):
        alone.ids(torch.tensor([1, 2]), [1], [1])
    with pytest.raises(InputError, match="exchange the counts first"):
        alone.ids(torch.tensor([1, 2]), [2], [3])
    with pytest.raises(InputError, match="one of at least 0 per rank"):
        alone.ids(torch.tensor([1, 2]), [1, 1], [1, 1])

    def work(exchange: LocalExchange) -> None:
        exchange.counts(torch.zeros(3, dtype=torch.int64))

    with pytest.raises(InputError, match="3 counts for 2 ranks"):
        LocalExchange.run(2, work)


@pytest.mark.parametrize(("wire", "size"), [("fp32", 4), ("bf16", 2), ("fp16", 2)])
def test_the_wire_rounds_alike_wherever_floats_go(wire: str, size: int) -> None:
    values = torch.tensor([1.0 + 2**-9, 2.0**-20, 70000.0])

    def work(exchange: LocalExchange) -> tuple[torch.Tensor, int]:
        got = exchange.floats(values.repeat(2), [3, 3], [3, 3])
        exact = exchange.floats(values.repeat(2), [3, 3], [3, 3], exact=True)
        assert torch.equal(exact, values.repeat(2))
        return got, exchange.counters.read("floats_sent_bytes")

    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[wire]
    for got, sent in LocalExchange.run(2, work, wire=wire):
        assert torch.equal(got, values.to(dtype).float().repeat(2))
        assert sent == 3 * size + 3 * 4
    assert torch.equal(Exchange(wire=wire).floats(values, [3], [3]), values.to(dtype).float())

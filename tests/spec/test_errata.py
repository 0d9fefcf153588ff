"""
Errata: where a source document is wrong, its sentence or its code runs here as printed, and is
shown to differ from the specification.

PyTorch code is transcribed to PyTorch, TensorFlow code line by line to NumPy. Seeds are named by
their numbers.
"""

import math

import numpy as np
import pytest
import torch
from torch import from_numpy

from attnverify import spec
from tests.support.random_arrays import close, normals

B, H, N, M, D, E, P = 2, 3, 5, 7, 11, 13, 17

# Shifts and learned positions: seeds 000 and 002


def labml_shift_right(x: torch.Tensor) -> torch.Tensor:
    """Seeds 000 and 002, the same lines in both."""
    zero_pad = x.new_zeros(x.shape[0], 1, *x.shape[2:])
    x_padded = torch.cat([x, zero_pad], dim=1)
    x_padded = x_padded.view(x.shape[1] + 1, x.shape[0], *x.shape[2:])
    return x_padded[:-1].view_as(x)


SQUARE = np.arange(1.0, 10.0).reshape(3, 3)


def test_seed_002_prints_nine_where_its_code_and_the_specification_give_six():
    """
    Seed 002: "the shifted result would be [[1, 2 ,3], [0, 4, 5], [9, 0, 7]]"; seed 000 prints 6.
    """
    printed, corrected = ([[1, 2, 3], [0, 4, 5], [last, 0, 7]] for last in (9, 6))
    assert (
        labml_shift_right(from_numpy(SQUARE)).tolist()
        == spec.shift_right(SQUARE).tolist()
        == corrected
        != printed
    )


SLICES = {"000": lambda N, M, P: slice(P - M, P + N), "002": lambda N, M, P: slice(P - N, P + M)}


def labml_scores(seed: str, query, key, embeddings, bias, query_bias) -> torch.Tensor:
    """
    ``get_scores`` of seeds 000 and 002 with the sequence in front, times the scale that labml
    applies to it.
    """
    rows = SLICES[seed](query.shape[0], key.shape[0], embeddings.shape[0] // 2)
    key_pos_emb, key_pos_bias, query_pos_bias = (
        embeddings[rows],
        bias[rows],
        query_bias[None, None, :, :],
    )
    ac = torch.einsum("ibhd,jbhd->ijbh", query + query_pos_bias, key)
    b = torch.einsum("ibhd,jhd->ijbh", query, key_pos_emb)
    bd = labml_shift_right(b + key_pos_bias[None, :, None, :])
    bd = bd[:, -key.shape[0] :]
    return (ac + bd) / math.sqrt(query.shape[-1])


def learned_draw(rows: int, columns: int, P: int = P) -> list[np.ndarray]:
    return normals((B, H, rows, D), (B, H, columns, D), (2 * P, H, D), (2 * P, H), (H, D))


def as_printed(seed: str, draw: list[np.ndarray]) -> np.ndarray:
    query, key, *tables = map(from_numpy, draw)
    return (
        labml_scores(seed, query.permute(2, 0, 1, 3), key.permute(2, 0, 1, 3), *tables)
        .permute(2, 3, 0, 1)
        .numpy()
    )


@pytest.mark.parametrize(("rows", "columns"), [(5, 7), (7, 5), (1, 7), (5, 5)])
def test_the_two_seeds_slice_their_tables_so_that_one_aligns_the_ends_and_the_other_the_starts(
    rows, columns
):
    """Seed 000: [P - M : P + N]; seed 002: [P - N : P + M]. They agree where N = M alone."""
    draw = learned_draw(rows, columns)
    assert close(as_printed("000", draw), spec.learned_relative_score(*draw, "end"))
    assert close(as_printed("002", draw), spec.learned_relative_score(*draw, "start"))
    assert close(as_printed("000", draw), as_printed("002", draw), within=1e-3) == (rows == columns)


@pytest.mark.parametrize(("seed", "rows", "columns"), [("000", 5, 4), ("002", 4, 5)])
def test_a_slice_that_ends_beyond_the_table_is_cut_and_every_offset_is_wrong_in_silence(
    seed, rows, columns
):
    """
    Seed 000 with N, seed 002 with M beyond P, here by one: the pair (i, j) reads the row of the
    pair (i, j - 1).
    """
    draw, align = learned_draw(rows, columns, P=4), {"000": "end", "002": "start"}[seed]

    def as_specified(
        in_front: int,
    ) -> np.ndarray:  # with rows around the tables, so that they reach
        wider = [
            np.pad(table, [(in_front, 2 - in_front)] + [(0, 0)] * (table.ndim - 1))
            for table in draw[2:4]
        ]
        return spec.learned_relative_score(*draw[:2], *wider, draw[4], align)

    assert close(as_printed(seed, draw), as_specified(in_front=2))
    assert not close(as_printed(seed, draw), as_specified(in_front=1), within=1e-2)


@pytest.mark.parametrize("seed", ["000", "002"])
def test_a_slice_that_begins_before_the_table_is_counted_from_its_end(seed):
    """
    Both seeds with N = M = P + 1: the last row alone is left; every other query has it for all of
    its keys, the rest a zero.
    """
    query, key, embeddings, bias, query_bias = learned_draw(5, 5, P=4)
    printed = as_printed(seed, [0 * query, 0 * key, embeddings, bias, query_bias])
    wanted = np.array([1, 0, 1, 0, 1])[:, None] * bias[7][:, None, None] / math.sqrt(D)
    assert close(printed, np.broadcast_to(wanted, printed.shape))


@pytest.mark.parametrize(("seed", "rows", "columns"), [("000", 1, 5), ("002", 5, 2)])
def test_a_slice_that_begins_before_the_table_may_leave_no_row_at_all(seed, rows, columns):
    """Seed 000 with M, seed 002 with N beyond P and the other short."""
    with pytest.raises(RuntimeError, match="must match the size"):
        as_printed(seed, learned_draw(rows, columns, P=4))


# Transformer-XL: seed 003


def seed_003_rel_shift(x: np.ndarray) -> np.ndarray:
    """``_rel_shift``, tf.pad, tf.reshape and tf.slice written with NumPy's."""
    rows, columns, *rest = x.shape
    x = np.pad(x, [(0, 0), (1, 0), (0, 0), (0, 0)])
    x = np.reshape(x, (rows + 1, columns, *rest))
    return x[0:, 1:]


@pytest.mark.parametrize(("rows", "columns"), [(5, 7), (7, 5), (1, 7)])
def test_the_shape_to_which_seed_003_reshapes_has_another_number_of_elements(rows, columns):
    """Seed 003 reshapes [N M+1] to [N+1 M]; [M+1 N] is right."""
    with pytest.raises(ValueError, match="cannot reshape"):
        seed_003_rel_shift(np.ones((rows, columns, B, H)))


def test_with_as_many_queries_as_keys_seed_003_cuts_the_wrong_axis():
    """Seed 003: tf.slice(x, [0, 1, 0, 0], ...) drops a column and keeps the row too many."""
    x = normals((N, N, B, H))[0]
    assert seed_003_rel_shift(x).shape == (N + 1, N - 1, B, H)
    assert np.array_equal(
        np.pad(x[..., 0, 0], [(0, 0), (1, 0)]).reshape(N + 1, N)[1:], spec.rel_shift(x[..., 0, 0])
    )


def test_seed_003_calls_a_name_that_it_does_not_define():
    """Seed 003 defines ``_rel_shift`` and calls ``self.rel_shift``."""

    class RelativeMultiHeadAttention:
        def _rel_shift(self, x):
            return seed_003_rel_shift(x)

        def __call__(self, BD):
            return self.rel_shift(BD)

    with pytest.raises(
        AttributeError, match="'RelativeMultiHeadAttention' object has no attribute 'rel_shift'"
    ):
        RelativeMultiHeadAttention()(np.ones((N, N, B, H)))


def test_a_mask_times_1e_minus_9_hides_nothing():
    """Seed 003: ``attention_score += (mask * 1e-9)``; in float32 not even the last bit changes."""
    score, mask = normals((N, M))[0].astype(np.float32), ~spec.causal_mask(N, M)
    printed = score + mask.astype(np.float32) * np.float32(1e-9)
    assert np.max(np.abs(printed - score)) <= 2e-9
    assert close(spec.softmax(printed), spec.softmax(score), within=1e-8)
    assert not close(spec.softmax(printed), spec.softmax(score, ~mask), within=1e-2)


def test_a_comment_of_seed_003_divides_by_the_width_and_its_code_by_the_root():
    """
    Seed 003: "attention_score = softmax((A+B+C+D)/dk[+mask])" above
    ``/ tf.sqrt(self.hidden_size)``.
    """
    query, key = normals((N, D), (M, D))
    assert not close(query @ key.T / D, spec.scaled_dot_product_score(query, key), within=1e-2)
    assert close(query @ key.T / np.sqrt(D), spec.scaled_dot_product_score(query, key))


def test_a_stop_gradient_whose_result_is_dropped_stops_nothing():
    """
    Seed 003: ``tf.stop_gradient(cat)`` as a statement; ``Tensor.detach`` is the same function of
    its argument.
    """
    hid, mem = torch.ones(N, B, E, requires_grad=True), torch.zeros(M, B, E)
    cat = torch.cat([mem, hid], dim=0)
    cat.detach()
    new_mem = cat[M:]
    assert new_mem.requires_grad
    assert torch.autograd.grad(new_mem.sum(), hid)[0].eq(1).all()


def seed_003_update_mems(hids: list, mems: list, mlen: int, qlen: int, mem_len: int) -> list:
    new_mems = []
    end_idx = mlen + max(0, qlen)
    beg_idx = max(0, end_idx - mem_len)
    for i in range(len(hids)):
        mems[i] = mems[i].astype(
            hids[i].dtype, copy=False
        )  # tf.cast gives its argument back where the dtype is right
        cat = np.concatenate([mems[i], hids[i]], axis=0)
        new_mems.append(cat[beg_idx:end_idx])
    return new_mems


def test_seed_003_changes_the_list_of_its_caller():
    """
    Seed 003: ``mems[i] = tf.cast(mems[i], dtype=hids[i].dtype)``. Seen where the dtypes differ.
    """
    mems, hids = [np.ones((M, B, E))], [np.ones((N, B, E), np.float32)]
    given = mems[0]
    seed_003_update_mems(hids, mems, M, N, mem_len=M)
    assert mems[0] is not given and mems[0].dtype == np.float32
    mems = [given.swapaxes(0, 1)]
    spec.update_mems([hid.swapaxes(0, 1) for hid in hids], mems, mem_len=M)
    assert mems[0].base is given and given.dtype == np.float64


def test_the_zeros_of_init_mems_are_something_that_the_first_segment_attends_to():
    """
    Seed 003 says of the first segment that it has nothing to concatenate; its ``init_mems`` gives
    zeros, which take weight.
    """
    query, key, value, position, u, v = normals(
        (B, H, N, D), (B, H, N, D), (B, H, N, E), (H, N + M, D), (H, D), (H, D)
    )
    with_zeros = [
        np.concatenate([np.zeros((B, H, M, x.shape[-1])), x], axis=2) for x in (key, value)
    ]
    printed = spec.transformer_xl_attention(query, *with_zeros, position, u, v)
    nothing = spec.transformer_xl_attention(query, key, value, position[:, M:], u, v)
    assert not close(printed, nothing, within=1e-2)
    assert close(
        spec.transformer_xl_attention(query, *with_zeros, position, u, v, np.arange(M + N) >= M),
        nothing,
    )


def test_biases_of_the_shape_of_the_segment_know_where_a_query_stands():
    """
    Seed 003 gives u and v "the shape of w", one for each position; equal queries and keys then
    score by their place.
    """
    score = np.einsum(
        "ibnh,jbnh->ijbn", np.ones((N, B, H, D)) + normals((N, B, H, D))[0], np.ones((N, B, H, D))
    )
    assert np.ptp(score[:, 0, 0, 0]) > 0.1
    ones, position, u = np.ones((B, H, N, D)), np.zeros((H, N, D)), normals((H, D))[0]
    assert np.ptp(spec.transformer_xl_score(ones, ones, position, u, u)[0, 0, :, 0]) < 1e-12


# Masks, softmax and additive attention: seed 001

PRINTED_MASK = torch.tensor(
    [
        [False, False, False, True],
        [False, False, True, True],
        [False, True, True, True],
        [True, True, True, True],
    ]
)


def test_masked_fill_with_zero_before_a_softmax_hides_nothing():
    """
    Seed 001, section 2.3: ``b = a.masked_fill(mask, 0)``; a zero is a score like any other, and no
    low one.
    """
    a = from_numpy(normals((4, 4))[0])
    printed = torch.softmax(a.masked_fill(PRINTED_MASK, 0), dim=-1)
    assert (printed[PRINTED_MASK] > 0).all() and printed[3].tolist() == [0.25] * 4
    weights = spec.softmax(a.numpy(), ~PRINTED_MASK.numpy())
    assert not weights[PRINTED_MASK.numpy()].any()


def test_a_row_filled_with_minus_infinity_is_no_number_and_neither_is_the_gradient_by_any_value():
    """
    Seed 001, section 2.3, on its own example of a mask, whose last row hides every key; seed 004
    fills likewise.
    """
    query, key, value = (from_numpy(x).requires_grad_() for x in normals((4, D), (4, D), (4, E)))
    scores = (query @ key.T).masked_fill(PRINTED_MASK, float("-inf"))
    output = torch.softmax(scores, dim=-1) @ value
    assert output[3].isnan().all() and not output[:3].isnan().any()
    assert torch.autograd.grad(output[:3].sum(), value)[0].isnan().all()
    assert not spec.softmax(scores.detach().numpy())[3].any()


def filled(score: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """
    Seed 001, section 4: a boolean mask that hides every key, turned into -1e9 of the query's dtype
    and added.
    """
    attn_mask = torch.ones(score.shape, dtype=torch.bool)
    new_attn_mask = torch.zeros_like(attn_mask, dtype=dtype)
    new_attn_mask.masked_fill_(attn_mask, -1e9)
    return torch.softmax(from_numpy(score).to(dtype) + new_attn_mask, dim=-1)


def test_in_float64_a_row_filled_with_minus_1e9_attends_as_if_nothing_were_hidden():
    """Seed 001, section 4: the same constant on every key changes nothing."""
    score = 9 * normals((N, M))[0]
    assert close(filled(score, torch.float64).numpy(), spec.softmax(score), within=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_in_float32_a_row_filled_with_minus_1e9_attends_to_every_hidden_key_alike(dtype):
    """
    Seed 001, section 4: -1e9 swallows scores up to 32, half its last place; in bfloat16 scores up
    to 2e6.
    """
    score = np.linspace(-31.0, 31.0, N * M).reshape(N, M)
    assert close(filled(score, dtype).double().numpy(), np.full((N, M), 1 / M), within=1e-3)
    assert not spec.softmax(score, np.zeros((N, M), bool)).any()


def test_in_float32_scores_that_minus_1e9_does_not_swallow_are_rounded_to_multiples_of_64():
    """
    Seed 001, section 4: of two hidden keys with scores 31 and 33 the second takes all the weight.
    """
    assert filled(np.array([[31.0, 33.0]]), torch.float32)[0, 0] < 1e-27  # e^-64, not e^-2


def test_in_float16_minus_1e9_does_not_fit():
    """
    Seed 001, section 4: PyTorch refuses to fill; where a number that large is rounded to float16 it
    is -inf, and the row NaN.
    """
    with pytest.raises(RuntimeError, match="without overflow"):
        filled(normals((N, M))[0], torch.float16)
    assert torch.tensor(-1e9).half().item() == -math.inf


def test_minus_1e9_in_place_of_minus_infinity_shows_a_row_its_future():
    """
    Seed 001, section 4: ``attn_mask.masked_fill(key_padding_mask, -1e9)`` of a float mask
    overwrites the mask's own -inf.

    Under left padding the first query, whose only key is padded, then attends to padded keys behind
    it.
    """
    causal, padding = np.where(spec.causal_mask(N, N), 0.0, -np.inf), np.arange(N) < 2
    printed = from_numpy(causal).masked_fill(from_numpy(padding), -1e9)
    assert torch.softmax(printed, dim=-1)[0].tolist() == [0.5, 0.5, 0.0, 0.0, 0.0]
    assert not spec.softmax(np.zeros((N, N)), spec.merge_masks(causal, padding[None], 1)[0, 0])[
        0
    ].any()


def test_keys_of_minus_infinity_do_not_give_scores_of_minus_infinity():
    """
    Seed 001, section 4.1.1, explains padding as rows of K that become -inf, "so that" columns of
    the scores do.
    """
    query, key = np.array([[1.0, 2.0], [-1.0, -2.0], [1.0, -2.0]]), np.array([[-np.inf, -np.inf]])
    with np.errstate(invalid="ignore"):
        score = query @ key.T
    assert score[:2].ravel().tolist() == [-np.inf, np.inf] and np.isnan(score[2, 0])


def additive_as_printed(query, key, value, w_query, w_key, w_score, attn_mask=None):
    """``AdditiveAttention.forward`` of seed 001, section 2.3, without dropout."""
    query, key = (query @ w_query.T).unsqueeze(2), (key @ w_key.T).unsqueeze(1)
    scores = (torch.tanh(query + key) @ w_score[:, None]).squeeze()
    if attn_mask is not None:
        scores = scores.masked_fill(attn_mask, float("-inf"))
    return torch.softmax(scores, dim=-1) @ value


def additive_draw(batch: int, rows: int, columns: int) -> list[np.ndarray]:
    return normals((batch, rows, 2), (batch, columns, 3), (batch, columns, E), (4, 2), (4, 3), (4,))


@pytest.mark.parametrize("batch", [1, 3])
def test_squeeze_without_an_axis_does_no_harm_where_queries_and_keys_are_many(batch):
    """
    Seed 001, section 2: a batch of one loses its axis, and the product with the values brings it
    back.
    """
    draw = additive_draw(batch, N, M)
    assert close(
        additive_as_printed(*map(from_numpy, draw)).numpy(), spec.additive_attention(*draw)
    )


@pytest.mark.parametrize("masked", [False, True])
def test_squeeze_without_an_axis_crosses_every_query_with_every_batch_where_there_is_one_query(
    masked,
):
    """
    Seed 001, section 2: with N = 1 the scores are [B M], which the product takes for one matrix:
    [B B E] in silence.
    """
    draw = additive_draw(3, 1, M)
    mask = torch.zeros(3, 1, M, dtype=torch.bool) if masked else None
    assert additive_as_printed(*map(from_numpy, draw), mask).shape == (3, 3, E)
    assert spec.additive_attention(*draw).shape == (3, 1, E)


def test_squeeze_without_an_axis_drops_the_query_of_a_batch_of_one():
    """Seed 001, section 2: with B = N = 1 the output is [1 E]."""
    draw = additive_draw(1, 1, M)
    assert additive_as_printed(*map(from_numpy, draw)).shape == (1, E)
    assert spec.additive_attention(*draw).shape == (1, 1, E)


def test_squeeze_without_an_axis_lets_the_softmax_run_over_the_queries_where_there_is_one_key():
    """
    Seed 001, section 2: with M = 1 the last axis left is N; the softmax runs over it, and the
    product raises.
    """
    draw = additive_draw(3, N, 1)
    with pytest.raises(RuntimeError):
        additive_as_printed(*map(from_numpy, draw))
    scores = from_numpy(spec.additive_score(draw[0], draw[1], *draw[3:])).squeeze()
    assert close(torch.softmax(scores, dim=-1).sum(dim=-1).numpy(), np.ones(3))  # over N
    assert close(spec.additive_attention(*draw), np.broadcast_to(draw[2], (3, N, E)))


# ALiBi: seed 004


class Seed004:
    """
    The cache of ``AlibiMultiHeadAttention.forward``, and the attention around it, for one batch and
    head-first arrays.
    """

    def __init__(self) -> None:
        self.alibi_biases: np.ndarray | None = None

    def __call__(self, x: np.ndarray, mask: np.ndarray) -> np.ndarray:
        seq_len = x.shape[1]
        if self.alibi_biases is None or self.alibi_biases.shape[1] < seq_len:
            self.alibi_biases = np.moveaxis(
                spec.get_alibi_biases(H, mask), 0, -1
            )  # [seq_len_q, seq_len_k, n_heads], as printed
        scores = spec.scaled_dot_product_score(x, x) + np.moveaxis(
            self.alibi_biases[:seq_len, :seq_len], -1, 0
        )
        return spec.softmax(scores, mask) @ x


def test_biases_that_are_kept_by_length_alone_are_those_of_another_mask():
    """
    Seed 004: ``if self.alibi_biases is None or self.alibi_biases.shape[1] < seq_len``; the mask is
    not looked at.
    """
    x, window = normals((H, N, D))[0], spec.causal_mask(N, N) & ~np.tri(N, N, -3, dtype=bool)
    layer = Seed004()
    assert close(layer(x, window), Seed004()(x, window))
    full = np.ones((N, N), bool)
    assert not close(layer(x, full), Seed004()(x, full), within=1e-3)
    assert not close(layer(x[:, :3], full[:3, :3]), Seed004()(x[:, :3], full[:3, :3]), within=1e-3)


def test_masks_of_many_batches_are_described_and_refused():
    """
    Seed 004: "mask has shape [seq_len, seq_len, batch_size]" and ``assert ... mask.shape[2] == 1``.
    """
    mask = torch.ones(N, N, B, dtype=torch.bool)
    with pytest.raises(AssertionError):
        assert mask.shape[0] == mask.shape[1] and mask.shape[2] == 1
    x, visible = normals((B, H, N, D))[0], np.random.default_rng(0).random((B, 1, N, N)) < 0.7
    assert spec.alibi_attention(x, x, x, visible).shape == x.shape


def test_the_positions_that_a_comment_of_seed_004_would_use_are_the_counts_of_a_causal_mask_alone():
    """
    Seed 004: "since it's causal" the distance is arange; its code counts visible keys, another bias
    under any other mask.
    """
    visible = spec.causal_mask(N, N) & (np.arange(N) != 2)
    arange = np.where(visible, spec.get_slopes(H)[:, None, None] * np.arange(N), -np.inf)
    counted = np.where(visible, spec.get_alibi_biases(H, visible), -np.inf)
    assert not close(spec.softmax(arange), spec.softmax(counted), within=1e-3)
    x = normals((1, H, N, D))[0]
    assert close(
        spec.alibi_attention(x, x, x, visible), spec.scaled_dot_product_attention(x, x, x, arange)
    )


def test_the_closest_power_of_two_is_not_the_one_that_is_taken():
    """
    Seed 004: "the closest power of 2 to n_heads"; of 7 heads that were 8, and the code takes 4, as
    the next sentence says.
    """
    assert np.array_equal(spec.get_slopes(7)[:4], spec.get_slopes(4))
    assert not np.array_equal(spec.get_slopes(7), spec.get_slopes(8)[:7])

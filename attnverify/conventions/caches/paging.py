"""Conventions of caches in pages: how a page lies, what a length counts, how pages are listed."""

from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.conventions.grouping import in_turns, rows_of_results
from attnverify.conventions.layer_rows import Options, Row, with_arguments
from attnverify.conventions.packing import PACKING_ANSWERS
from attnverify.conventions.references import reference_of
from attnverify.conventions.visibility import both_ways, counting_itself

paged_attention = reference_of("paged_attention")
changed = partial(with_arguments, paged_attention)


def there(x: Options, table: Any = None) -> ndarray:
    """A table, the call's own by default, whose entries are pages that there are."""
    table = x["page_table"] if table is None else table
    return np.clip(table, 0, len(x["key_pages"]) - 1)


def slots(x: Options) -> int:
    """How many keys a sequence may have."""
    return int(x["key_pages"].shape[1] * x["page_table"].shape[1])


def starts_aligned(x: Options) -> ndarray:
    given: ndarray | None = x.get("offset")
    return 0 * x["lengths"] if given is None else given


def whole_pages(x: Options) -> ndarray:
    W = x["key_pages"].shape[1]
    return np.asarray(-(-x["lengths"] // W) * W)


def with_next_page(x: Options) -> ndarray:
    """Lengths that fill their last page, and a page more, where the table has one."""
    is_full = (x["lengths"] > 0) & (x["lengths"] % x["key_pages"].shape[1] == 0)
    return np.minimum(
        np.where(is_full, x["lengths"] + x["key_pages"].shape[1], x["lengths"]), slots(x)
    )


def own_places(x: Options) -> Any:
    """Rows that stand where the lengths of the call have them."""
    given = x.get("offset")
    return x["lengths"] - np.diff(x["query_starts"]) if given is None else given


def end_to_end(x: Options) -> ndarray:
    """The pages of a sequence behind those of the one before, in the rows of a table as one."""
    used = -(-x["lengths"] // x["key_pages"].shape[1])
    first = np.cumsum(used) - used
    flat, y = x["page_table"].ravel(), np.arange(x["page_table"].shape[1])
    return there(x, flat[np.minimum(first[:, None] + y, flat.size - 1)])


def rows_of_the_pool(x: Options) -> ndarray:
    """A table in rows as long as the pool has pages, its end read again behind the end."""
    flat, (B, Y) = x["page_table"].ravel(), x["page_table"].shape
    at = np.arange(B)[:, None] * len(x["key_pages"]) + np.arange(Y)
    return there(x, flat[np.minimum(at, flat.size - 1)])


def as_they_lie(x: Options) -> ndarray:
    """For each sequence the first pages of the pool."""
    order = np.arange(x["page_table"].shape[1]) % len(x["key_pages"])
    return np.broadcast_to(order, x["page_table"].shape)


def as_they_lie_for_prompts(x: Options) -> ndarray:
    several = np.diff(x["query_starts"]) > 1
    return np.where(several[:, None], as_they_lie(x), there(x))


def behind_each(size: int, x: Options) -> ndarray:
    """Of each ``size`` pages the first from the table, the others behind it in the pool."""
    y = np.arange(x["page_table"].shape[1])
    return there(x, there(x)[:, y // size * size] + y % size)


def heads_outside(name: str, x: Options) -> ndarray:
    """Pages whose heads lie before their slots: [Z G W D]."""
    Z, W, G, D = x[name].shape
    return np.asarray(x[name].reshape(Z, G, W, D).swapaxes(1, 2))


PAGING: tuple[Row, ...] = (
    ("page layout", "heads before slots", "pages read as if heads lay before slots",
     changed(key_pages=partial(heads_outside, "key_pages"), value_pages=partial(heads_outside,
      "value_pages"))),
    ("page table", "end to end", "the pages of all sequences taken from the table end to end",
     changed(page_table=end_to_end)),
    ("page table", "rows of the pool",
     "a page table read in rows as long as the pool has pages (another stride)",
     changed(page_table=rows_of_the_pool)),
    ("page table", "ignored", "the page table ignored, pages read in the order in which they lie",
     changed(page_table=as_they_lie)),
    ("page table", "ignored by prompts",
     "the page table ignored for sequences of several queries, whose pages are read in the order "
     "in which they lie", changed(page_table=as_they_lie_for_prompts)),
    ("page table", "every second page",
     "every second page taken from the pool behind the one before it, not from the page table",
     changed(page_table=partial(behind_each, 2))),
    ("page table", "the first page",
     "the pages of a sequence taken from the pool behind its first, not from the page table",
     changed(page_table=partial(behind_each, 2**20))),
    ("lengths", "without the rows", "lengths that leave out the rows of the call",
     changed(lengths=lambda x: np.minimum(x["lengths"] + np.diff(x["query_starts"]), slots(x)),
      page_table=there)),
    ("lengths", "of whole pages", "lengths rounded up to whole pages",
     changed(lengths=whole_pages, page_table=there)),
    ("lengths", "and the next page where they fill one", "the page behind the end read too, "
     "where a length is a multiple of the page size",
     changed(lengths=with_next_page, page_table=there, offset=own_places)),
    ("alignment", "starts", "each sequence aligned at its start", changed(offset=starts_aligned)),
    ("shared heads", "in turn", "query heads that read the heads of keys in turn",
     changed(**in_turns("key_pages", "value_pages", axis=2))),
    ("window counts", "the row's own key too", "a window that counts the row's own key",
     changed(window=counting_itself, page_table=there)),
    ("window counts", "both sides", "a left window on both sides", changed(window=both_ways)),
    ("window counts", "nothing", "windows ignored",
     changed(window=lambda x: None, page_table=there)),
    *rows_of_results(paged_attention),
    ("a scale", "ignored", "a given scale ignored", changed(scale=lambda x: None)),
)  # fmt: skip

ALSO_PACKED = (
    *("alignment", "shared heads", "window counts", "soft cap", "sink", "sink in the lse"),
    *("lse base", "a row of no key", "a scale"),
)

PAGING_ANSWERS = {
    "page layout": "slots before heads",
    "page table": "a row for each sequence",
    "lengths": "all keys, and no more",
} | {asked: PACKING_ANSWERS[asked] for asked in ALSO_PACKED}
"""What the specification answers."""

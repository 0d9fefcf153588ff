"""What the field calls the operations of the catalogue."""

__all__ = ["FIRST", "IN_THE_FIELD"]

FIRST = "scaled_dot_product_attention"
"""What is meant by attention alone, where a part of a word is that of several."""

IN_THE_FIELD = {
    **dict.fromkeys(("attention", "sdpa", "flash", "flash_attention"), FIRST),
    **dict.fromkeys(("gqa", "mqa", "swa", "grouped_query", "multi_query"), "grouped_attention"),
    **dict.fromkeys(("grouped_query_attention", "multi_query_attention"), "grouped_attention"),
    "sliding_window_attention": "grouped_attention",
    **dict.fromkeys(("rope", "rotary"), "rotary_embedding"),
    **dict.fromkeys(("varlen", "flash_attn_varlen"), "packed_attention"),
    "mha": "multi_head_attention",
    "mla": "latent_attention",
    **dict.fromkeys(("nsa", "moba", "sparse", "native_sparse", "selective"), "selected_attention"),
}
"""Names that the field has for operations."""

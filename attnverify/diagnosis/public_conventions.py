"""
Public packages that compute what a mistake's words say: each was run beside the specification, by
the files under examples/ and by tests/attnverify/diagnosis/test_public_conventions.py.
"""

from attnverify.diagnosis.mistakes.sentinels import BUT_FOR_EMPTY, HALF, IN_FLOAT32, LOWEST, XLNET

PUBLIC = {
    "NaN in rows that see no key": "PyTorch's nn.MultiheadAttention and labml-nn",
    "rows that see no key averaging all values": "Hugging Face's BLOOM and MPT",
    XLNET: "Hugging Face's XLNet",
    f"{LOWEST} added to hidden scores": "Hugging Face's BLOOM",
    f"{LOWEST} added to hidden scores{IN_FLOAT32}": "Hugging Face's BLOOM",
    f"hidden scores at {LOWEST}": "Hugging Face's MPT",
    f"hidden scores at {LOWEST}{IN_FLOAT32}": "Hugging Face's MPT",
    f"hidden scores at {LOWEST}{BUT_FOR_EMPTY}{IN_FLOAT32}": "x-transformers' Attend",
    HALF: "x-transformers' Attend with flash=True",
    "an ALiBi bias that counts visible keys": "labml-nn's get_alibi_biases",
    "no memory taken as an empty one, and everything kept at mem_len 0": "Hugging Face's XLNet",
    "a mask of which True means hidden": "PyTorch's nn.MultiheadAttention",
    "a top-left causal mask where none is given": "PyTorch's is_causal",
}
"""The words of a mistake, and whose code has it."""

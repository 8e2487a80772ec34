"""The binding of decode.cpp: the engine's forward pass over a paged cache, and the sampling of tokens.

The residual, norms, softmax and logits are float32 whatever the weights and the cache are.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

from .build import load_library

SOURCE = Path(__file__).with_name("decode.cpp")
PAGE = 64  # positions of a page of the cache, as in decode.cpp
ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh")  # in the order of decode.cpp
QKV, OUT, GATE_UP, DOWN = range(4)  # matrices of a layer
INPUT_NORM, POST_ATTENTION_NORM, PRE_MLP_NORM, POST_MLP_NORM, Q_NORM, K_NORM = range(6)  # norms of a layer

INTEGERS = ("vocab", "width", "layers", "heads", "kv_heads", "head_dim", "hidden", "activation", "sandwich", "qk_norm")
NUMBERS = ("eps", "scale", "score_cap", "logit_cap", "embedding_scale")


class Shape(ctypes.Structure):
    """A model's shape, as decode.cpp reads it."""

    _fields_ = [(name, ctypes.c_int64) for name in INTEGERS] + [(name, ctypes.c_double) for name in NUMBERS]


@functools.cache
def decode_library() -> ctypes.CDLL | str:
    """The library of decode.cpp with typed calls, or the reason (a string) why there is none."""
    lib = load_library(SOURCE)
    return lib if isinstance(lib, str) else _bound(lib)


def _bound(lib: ctypes.CDLL) -> ctypes.CDLL:
    p, i = ctypes.c_void_p, ctypes.c_int64
    for name, given, result in [
        ("lanes", [], i),
        ("page", [], i),
        ("large_pages", [p, i], None),
        ("model_new", [p, i], p),
        ("model_free", [p], None),
        ("model_embedding", [p, p], None),
        ("model_matrix", [p, i, i, p, i, i, p, i], None),
        ("model_norm", [p, i, i, p, i], None),
        ("model_layer", [p, i, i, p, p], None),
        ("model_forward", [p, p, p, i, p, i, p, p, p, i, p, p, p, p, i], None),
        ("model_logits", [p, p, p, i, p, i], None),
        ("draw", [p, i, i, p, p, i, i, p, p, i], None),
        ("generate", [p, p, p, i, p, i, p, p, i, p, p, p, p, p, p, p, i, i, i, i], i),
    ]:
        call = getattr(lib, name)
        call.argtypes, call.restype = given, result
    assert lib.page() == PAGE
    return lib

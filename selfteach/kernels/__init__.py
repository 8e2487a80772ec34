"""CPU kernels: C++ sources, the builder, the bindings, and the overrides that the model calls.

    build.py                        compiles a source on first use, into a private folder of the user's cache
    overrides.py                    the operations of the transformer that a kernel may compute, and the active kernels
    decode.cpp, decode.py           the engine's step: one forward pass over a paged cache, and sampling
    layer_ops.cpp, layer_ops.py     norms, rotary positions, gated units and attention, forward and backward
    matmul_bf16.cpp, matmul_bf16.py bf16 matmuls with float32 sums: linear layers, their gradients, the output head
    fast_paths.py                   the kernels and matmul settings that a learner uses
    vectors.h, matmul_tile.h        headers of the sources

Each kernel has an equivalent in torch, which is used where there is no compiler. Models, engines and learners are not
imported here.
"""

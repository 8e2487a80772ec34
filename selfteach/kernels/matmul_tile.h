// The inner loop of bf16 matmuls with float32 sums: a few rows of the left side times one panel of the right.
//
// A panel is NR columns, pairs of rows adjacent: [row / 2][NR][2].

#pragma once
#include "vectors.h"

namespace bf16 {

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int MR = 12;
#else
constexpr int MR = 6;
#endif
constexpr int NR = 2 * W;

// R rows of a times one panel, `pairs` deep, onto `out`: element (r, pair i) of a is at a + r * row + i * step. Not inlined: with
// the use of its result inlined, the compiler would take registers away from it.
template <int R> __attribute__((noinline)) void tile(const half *a, long row, long step, const half *b, long deep, bool more, vf (&out)[MR][2]) {
    vf acc[R][2];
    for (int r = 0; r < R; r++)
        for (int c = 0; c < 2; c++) acc[r][c] = more ? out[r][c] : vf{};
    for (long i = 0; i < deep; i++, a += step, b += 2 * NR) {
        vu b0 = pairs(b), b1 = pairs(b + NR);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
            uint32_t pair = pair_at(a + r * row);
            acc[r][0] = dot(acc[r][0], pair, b0);
            acc[r][1] = dot(acc[r][1], pair, b1);
        }
    }
    for (int r = 0; r < R; r++)
        for (int c = 0; c < 2; c++) out[r][c] = acc[r][c];
}

inline void tile_of(long rows, const half *a, long row, long step, const half *b, long deep, bool more, vf (&out)[MR][2]) {
    switch (rows) {
#define CASE(R) case R: if (R <= MR) tile<(R <= MR ? R : 1)>(a, row, step, b, deep, more, out); break;
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#undef CASE
    }
}

} // namespace bf16

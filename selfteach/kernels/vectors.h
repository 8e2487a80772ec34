// Vectors of W floats, and bf16 numbers in them: what the C++ files here share.

#pragma once
#include <cstdint>
#include <cstring>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int W = 16;
#elif defined(__AVX__)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif

typedef float vf __attribute__((vector_size(4 * W)));
typedef int32_t vi __attribute__((vector_size(4 * W)));
typedef uint32_t vu __attribute__((vector_size(4 * W)));
typedef uint16_t vh __attribute__((vector_size(2 * W)));
typedef uint16_t half; // a bf16 number

inline long up(long n, long unit) { return (n + unit - 1) / unit * unit; }
inline vf splat(float x) { return x - vf{}; }
inline vf load(const float *p) { vf v; memcpy(&v, p, sizeof v); return v; }
inline vf load(const half *p) {
    vh v;
    memcpy(&v, p, sizeof v);
    return (vf)(__builtin_convertvector(v, vu) << 16);
}
inline void store(float *p, vf v) { memcpy(p, &v, sizeof v); }
inline void store(half *p, vf v) { // to the nearest, ties to even; NaN stays NaN
#if defined(__AVX512BF16__)
    auto h = _mm512_cvtneps_pbh((__m512)v);
    memcpy(p, &h, sizeof h);
#else
    vu u = (vu)v, r = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    r = v == v ? r : (vu)((u >> 16) | 0x40);
    vh h = __builtin_convertvector(r, vh);
    memcpy(p, &h, sizeof h);
#endif
}
inline half round_half(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return x == x ? (half)((u + 0x7fff + ((u >> 16) & 1)) >> 16) : (half)((u >> 16) | 0x40);
}
inline float widen(float x) { return x; }
inline float widen(half x) {
    uint32_t u = (uint32_t)x << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
inline void put(float *p, float x) { *p = x; }
inline void put(half *p, float x) { *p = round_half(x); }

template <class T> inline vf load_some(const T *p, long n) { // the first n < W, then zeros
    T x[W] = {};
    memcpy(x, p, n * sizeof(T));
    return load(x);
}
template <class T> inline void store_some(T *p, vf v, long n) {
    T x[W];
    store(x, v);
    memcpy(p, x, n * sizeof(T));
}
template <class T> inline vf take(const T *p, long left) { return left >= W ? load(p) : load_some(p, left); }
template <class T> inline void put(T *p, vf v, long left) {
    if (left >= W) store(p, v);
    else store_some(p, v, left);
}

// Across a vector: a sum in order, and a sum and a maximum by halves, which are faster.
inline float total(vf v) {
    float s = 0;
    for (int i = 0; i < W; i++) s += v[i];
    return s;
}
inline float sum_by_halves(vf v) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)v);
#else
    float x[W];
    store(x, v);
    for (int h = W / 2; h; h /= 2)
        for (int i = 0; i < h; i++) x[i] += x[i + h];
    return x[0];
#endif
}
inline float max_across(vf v) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)v);
#else
    float x[W];
    store(x, v);
    for (int h = W / 2; h; h /= 2)
        for (int i = 0; i < h; i++) x[i] = x[i] > x[i + h] ? x[i] : x[i + h];
    return x[0];
#endif
}
inline vf maximum(vf a, vf b) { return a > b ? a : b; }

// e^x to two units in the last place; 0 below -87
inline vf exp_(vf x) {
    vf y = x > 88.3f ? splat(88.3f) : x;
    y = y < -87.3f ? splat(-87.3f) : y;
    vf t = y * 1.44269504f + 12582912.0f; // 1.5 * 2^23: rounds to a whole number in the low bits
    vi n = (vi)t - 0x4B400000;
    t = t - 12582912.0f;
    vf r = y - t * 0.693359375f;
    r = r - t * -2.12194440e-4f;
    vf p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    vf out = p * (vf)((n + 127) << 23);
    out = x < -87.3f ? vf{} : out;
    return x == x ? out : x;
}

inline vf tanh_(vf x) { return 1.0f - 2.0f / (exp_(2.0f * x) + 1.0f); }

// Two adjacent bf16 numbers in 32 bits, the one of even k low. a's pair times W pairs: acc += a0 w0 + a1 w1.
inline uint32_t pair_at(const half *p) { uint32_t u; memcpy(&u, p, 4); return u; }
inline vu pairs(const half *p) { vu v; memcpy(&v, p, sizeof v); return v; }
inline vf dot(vf acc, uint32_t a, vu w) {
#if defined(__AVX512BF16__)
    return (vf)_mm512_dpbf16_ps((__m512)acc, (__m512bh)w, (__m512bh)_mm512_set1_epi32((int)a));
#else
    acc += (vf)((a << 16) + vu{}) * (vf)(w << 16);
    acc += (vf)((a & 0xffff0000u) + vu{}) * (vf)(w & 0xffff0000u);
    return acc;
#endif
}
// W pairs (a, b) from two rows
inline vu interleaved(const half *a, const half *b) {
    vh x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return __builtin_convertvector(x, vu) | __builtin_convertvector(y, vu) << 16;
}

} // namespace

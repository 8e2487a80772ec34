// What stands between the matrix products of a learner, there and back: norms, rotary positions, the gated unit, attention over flat texts
// and their branches. Built at first use (model/native.py), called through ctypes by fused.py, which says the same in torch.
//
// Arithmetic is float32, inputs and outputs are float32 or bf16. No number depends on how work is shared among threads, but for the
// gradient of a norm's weight, which is summed by threads in their order: the same number of threads gives the same bits.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif
#if defined(_OPENMP)
#include <omp.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int W = 16, MR = 8;
#else
constexpr int W = 8, MR = 4;
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
inline void store(half *p, vf v) { // to the nearest, ties to even; not a number stays one
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

// Sums and maxima across a vector, by halves.
inline float total(vf v) {
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
inline float most_of(vf v) {
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

// ---- norms: y = x / sqrt(mean(x^2) + eps) * (shift + w)

template <class X, class Y>
void norm(const X *x, const float *w, Y *y, float *scale, long n, long d, float eps, float shift, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long i = 0; i < n; i++) {
        const X *a = x + i * d;
        vf s = {};
        for (long j = 0; j < d; j += W) {
            vf v = take(a + j, d - j);
            s += v * v;
        }
        float r = 1.0f / __builtin_sqrtf(total(s) / d + eps);
        scale[i] = r;
        for (long j = 0; j < d; j += W) put(y + i * d + j, take(a + j, d - j) * r * (take(w + j, d - j) + shift), d - j);
    }
}

// with h = g (shift + w): dx = r (h - x r^2 mean(x h)), dw = sum over rows of g x r
template <class X, class Y>
void norm_back(const X *x, const float *w, const float *scale, const Y *g, X *dx, float *dw, long n, long d, float shift, int threads) {
    long wide = up(d, W);
    std::vector<float> parts(dw ? threads * wide : 0, 0.0f);
#pragma omp parallel num_threads(threads)
    {
#if defined(_OPENMP)
        long me = omp_get_thread_num(), all = omp_get_num_threads();
#else
        long me = 0, all = 1;
#endif
        float *mine = dw ? parts.data() + me * wide : nullptr;
        for (long i = n * me / all; i < n * (me + 1) / all; i++) {
            const X *a = x + i * d;
            const Y *b = g + i * d;
            float r = scale[i];
            vf s = {};
            for (long j = 0; j < d; j += W) s += take(a + j, d - j) * take(b + j, d - j) * (take(w + j, d - j) + shift);
            float m = total(s) / d * r * r;
            for (long j = 0; j < d; j += W) {
                vf v = take(a + j, d - j), u = take(b + j, d - j);
                if (mine) store(mine + j, load(mine + j) + u * v * r);
                put(dx + i * d + j, (u * (take(w + j, d - j) + shift) - v * m) * r, d - j);
            }
        }
    }
    if (dw)
        for (long j = 0; j < d; j++) {
            float s = 0;
            for (int t = 0; t < threads; t++) s += parts[t * wide + j];
            dw[j] = s;
        }
}

// ---- the gated unit: y = silu(a) b

template <class T> void gate(const T *a, const T *b, T *y, long n, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long i = 0; i < n; i += W) {
        vf v = take(a + i, n - i);
        put(y + i, v / (1.0f + exp_(-v)) * take(b + i, n - i), n - i);
    }
}

template <class T> void gate_back(const T *a, const T *b, const T *g, T *da, T *db, long n, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long i = 0; i < n; i += W) {
        vf v = take(a + i, n - i), u = take(b + i, n - i), h = take(g + i, n - i), s = 1.0f / (1.0f + exp_(-v));
        put(da + i, h * u * s * (1.0f + v * (1.0f - s)), n - i);
        put(db + i, h * v * s, n - i);
    }
}

// ---- rotary positions: halves (a, b) of a head become (a cos - b sin, b cos + a sin); the way back turns the other way

template <class T> inline float one(T x);
template <> inline float one(float x) { return x; }
template <> inline float one(half x) { return __builtin_bit_cast(float, (uint32_t)x << 16); }
inline void set(float *p, float x) { *p = x; }
inline void set(half *p, float x) {
    uint32_t u = __builtin_bit_cast(uint32_t, x);
    *p = (half)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

template <class T> void turn(const T *x, const float *cos, const float *sin, T *y, long n, long heads, long hd, int back, int threads) {
    long m = hd / 2;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long i = 0; i < n; i++)
        for (long h = 0; h < heads; h++) {
            const T *a = x + (i * heads + h) * hd;
            T *o = y + (i * heads + h) * hd;
            const float *c = cos + i * hd, *s = sin + i * hd;
            if (m % W == 0)
                for (long j = 0; j < m; j += W) {
                    vf p = load(a + j), q = load(a + j + m), c1 = load(c + j), c2 = load(c + j + m), s1 = load(s + j), s2 = load(s + j + m);
                    store(o + j, back ? p * c1 + q * s2 : p * c1 - q * s1);
                    store(o + j + m, back ? q * c2 - p * s1 : q * c2 + p * s2);
                }
            else
                for (long j = 0; j < m; j++) {
                    float p = one(a[j]), q = one(a[j + m]);
                    set(o + j, back ? p * c[j] + q * s[j + m] : p * c[j] - q * s[j]);
                    set(o + j + m, back ? q * c[j + m] - p * s[j] : q * c[j + m] + p * s[j + m]);
                }
        }
}

// ---- sums of float32 and bf16: y = x + z

void sum(const float *x, const half *z, float *y, long n, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long i = 0; i < n; i += W) put(y + i, take(x + i, n - i) + take(z + i, n - i), n - i);
}

// ---- attention

// C[MR][NV W] (+)= A B, A's element (i, k) at A[i ar + k ak], B and C by rows
template <int NV> inline void tile(const float *A, long ar, long ak, const float *B, long ldb, float *C, long ldc, long K, bool more) {
    vf c[MR][NV];
    for (int i = 0; i < MR; i++)
        for (int v = 0; v < NV; v++) c[i][v] = more ? load(C + i * ldc + v * W) : vf{};
    for (long k = 0; k < K; k++) {
        vf b[NV];
        for (int v = 0; v < NV; v++) b[v] = load(B + k * ldb + v * W);
        for (int i = 0; i < MR; i++) {
            vf a = splat(A[i * ar + k * ak]);
            for (int v = 0; v < NV; v++) c[i][v] += a * b[v];
        }
    }
    for (int i = 0; i < MR; i++)
        for (int v = 0; v < NV; v++) store(C + i * ldc + v * W, c[i][v]);
}

// MR rows of a product, N columns (a multiple of W)
inline void strip(const float *A, long ar, long ak, const float *B, long ldb, float *C, long ldc, long N, long K, bool more) {
    long j = 0;
    for (; j + 2 * W <= N; j += 2 * W) tile<2>(A, ar, ak, B + j, ldb, C + j, ldc, K, more);
    for (; j < N; j += W) tile<1>(A, ar, ak, B + j, ldb, C + j, ldc, K, more);
}

struct Piece { // tokens begin .. begin + count of the flat ones, which stand after `before` tokens of their family's base
    int64_t begin, count, before;
};

struct Shape {
    long heads, kv, hd, wide, group, window; // wide: hd rounded up to vectors
    float scale;
};

struct Memory { // of one thread
    std::vector<float> data;
    float *at = nullptr;
    void reset(long n) {
        if ((long)data.size() < n + 16) data.resize(n + 16);
        at = (float *)(((uintptr_t)data.data() + 63) & ~(uintptr_t)63);
    }
    float *get(long n) { float *p = at; at += up(n, 16); return p; }
};

template <class T> void rows_in(const T *x, long stride, long count, long hd, long wide, float factor, float *out) {
    for (long i = 0; i < count; i++)
        for (long j = 0; j < wide; j += W) {
            long left = hd - j;
            store(out + i * wide + j, left > 0 ? take(x + i * stride + j, left) * factor : vf{});
        }
}

void across(const float *x, long count, long wide, float *out, long ld) { // out[d][i] = x[i][d]
    for (long d = 0; d < wide; d++)
        for (long i = 0; i < count; i++) out[d * ld + i] = x[i * wide + d];
}

// the scores of MR rows (token t of the piece and head h: row t group + h) -> e^(s - max) or e^(s - lse), 0 where a row does not look
inline void weigh(const Shape &s, float *S, long ld, long limit, long row, const Piece &p, float *best, float *sum, const float *lse) {
    vi lane;
    for (int l = 0; l < W; l++) lane[l] = l;
    for (int i = 0; i < MR; i++) {
        long t = (row + i) / s.group;
        float *a = S + i * ld;
        int end = t < p.count ? p.before + t + 1 : 0, low = s.window > 0 && end > s.window ? end - s.window : 0;
        auto seen = [&](long j) { // far below any score where the row does not look: its weight is 0
            vi at = lane + (int)j;
            return (at < end) & (at >= low) ? load(a + j) : splat(-1e30f);
        };
        float top = 0;
        if (lse) top = lse[i];
        else {
            vf m = splat(-1e30f);
            for (long j = 0; j < limit; j += W) {
                vf v = seen(j);
                m = v > m ? v : m;
            }
            top = most_of(m);
        }
        vf all = {};
        for (long j = 0; j < limit; j += W) {
            vf e = exp_(seen(j) - top);
            store(a + j, e);
            all += e;
        }
        if (!lse) best[i] = top, sum[i] = total(all);
    }
}

template <class T>
void attend(const Shape &s, const Piece *pieces, const int64_t *family, long families, const T *q, const T *k, const T *v, T *out, float *lse, int threads) {
#pragma omp parallel num_threads(threads)
    {
        Memory memory;
#pragma omp for schedule(dynamic) collapse(2)
        for (long f = 0; f < families; f++)
            for (long g = 0; g < s.kv; g++) {
                long most = 0, rows = 0;
                for (long n = family[f]; n < family[f + 1]; n++) {
                    most = std::max<long>(most, pieces[n].before + pieces[n].count);
                    rows = std::max<long>(rows, pieces[n].count);
                }
                long ld = up(most, W) + W;
                memory.reset(2 * ld * s.wide + rows * s.wide + (rows * s.group + 2 * MR) * s.wide + MR * ld + MR * s.wide + 256);
                float *kt = memory.get(s.wide * ld), *vv = memory.get(ld * s.wide), *own = memory.get(rows * s.wide);
                float *qq = memory.get((rows * s.group + MR) * s.wide), *S = memory.get(MR * ld), *O = memory.get(MR * s.wide);
                memset(kt, 0, s.wide * ld * 4);
                memset(vv, 0, ld * s.wide * 4);
                for (long n = family[f]; n < family[f + 1]; n++) {
                    const Piece &p = pieces[n];
                    rows_in(k + (p.begin * s.kv + g) * s.hd, s.kv * s.hd, p.count, s.hd, s.wide, 1.0f, own);
                    across(own, p.count, s.wide, kt + p.before, ld);
                    rows_in(v + (p.begin * s.kv + g) * s.hd, s.kv * s.hd, p.count, s.hd, s.wide, 1.0f, vv + p.before * s.wide);
                    long m = p.count * s.group;
                    for (long t = 0; t < p.count; t++)
                        rows_in(q + ((p.begin + t) * s.heads + g * s.group) * s.hd, s.hd, s.group, s.hd, s.wide, s.scale, qq + t * s.group * s.wide);
                    memset(qq + m * s.wide, 0, MR * s.wide * 4);
                    for (long row = 0; row < m; row += MR) {
                        long last = std::min(row + MR, m) - 1, limit = up(p.before + last / s.group + 1, W);
                        float best[MR], sum[MR];
                        strip(qq + row * s.wide, s.wide, 1, kt, ld, S, ld, limit, s.wide, false);
                        weigh(s, S, ld, limit, row, p, best, sum, nullptr);
                        strip(S, ld, 1, vv, s.wide, O, s.wide, s.wide, limit, false);
                        for (long i = 0; row + i <= last; i++) {
                            long t = (row + i) / s.group, h = g * s.group + (row + i) % s.group, to = (p.begin + t) * s.heads + h;
                            lse[to] = best[i] + __builtin_logf(sum[i]);
                            for (long j = 0; j < s.hd; j += W) put(out + to * s.hd + j, load(O + i * s.wide + j) / sum[i], s.hd - j);
                        }
                    }
                }
            }
    }
}

template <class T>
void attend_back(const Shape &s, const Piece *pieces, const int64_t *family, long families, const T *q, const T *k, const T *v, const T *out,
                 const float *lse, const T *grad, T *dq, T *dk, T *dv, int threads) {
    constexpr long BLOCK = 8 * MR; // rows whose weights are held for the products down the columns
#pragma omp parallel num_threads(threads)
    {
        Memory memory;
#pragma omp for schedule(dynamic) collapse(2)
        for (long f = 0; f < families; f++)
            for (long g = 0; g < s.kv; g++) {
                long most = 0, rows = 0;
                for (long n = family[f]; n < family[f + 1]; n++) {
                    most = std::max<long>(most, pieces[n].before + pieces[n].count);
                    rows = std::max<long>(rows, pieces[n].count);
                }
                long ld = up(most, W) + W, tall = (rows * s.group + BLOCK) * s.wide;
                memory.reset(6 * ld * s.wide + 2 * tall + 2 * BLOCK * ld + MR * s.wide + 256);
                float *kk = memory.get(ld * s.wide), *vv = memory.get(ld * s.wide), *kt = memory.get(ld * s.wide), *vt = memory.get(ld * s.wide);
                float *ek = memory.get(ld * s.wide), *ev = memory.get(ld * s.wide), *qq = memory.get(tall), *gg = memory.get(tall);
                float *P = memory.get(BLOCK * ld), *D = memory.get(BLOCK * ld), *O = memory.get(MR * s.wide);
                for (float *x : {kk, vv, kt, vt, ek, ev}) memset(x, 0, ld * s.wide * 4);
                auto out_rows = [&](const Piece &p, float *x, T *to) { // a piece's own keys: their gradient is whole
                    for (long t = 0; t < p.count; t++)
                        for (long j = 0; j < s.hd; j += W)
                            put(to + ((p.begin + t) * s.kv + g) * s.hd + j, load(x + (p.before + t) * s.wide + j), s.hd - j);
                };
                for (long n = family[f]; n < family[f + 1]; n++) {
                    const Piece &p = pieces[n];
                    long m = p.count * s.group, all = p.before + p.count;
                    rows_in(k + (p.begin * s.kv + g) * s.hd, s.kv * s.hd, p.count, s.hd, s.wide, 1.0f, kk + p.before * s.wide);
                    rows_in(v + (p.begin * s.kv + g) * s.hd, s.kv * s.hd, p.count, s.hd, s.wide, 1.0f, vv + p.before * s.wide);
                    across(kk + p.before * s.wide, p.count, s.wide, kt + p.before, ld);
                    across(vv + p.before * s.wide, p.count, s.wide, vt + p.before, ld);
                    memset(ek + p.before * s.wide, 0, (ld - p.before) * s.wide * 4);
                    memset(ev + p.before * s.wide, 0, (ld - p.before) * s.wide * 4);
                    for (long t = 0; t < p.count; t++) {
                        long at = ((p.begin + t) * s.heads + g * s.group) * s.hd;
                        rows_in(q + at, s.hd, s.group, s.hd, s.wide, s.scale, qq + t * s.group * s.wide);
                        rows_in(grad + at, s.hd, s.group, s.hd, s.wide, 1.0f, gg + t * s.group * s.wide);
                    }
                    memset(qq + m * s.wide, 0, BLOCK * s.wide * 4);
                    memset(gg + m * s.wide, 0, BLOCK * s.wide * 4);
                    for (long b = 0; b < m; b += BLOCK) {
                        long stop = std::min(b + BLOCK, m), held = up(stop - b, MR), reach = up(p.before + (stop - 1) / s.group + 1, W);
                        for (long row = b; row < b + held; row += MR) {
                            long last = std::min(row + MR, m) - 1, limit = up(p.before + last / s.group + 1, W);
                            float *S = P + (row - b) * ld, *E = D + (row - b) * ld, told[MR] = {}, mean[MR] = {};
                            for (long i = 0; row + i <= last; i++) {
                                long at = (p.begin + (row + i) / s.group) * s.heads + g * s.group + (row + i) % s.group;
                                told[i] = lse[at];
                                vf sum = {};
                                for (long j = 0; j < s.hd; j += W)
                                    sum += take(out + at * s.hd + j, s.hd - j) * load(gg + (row + i) * s.wide + j);
                                mean[i] = total(sum);
                            }
                            strip(qq + row * s.wide, s.wide, 1, kt, ld, S, ld, limit, s.wide, false);
                            weigh(s, S, ld, limit, row, p, nullptr, nullptr, told);
                            strip(gg + row * s.wide, s.wide, 1, vt, ld, E, ld, limit, s.wide, false);
                            for (int i = 0; i < MR; i++) {
                                for (long j = 0; j < limit; j += W) store(E + i * ld + j, load(S + i * ld + j) * (load(E + i * ld + j) - mean[i]));
                                for (long j = limit; j < reach; j += W) store(E + i * ld + j, vf{}), store(S + i * ld + j, vf{});
                            }
                            strip(E, ld, 1, kk, s.wide, O, s.wide, s.wide, limit, false);
                            for (long i = 0; row + i <= last; i++) {
                                long at = (p.begin + (row + i) / s.group) * s.heads + g * s.group + (row + i) % s.group;
                                for (long j = 0; j < s.hd; j += W) put(dq + at * s.hd + j, load(O + i * s.wide + j) * s.scale, s.hd - j);
                            }
                        }
                        for (long j = 0; j < reach; j += MR) {
                            strip(P + j, 1, ld, gg + b * s.wide, s.wide, ev + j * s.wide, s.wide, s.wide, held, true);
                            strip(D + j, 1, ld, qq + b * s.wide, s.wide, ek + j * s.wide, s.wide, s.wide, held, true);
                        }
                    }
                    if (n > family[f]) out_rows(p, ek, dk), out_rows(p, ev, dv);
                    (void)all;
                }
                out_rows(pieces[family[f]], ek, dk), out_rows(pieces[family[f]], ev, dv); // the base, seen by itself and by its branches
            }
    }
}

} // namespace

extern "C" {

#define EACH(bf16, call) \
    if (bf16) { using T = half; call; } else { using T = float; call; }

void norm_forward(const void *x, const float *w, void *y, float *scale, int64_t n, int64_t d, double eps, double shift, int64_t xh, int64_t yh, int64_t threads) {
    if (xh && yh) norm((const half *)x, w, (half *)y, scale, n, d, eps, shift, threads);
    else if (xh) norm((const half *)x, w, (float *)y, scale, n, d, eps, shift, threads);
    else if (yh) norm((const float *)x, w, (half *)y, scale, n, d, eps, shift, threads);
    else norm((const float *)x, w, (float *)y, scale, n, d, eps, shift, threads);
}

void norm_backward(const void *x, const float *w, const float *scale, const void *g, void *dx, float *dw, int64_t n, int64_t d, double shift, int64_t xh, int64_t yh, int64_t threads) {
    if (xh && yh) norm_back((const half *)x, w, scale, (const half *)g, (half *)dx, dw, n, d, shift, threads);
    else if (xh) norm_back((const half *)x, w, scale, (const float *)g, (half *)dx, dw, n, d, shift, threads);
    else if (yh) norm_back((const float *)x, w, scale, (const half *)g, (float *)dx, dw, n, d, shift, threads);
    else norm_back((const float *)x, w, scale, (const float *)g, (float *)dx, dw, n, d, shift, threads);
}

void gate_forward(const void *a, const void *b, void *y, int64_t n, int64_t bf16, int64_t threads) {
    EACH(bf16, gate((const T *)a, (const T *)b, (T *)y, n, threads))
}

void gate_backward(const void *a, const void *b, const void *g, void *da, void *db, int64_t n, int64_t bf16, int64_t threads) {
    EACH(bf16, gate_back((const T *)a, (const T *)b, (const T *)g, (T *)da, (T *)db, n, threads))
}

void add(const float *x, const void *z, float *y, int64_t n, int64_t threads) { sum(x, (const half *)z, y, n, threads); }

void rotate(const void *x, const float *cos, const float *sin, void *y, int64_t n, int64_t heads, int64_t hd, int64_t back, int64_t bf16, int64_t threads) {
    EACH(bf16, turn((const T *)x, cos, sin, (T *)y, n, heads, hd, back, threads))
}

void attend_forward(const void *q, const void *k, const void *v, void *out, float *lse, const int64_t *pieces, const int64_t *family, int64_t families,
                    int64_t heads, int64_t kv, int64_t hd, int64_t window, double scale, int64_t bf16, int64_t threads) {
    Shape s{heads, kv, hd, up(hd, W), heads / kv, window, (float)scale};
    EACH(bf16, attend(s, (const Piece *)pieces, family, families, (const T *)q, (const T *)k, (const T *)v, (T *)out, lse, threads))
}

void attend_backward(const void *q, const void *k, const void *v, const void *out, const float *lse, const void *grad, void *dq, void *dk, void *dv,
                     const int64_t *pieces, const int64_t *family, int64_t families, int64_t heads, int64_t kv, int64_t hd, int64_t window,
                     double scale, int64_t bf16, int64_t threads) {
    Shape s{heads, kv, hd, up(hd, W), heads / kv, window, (float)scale};
    EACH(bf16, attend_back(s, (const Piece *)pieces, family, families, (const T *)q, (const T *)k, (const T *)v, (const T *)out, lse, (const T *)grad,
                           (T *)dq, (T *)dk, (T *)dv, threads))
}
}

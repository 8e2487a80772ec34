// What a learner computes between matmuls, forward and backward: norms, rotary positions, the gated unit, attention over flat texts and
// their branches. Built at first use (build.py), called through ctypes by layer_ops.py.
//
// Arithmetic is float32, inputs and outputs are float32 or bf16. Results do not depend on the threads, except for the
// gradient of a norm's weight, which is summed over threads in order: the same number of threads gives the same bits.

#include "matmul_tile.h"
#include <algorithm>
#include <cstdlib>
#include <vector>
#if defined(_OPENMP)
#include <omp.h>
#endif

namespace {

constexpr int MR = W == 16 ? 8 : 4;

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
        float r = 1.0f / __builtin_sqrtf(sum_by_halves(s) / d + eps);
        scale[i] = r;
        for (long j = 0; j < d; j += W) put(y + i * d + j, take(a + j, d - j) * r * (take(w + j, d - j) + shift), d - j);
    }
}

// with h = g (shift + w): dx = r (h - x r^2 mean(x h)) + more, dw = sum over rows of g x r
template <class X, class Y>
void norm_back(const X *x, const float *w, const float *scale, const Y *g, const X *more, X *dx, float *dw, long n, long d, float shift, int threads) {
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
            float m = sum_by_halves(s) / d * r * r;
            for (long j = 0; j < d; j += W) {
                vf v = take(a + j, d - j), u = take(b + j, d - j);
                if (mine) store(mine + j, load(mine + j) + u * v * r);
                vf back = (u * (take(w + j, d - j) + shift) - v * m) * r;
                put(dx + i * d + j, more ? back + take(more + i * d + j, d - j) : back, d - j);
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

// ---- rotary positions: halves (a, b) of a head become (a cos - b sin, b cos + a sin); the backward rotates the other way

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
                    float p = widen(a[j]), q = widen(a[j + m]);
                    put(o + j, back ? p * c[j] + q * s[j + m] : p * c[j] - q * s[j]);
                    put(o + j + m, back ? q * c[j + m] - p * s[j] : q * c[j + m] + p * s[j + m]);
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

// MR rows of a matmul, N columns (a multiple of W)
inline void strip(const float *A, long ar, long ak, const float *B, long ldb, float *C, long ldc, long N, long K, bool more) {
    long j = 0;
    for (; j + 2 * W <= N; j += 2 * W) tile<2>(A, ar, ak, B + j, ldb, C + j, ldc, K, more);
    for (; j < N; j += W) tile<1>(A, ar, ak, B + j, ldb, C + j, ldc, K, more);
}

struct Piece { // flat tokens begin .. begin + count - 1, after `before` tokens of their family's base
    int64_t begin, count, before;
};

// The most positions that one of some pieces attends to, and the most rows of one.
struct Extent {
    long positions = 0, rows = 0;
};

inline Extent extent(const Piece *from, const Piece *to) {
    Extent most;
    for (; from < to; from++) {
        most.positions = std::max<long>(most.positions, from->before + from->count);
        most.rows = std::max<long>(most.rows, from->count);
    }
    return most;
}

struct Shape {
    long heads, kv, hd, wide, group, window; // wide: hd rounded up to vectors
    float scale;
};

template <class T> struct Scratch { // of one thread: pieces that begin at cache lines
    static constexpr long LINE = 64 / sizeof(T);
    std::vector<T> data;
    T *at = nullptr;
    void reset(long n) {
        if ((long)data.size() < n + LINE) data.resize(n + LINE);
        at = (T *)(((uintptr_t)data.data() + 63) & ~(uintptr_t)63);
    }
    T *get(long n) { T *p = at; at += up(n, LINE); return p; }
};

template <class T> void load_rows(const T *x, long stride, long count, long hd, long wide, float factor, float *out) {
    for (long i = 0; i < count; i++)
        for (long j = 0; j < wide; j += W) {
            long left = hd - j;
            store(out + i * wide + j, left > 0 ? take(x + i * stride + j, left) * factor : vf{});
        }
}

void transpose(const float *x, long count, long wide, float *out, long ld) { // out[d][i] = x[i][d]
    for (long d = 0; d < wide; d++)
        for (long i = 0; i < count; i++) out[d * ld + i] = x[i * wide + d];
}

// the scores of `count` rows (token t of the piece and head h: row t group + h) -> e^(s - max) or e^(s - lse), 0 where a row does not attend;
// also in bf16 where `short_` is given
inline void softmax_rows(const Shape &s, float *S, long ld, long limit, long row, const Piece &p, float *best, float *sum, const float *lse, int count = MR,
                  half *short_ = nullptr) {
    vi lane;
    for (int l = 0; l < W; l++) lane[l] = l;
    for (int i = 0; i < count; i++) {
        long t = (row + i) / s.group;
        float *a = S + i * ld;
        int end = t < p.count ? p.before + t + 1 : 0, low = s.window > 0 && end > s.window ? end - s.window : 0;
        auto masked_score = [&](long j) { // far below any score where the row does not attend: its weight is 0
            vi at = lane + (int)j;
            return j >= low && j + W <= end ? load(a + j) : (at < end) & (at >= low) ? load(a + j) : splat(-1e30f);
        };
        float top = 0;
        if (lse) top = lse[i];
        else {
            vf m = splat(-1e30f);
            for (long j = low / W * W; j < end; j += W) {
                vf v = masked_score(j);
                m = v > m ? v : m;
            }
            top = max_across(m);
        }
        vf all = {};
        for (long j = 0; j < limit; j += W) {
            vf e = j + W <= low || j >= end ? vf{} : exp_(masked_score(j) - top);
            store(a + j, e);
            if (short_) store(short_ + i * ld + j, e);
            all += e;
        }
        if (!lse) best[i] = top, sum[i] = sum_by_halves(all);
    }
}

template <class T>
void attend(const Shape &s, const Piece *pieces, const int64_t *family, long families, const T *q, const T *k, const T *v, T *out, float *lse, int threads) {
#pragma omp parallel num_threads(threads)
    {
        Scratch<float> memory;
#pragma omp for schedule(dynamic) collapse(2)
        for (long f = 0; f < families; f++)
            for (long g = 0; g < s.kv; g++) {
                const auto [most, rows] = extent(pieces + family[f], pieces + family[f + 1]);
                long ld = up(most, W) + W;
                memory.reset(2 * ld * s.wide + rows * s.wide + (rows * s.group + 2 * MR) * s.wide + MR * ld + MR * s.wide + 256);
                float *kt = memory.get(s.wide * ld), *vv = memory.get(ld * s.wide), *own = memory.get(rows * s.wide);
                float *qq = memory.get((rows * s.group + MR) * s.wide), *S = memory.get(MR * ld), *O = memory.get(MR * s.wide);
                memset(kt, 0, s.wide * ld * 4);
                memset(vv, 0, ld * s.wide * 4);
                for (long n = family[f]; n < family[f + 1]; n++) {
                    const Piece &p = pieces[n];
                    load_rows(k + (p.begin * s.kv + g) * s.hd, s.kv * s.hd, p.count, s.hd, s.wide, 1.0f, own);
                    transpose(own, p.count, s.wide, kt + p.before, ld);
                    load_rows(v + (p.begin * s.kv + g) * s.hd, s.kv * s.hd, p.count, s.hd, s.wide, 1.0f, vv + p.before * s.wide);
                    long m = p.count * s.group;
                    for (long t = 0; t < p.count; t++)
                        load_rows(q + ((p.begin + t) * s.heads + g * s.group) * s.hd, s.hd, s.group, s.hd, s.wide, s.scale, qq + t * s.group * s.wide);
                    memset(qq + m * s.wide, 0, MR * s.wide * 4);
                    for (long row = 0; row < m; row += MR) {
                        long last = std::min(row + MR, m) - 1, limit = up(p.before + last / s.group + 1, W);
                        float best[MR], sum[MR];
                        strip(qq + row * s.wide, s.wide, 1, kt, ld, S, ld, limit, s.wide, false);
                        softmax_rows(s, S, ld, limit, row, p, best, sum, nullptr);
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
    constexpr long BLOCK = 8 * MR; // rows whose weights are kept for the matmuls over rows
#pragma omp parallel num_threads(threads)
    {
        Scratch<float> memory;
#pragma omp for schedule(dynamic) collapse(2)
        for (long f = 0; f < families; f++)
            for (long g = 0; g < s.kv; g++) {
                const auto [most, rows] = extent(pieces + family[f], pieces + family[f + 1]);
                long ld = up(most, W) + W, tall = (rows * s.group + BLOCK) * s.wide;
                memory.reset(6 * ld * s.wide + 2 * tall + 2 * BLOCK * ld + MR * s.wide + 256);
                float *kk = memory.get(ld * s.wide), *vv = memory.get(ld * s.wide), *kt = memory.get(ld * s.wide), *vt = memory.get(ld * s.wide);
                float *ek = memory.get(ld * s.wide), *ev = memory.get(ld * s.wide), *qq = memory.get(tall), *gg = memory.get(tall);
                float *P = memory.get(BLOCK * ld), *D = memory.get(BLOCK * ld), *O = memory.get(MR * s.wide);
                for (float *x : {kk, vv, kt, vt, ek, ev}) memset(x, 0, ld * s.wide * 4);
                auto out_rows = [&](const Piece &p, float *x, T *to) { // a piece's own keys: their gradient is complete
                    for (long t = 0; t < p.count; t++)
                        for (long j = 0; j < s.hd; j += W)
                            put(to + ((p.begin + t) * s.kv + g) * s.hd + j, load(x + (p.before + t) * s.wide + j), s.hd - j);
                };
                for (long n = family[f]; n < family[f + 1]; n++) {
                    const Piece &p = pieces[n];
                    long m = p.count * s.group, all = p.before + p.count;
                    load_rows(k + (p.begin * s.kv + g) * s.hd, s.kv * s.hd, p.count, s.hd, s.wide, 1.0f, kk + p.before * s.wide);
                    load_rows(v + (p.begin * s.kv + g) * s.hd, s.kv * s.hd, p.count, s.hd, s.wide, 1.0f, vv + p.before * s.wide);
                    transpose(kk + p.before * s.wide, p.count, s.wide, kt + p.before, ld);
                    transpose(vv + p.before * s.wide, p.count, s.wide, vt + p.before, ld);
                    memset(ek + p.before * s.wide, 0, (ld - p.before) * s.wide * 4);
                    memset(ev + p.before * s.wide, 0, (ld - p.before) * s.wide * 4);
                    for (long t = 0; t < p.count; t++) {
                        long at = ((p.begin + t) * s.heads + g * s.group) * s.hd;
                        load_rows(q + at, s.hd, s.group, s.hd, s.wide, s.scale, qq + t * s.group * s.wide);
                        load_rows(grad + at, s.hd, s.group, s.hd, s.wide, 1.0f, gg + t * s.group * s.wide);
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
                                mean[i] = sum_by_halves(sum);
                            }
                            strip(qq + row * s.wide, s.wide, 1, kt, ld, S, ld, limit, s.wide, false);
                            softmax_rows(s, S, ld, limit, row, p, nullptr, nullptr, told);
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
                out_rows(pieces[family[f]], ek, dk), out_rows(pieces[family[f]], ev, dv); // the base, attended to by itself and its branches
            }
    }
}

// ---- attention in bf16: the same by dot products of pairs. Scores, softmax and all sums are float32; weights are rounded to bf16.

constexpr int HIGH = bf16::MR, WIDE = bf16::NR;

void rows_of(const half *x, long stride, long count, long hd, long wide, half *out) {
    for (long i = 0; i < count; i++)
        for (long j = 0; j < wide; j += W) put(out + i * wide + j, hd > j ? take(x + i * stride + j, hd - j) : vf{}, W);
}

// rows from .. to (to even) of x [.., wide] as panels over rows, with space for `room`
void over_rows(const half *x, long from, long to, long wide, long room, half *out) {
    for (long i = from / 2 * 2; i < to; i += 2)
        for (long j = 0; j < wide; j += W) {
            vu v = interleaved(x + i * wide + j, x + (i + 1) * wide + j);
            memcpy(out + (j / WIDE * room + i) * WIDE + 2 * (j % WIDE), &v, sizeof v);
        }
}

// rows from .. to of x [.., wide] as the columns of panels over dimensions
void over_dims(const half *x, long from, long to, long wide, long hd, half *out) {
    for (long i = from; i < to; i++)
        for (long d = 0; d < hd; d += 2) memcpy(out + (i / WIDE * hd + d) * WIDE + 2 * (i % WIDE), x + i * wide + d, 4);
}

struct Context { // keys and values of a family, in the layout of matmuls
    long ld, wide;
    half *rows, *dims, *pairs;
    void take_in(const Shape &s, const half *x, const Piece &p, bool by_dims, bool by_pairs) {
        long all = p.before + p.count, end = up(all, WIDE);
        rows_of(x, s.kv * s.hd, p.count, s.hd, wide, rows + p.before * wide);
        memset(rows + all * wide, 0, (end - all) * wide * 2); // left there by an earlier branch
        if (by_dims) over_dims(rows, p.before, end, wide, s.hd, dims);
        if (by_pairs) over_rows(rows, p.before, end, wide, ld, pairs);
    }
};

// `count` rows of a times the panels of `b` up to `columns`; each(row, column, two vectors)
template <class F>
inline void across_panels(const half *a, long row, long step, const half *b, long room, long deep, long count, long columns, F each) {
    for (long c = 0; c < columns; c += WIDE) {
        vf acc[HIGH][2];
        bf16::tile_of(count, a, row, step, b + c * room, deep / 2, false, acc);
        for (long i = 0; i < count; i++) each(i, c, acc[i][0], acc[i][1]);
    }
}

void attend_pairs(const Shape &s, const Piece *pieces, const int64_t *family, long families, const half *q, const half *k, const half *v, half *out, float *lse,
                  int threads) {
#pragma omp parallel num_threads(threads)
    {
        Scratch<float> memory;
        Scratch<half> halves;
#pragma omp for schedule(dynamic) collapse(2)
        for (long f = 0; f < families; f++)
            for (long g = 0; g < s.kv; g++) {
                const auto [most, rows] = extent(pieces + family[f], pieces + family[f + 1]);
                const long wide = up(s.hd, WIDE), tall = rows * s.group, ld = up(most, WIDE) + WIDE;
                memory.reset(HIGH * ld + 64);
                halves.reset(5 * ld * wide + (tall + HIGH) * wide + HIGH * ld + 256);
                float *S = memory.get(HIGH * ld);
                Context keys{ld, wide, halves.get(ld * wide), halves.get(ld * wide), nullptr}, values{ld, wide, halves.get(ld * wide), nullptr, halves.get(ld * wide)};
                half *qq = halves.get((tall + HIGH) * wide), *P = halves.get(HIGH * ld);
                for (long n = family[f]; n < family[f + 1]; n++) {
                    const Piece &p = pieces[n];
                    long m = p.count * s.group;
                    keys.take_in(s, k + (p.begin * s.kv + g) * s.hd, p, true, false);
                    values.take_in(s, v + (p.begin * s.kv + g) * s.hd, p, false, true);
                    for (long t = 0; t < p.count; t++)
                        rows_of(q + ((p.begin + t) * s.heads + g * s.group) * s.hd, s.hd, s.group, s.hd, wide, qq + t * s.group * wide);
                    for (long row = 0; row < m; row += HIGH) {
                        long count = std::min<long>(HIGH, m - row), limit = up(p.before + (row + count - 1) / s.group + 1, WIDE);
                        float best[HIGH], sum[HIGH];
                        across_panels(qq + row * wide, wide, 2, keys.dims, s.hd, s.hd, count, limit, [&](long i, long c, vf a, vf b) {
                            store(S + i * ld + c, a * s.scale), store(S + i * ld + c + W, b * s.scale);
                        });
                        softmax_rows(s, S, ld, limit, row, p, best, sum, nullptr, (int)count, P);
                        across_panels(P, ld, 2, values.pairs, ld, limit, count, wide, [&](long i, long c, vf a, vf b) {
                            long to = (p.begin + (row + i) / s.group) * s.heads + g * s.group + (row + i) % s.group;
                            if (c == 0) lse[to] = best[i] + __builtin_logf(sum[i]);
                            put(out + to * s.hd + c, a / sum[i], s.hd - c);
                            if (c + W < s.hd) put(out + to * s.hd + c + W, b / sum[i], s.hd - c - W);
                        });
                    }
                }
            }
    }
}

void attend_pairs_back(const Shape &s, const Piece *pieces, const int64_t *family, long families, const half *q, const half *k, const half *v, const half *out,
                       const float *lse, const half *grad, half *dq, half *dk, half *dv, int threads) {
    constexpr long BLOCK = 8 * HIGH; // rows whose weights are kept for the matmuls over rows
#pragma omp parallel num_threads(threads)
    {
        Scratch<float> memory;
        Scratch<half> halves;
#pragma omp for schedule(dynamic) collapse(2)
        for (long f = 0; f < families; f++)
            for (long g = 0; g < s.kv; g++) {
                const auto [most, rows] = extent(pieces + family[f], pieces + family[f + 1]);
                const long wide = up(s.hd, WIDE);
                long ld = up(most, WIDE) + WIDE, tall = rows * s.group + BLOCK;
                memory.reset(2 * ld * wide + HIGH * ld + 256);
                halves.reset(6 * ld * wide + 4 * tall * wide + 4 * BLOCK * ld + 1024);
                float *ek = memory.get(ld * wide), *ev = memory.get(ld * wide), *S = memory.get(HIGH * ld);
                Context keys{ld, wide, halves.get(ld * wide), halves.get(ld * wide), halves.get(ld * wide)};
                Context values{ld, wide, halves.get(ld * wide), halves.get(ld * wide), nullptr};
                half *qq = halves.get(tall * wide), *gg = halves.get(tall * wide), *qz = halves.get(tall * wide), *gz = halves.get(tall * wide);
                half *P = halves.get(BLOCK * ld), *D = halves.get(BLOCK * ld), *pz = halves.get(BLOCK * ld), *dz = halves.get(BLOCK * ld);
                for (float *x : {ek, ev}) memset(x, 0, ld * wide * 4);
                auto out_rows = [&](const Piece &p, float *x, float by, half *to) { // a piece's own keys: their gradient is complete
                    for (long t = 0; t < p.count; t++)
                        for (long j = 0; j < s.hd; j += W)
                            put(to + ((p.begin + t) * s.kv + g) * s.hd + j, load(x + (p.before + t) * wide + j) * by, s.hd - j);
                };
                for (long n = family[f]; n < family[f + 1]; n++) {
                    const Piece &p = pieces[n];
                    long m = p.count * s.group;
                    keys.take_in(s, k + (p.begin * s.kv + g) * s.hd, p, true, true);
                    values.take_in(s, v + (p.begin * s.kv + g) * s.hd, p, true, false);
                    for (float *x : {ek, ev}) memset(x + p.before * wide, 0, (ld - p.before) * wide * 4);
                    for (long t = 0; t < p.count; t++) {
                        long at = ((p.begin + t) * s.heads + g * s.group) * s.hd;
                        rows_of(q + at, s.hd, s.group, s.hd, wide, qq + t * s.group * wide);
                        rows_of(grad + at, s.hd, s.group, s.hd, wide, gg + t * s.group * wide);
                    }
                    long end = std::min(up(m, HIGH), tall);
                    for (half *x : {qq, gg}) memset(x + m * wide, 0, (end - m) * wide * 2);
                    over_rows(qq, 0, end, wide, tall, qz), over_rows(gg, 0, end, wide, tall, gz);
                    for (long b = 0; b < m; b += BLOCK) {
                        long stop = std::min(b + BLOCK, m), held = up(stop - b, HIGH), reach = up(p.before + (stop - 1) / s.group + 1, WIDE);
                        for (long row = b; row < b + held; row += HIGH) {
                            long last = std::min<long>(row + HIGH, m) - 1, limit = up(p.before + last / s.group + 1, WIDE);
                            half *weights = P + (row - b) * ld, *back = D + (row - b) * ld;
                            float told[HIGH] = {}, mean[HIGH] = {};
                            for (long i = 0; row + i <= last; i++) {
                                long at = (p.begin + (row + i) / s.group) * s.heads + g * s.group + (row + i) % s.group;
                                told[i] = lse[at];
                                vf sum = {};
                                for (long j = 0; j < s.hd; j += W) sum += take(out + at * s.hd + j, s.hd - j) * load(gg + (row + i) * wide + j);
                                mean[i] = sum_by_halves(sum);
                            }
                            across_panels(qq + row * wide, wide, 2, keys.dims, s.hd, s.hd, HIGH, limit, [&](long i, long c, vf a, vf b) {
                                store(S + i * ld + c, a * s.scale), store(S + i * ld + c + W, b * s.scale);
                            });
                            softmax_rows(s, S, ld, limit, row, p, nullptr, nullptr, told, HIGH, weights);
                            across_panels(gg + row * wide, wide, 2, values.dims, s.hd, s.hd, HIGH, limit, [&](long i, long c, vf a, vf b) {
                                store(back + i * ld + c, load(S + i * ld + c) * (a - mean[i]));
                                store(back + i * ld + c + W, load(S + i * ld + c + W) * (b - mean[i]));
                            });
                            for (long i = 0; i < HIGH; i++)
                                for (half *x : {weights, back}) memset(x + i * ld + limit, 0, (reach - limit) * 2);
                            across_panels(back, ld, 2, keys.pairs, ld, limit, last + 1 - row, wide, [&](long i, long c, vf a, vf b) {
                                long at = (p.begin + (row + i) / s.group) * s.heads + g * s.group + (row + i) % s.group;
                                put(dq + at * s.hd + c, a * s.scale, s.hd - c);
                                if (c + W < s.hd) put(dq + at * s.hd + c + W, b * s.scale, s.hd - c - W);
                            });
                        }
                        auto down = [&](const half *weights, half *z, const half *right, float *to) { // to += weights^T right
                            for (long i = 0; i < held; i += 2)
                                for (long j = 0; j < reach; j += W) {
                                    vu x = interleaved(weights + i * ld + j, weights + (i + 1) * ld + j);
                                    memcpy(z + i * ld + 2 * j, &x, sizeof x);
                                }
                            for (long j = 0; j < reach; j += HIGH)
                                across_panels(z + 2 * j, 2, 2 * ld, right + b * WIDE, tall, held, std::min<long>(HIGH, reach - j), wide, [&](long i, long c, vf x, vf y) {
                                    float *at = to + (j + i) * wide + c;
                                    store(at, load(at) + x), store(at + W, load(at + W) + y);
                                });
                        };
                        down(P, pz, gz, ev), down(D, dz, qz, ek);
                    }
                    if (n > family[f]) out_rows(p, ek, s.scale, dk), out_rows(p, ev, 1.0f, dv);
                }
                out_rows(pieces[family[f]], ek, s.scale, dk), out_rows(pieces[family[f]], ev, 1.0f, dv); // the base, attended to by itself and its branches
            }
    }
}

#if defined(__AVX512BF16__)
constexpr bool PAIRS = true;
#else
constexpr bool PAIRS = false; // without an instruction for pairs float32 is faster
#endif

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

void norm_backward(const void *x, const float *w, const float *scale, const void *g, const void *more, void *dx, float *dw, int64_t n, int64_t d, double shift, int64_t xh, int64_t yh, int64_t threads) {
    if (xh && yh) norm_back((const half *)x, w, scale, (const half *)g, (const half *)more, (half *)dx, dw, n, d, shift, threads);
    else if (xh) norm_back((const half *)x, w, scale, (const float *)g, (const half *)more, (half *)dx, dw, n, d, shift, threads);
    else if (yh) norm_back((const float *)x, w, scale, (const half *)g, (const float *)more, (float *)dx, dw, n, d, shift, threads);
    else norm_back((const float *)x, w, scale, (const float *)g, (const float *)more, (float *)dx, dw, n, d, shift, threads);
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
    if (bf16 && PAIRS) return attend_pairs(s, (const Piece *)pieces, family, families, (const half *)q, (const half *)k, (const half *)v, (half *)out, lse, (int)threads);
    EACH(bf16, attend(s, (const Piece *)pieces, family, families, (const T *)q, (const T *)k, (const T *)v, (T *)out, lse, threads))
}

void attend_backward(const void *q, const void *k, const void *v, const void *out, const float *lse, const void *grad, void *dq, void *dk, void *dv,
                     const int64_t *pieces, const int64_t *family, int64_t families, int64_t heads, int64_t kv, int64_t hd, int64_t window,
                     double scale, int64_t bf16, int64_t threads) {
    Shape s{heads, kv, hd, up(hd, W), heads / kv, window, (float)scale};
    if (bf16 && PAIRS)
        return attend_pairs_back(s, (const Piece *)pieces, family, families, (const half *)q, (const half *)k, (const half *)v, (const half *)out, lse,
                                 (const half *)grad, (half *)dq, (half *)dk, (half *)dv, (int)threads);
    EACH(bf16, attend_back(s, (const Piece *)pieces, family, families, (const T *)q, (const T *)k, (const T *)v, (const T *)out, lse, (const T *)grad,
                           (T *)dq, (T *)dk, (T *)dv, threads))
}
}

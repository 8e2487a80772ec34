// Matmuls of bf16 matrices with float32 sums, for a learner: linear layers, gradients of inputs and weights, and the output head.
//
// Built at first use (build.py), called through ctypes by matmul_bf16.py. The order of each sum does not depend on the threads, so any number
// of them gives the same bits.
//
// The right side of a matmul is in panels of NR columns, pairs of rows adjacent: [panel][row / 2][NR][2], padded with 0.

#include "matmul_tile.h"
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <vector>

using namespace bf16;

namespace {

constexpr long DEEP = 1024;       // rows of the right side at a time: a panel's part of them fits the L1 cache
constexpr long BLOCK = 256 << 10; // bytes of the left side that are multiplied with all panels before the next
constexpr long TALL = 512;        // tokens of a weight gradient at a time

struct Buffer {
    char *at = nullptr;
    explicit Buffer(long bytes) : at((char *)aligned_alloc(64, up(bytes + 64, 64))) {}
    Buffer(const Buffer &) = delete;
    ~Buffer() { free(at); }
    template <class T> T *as() { return (T *)at; }
};

struct Side { // a left side [n, depth] by rows, and the panels of its right side
    const half *a;
    long depth; // even
    const half *panels;
};

// The begin of the i-th of `parts` nearly equal parts.
inline long part_begin(long size, long parts, long i) { return size * i / parts; }

// The sum over sides of a b, for columns 0 .. columns - 1; done(row, column, two vectors, columns left) takes each result once, and
// soon(row, column) is called before it is computed, to prefetch its memory.
template <class F, class G> void multiply(const Side *sides, long count, long n, long columns, int threads, F done, G soon) {
    long depth = 0, blocks = 0, panels = up(columns, NR) / NR;
    for (long s = 0; s < count; s++) depth += sides[s].depth, blocks += up(sides[s].depth, DEEP) / DEEP;
    long high = std::max<long>(MR, std::min<long>(512, BLOCK / (2 * std::min(depth, DEEP))) / MR * MR);
    long chunks = up(n, high) / high;
    if (chunks > threads) chunks = std::min(n, up(chunks, threads)); // equally many for each thread
    long spans = std::min(panels, chunks < 2 * threads ? up(2L * threads, chunks) / chunks : 1L);
#pragma omp parallel num_threads(threads)
    {
        long widest = up(panels, spans) / spans;
        Buffer held(blocks > 1 ? (high + MR) * widest * NR * 4 : 0);
#pragma omp for schedule(dynamic)
        for (long task = 0; task < chunks * spans; task++) {
            long chunk = task / spans, span = task % spans, first = part_begin(panels, spans, span), last = part_begin(panels, spans, span + 1);
            long from = part_begin(n, chunks, chunk), rows = part_begin(n, chunks, chunk + 1) - from, tiles = up(rows, MR) / MR, block = 0;
            for (long s = 0; s < count; s++)
                for (long k = 0; k < sides[s].depth; k += DEEP, block++) {
                    long deep = std::min(DEEP, sides[s].depth - k);
                    for (long p = first; p < last; p++)
                        for (long t = 0; t < tiles; t++) {
                            long r = from + part_begin(rows, tiles, t), height = from + part_begin(rows, tiles, t + 1) - r;
                            const half *left = sides[s].a + r * sides[s].depth + k;
                            if (p == first && t + 1 < tiles) // prefetch the next rows
                                for (long i = height; i < 2 * height; i++)
                                    for (long j = 0; j < deep; j += 32) __builtin_prefetch(left + i * sides[s].depth + j);
                            if (block + 1 == blocks)
                                for (long i = 0; i < height; i++) soon(r + i, p * NR);
                            vf acc[MR][2];
                            auto *hold = (vf(*)[MR][2])held.at + ((p - first) * tiles + t);
                            if (block) memcpy(acc, *hold, sizeof acc);
                            tile_of(height, left, sides[s].depth, 2, sides[s].panels + (p * sides[s].depth + k) * NR, deep / 2, block > 0, acc);
                            if (block + 1 < blocks) memcpy(*hold, acc, sizeof acc);
                            else
                                for (long i = 0; i < height; i++) done(r + i, p * NR, acc[i][0], acc[i][1], columns - p * NR);
                        }
                }
        }
    }
}

// Rows of float32 weights [out, k] as panels over k (columns are outputs), or over outputs (columns are inputs).
void pack_forward(const float *w, long out, long k, half *to, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long p = 0; p < up(out, NR) / NR; p++) {
        half *panel = to + p * k * NR;
        alignas(64) half rows[NR][64];
        for (long j = 0; j < k; j += 64) {
            long wide = std::min(64L, k - j);
            for (long c = 0; c < NR; c++)
                for (long i = 0; i < wide; i += W) put(rows[c] + i, p * NR + c < out ? take(w + (p * NR + c) * k + j + i, wide - i) : vf{}, wide - i);
            for (long i = 0; i < wide; i += 2)
                for (long c = 0; c < NR; c++) memcpy(panel + (j + i) * NR + 2 * c, rows[c] + i, 4);
        }
    }
}

// Rows of x [n, columns] (bf16, or float32 times a factor for each row) as panels over n, rounded up to whole pairs.
inline vu pair_of(const half *a, const half *b, const float *, long left) {
    if (left >= W) return interleaved(a, b);
    half x[W] = {}, y[W] = {};
    memcpy(x, a, left * 2), memcpy(y, b, left * 2);
    return interleaved(x, y);
}
inline vu pair_of(const float *a, const float *b, const float *by, long left) {
    half x[W], y[W];
    store(x, take(a, left) * (by ? by[0] : 1.0f)), store(y, take(b, left) * (by ? by[1] : 1.0f));
    return interleaved(x, y);
}
template <class T> void pack_rows(const T *x, long n, long columns, const float *by, half *to, int threads) {
    static const T none[4096] = {};
    std::vector<T> wide(columns > 4096 ? columns : 0);
    const T *zeros = columns > 4096 ? wide.data() : none;
    long deep = up(n, 2);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long p = 0; p < up(columns, NR) / NR; p++)
        for (long i = 0; i < n; i += 2)
            for (long c = 0; c < NR; c += W) {
                half *at = to + (p * deep + i) * NR + 2 * c;
                long j = p * NR + c;
                float both[2] = {by ? by[i] : 1.0f, by && i + 1 < n ? by[i + 1] : 1.0f};
                vu v = j < columns ? pair_of(x + i * columns + j, i + 1 < n ? x + (i + 1) * columns + j : zeros + j, by ? both : nullptr, columns - j) : vu{};
                memcpy(at, &v, sizeof v);
            }
}

// dw[out, columns] (+)= a^T b over n tokens: a [n, out] bf16 by rows of `stride`, b as panels over n
void gradient(const half *a, long stride, long n, long out, const half *panels, long columns, float *dw, bool more, int threads) {
    constexpr long PITCH = MR * TALL + 4 * W; // of a tile's part of a: not a power of two, with space for a vector at the end
    long tiles = up(out, MR) / MR, group = BLOCK / (2 * PITCH), groups = std::min(tiles, up(up(tiles, group) / group, threads)), deep = up(n, 2);
#pragma omp parallel num_threads(threads)
    {
        Buffer packed(up(tiles, groups) / groups * PITCH * 2);
        std::vector<half> zeros(up(out, W) + W, 0);
#pragma omp for schedule(dynamic)
        for (long g = 0; g < groups; g++)
            for (long from = 0; from < n; from += TALL) {
                long rows = std::min(TALL, n - from), both = up(rows, 2) / 2, first = part_begin(tiles, groups, g), last = part_begin(tiles, groups, g + 1);
                for (long t = first; t < last; t++) {
                    long c = part_begin(out, tiles, t), wide = part_begin(out, tiles, t + 1) - c;
                    half *to = packed.as<half>() + (t - first) * PITCH;
                    for (long i = 0; i < both; i++, to += 2 * MR) {
                        const half *x = a + (from + 2 * i) * stride, *y = 2 * i + 1 < rows ? x + stride : zeros.data();
                        for (long j = c; j < c + wide; j += W) { // whole vectors: the next pair of rows overwrites the excess
                            vu v = pair_of(x + j, y + j, nullptr, out - j);
                            memcpy(to + 2 * (j - c), &v, sizeof v);
                        }
                    }
                }
                for (long p = 0; p < up(columns, NR) / NR; p++)
                    for (long t = first; t < last; t++) {
                        long c = part_begin(out, tiles, t), wide = part_begin(out, tiles, t + 1) - c;
                        bool add = more || from;
                        float *to = dw + c * columns + p * NR;
                        for (long i = 0; i < wide; i++)
                            for (long v = 0; v < NR; v += W) __builtin_prefetch(to + i * columns + v, 1);
                        vf acc[MR][2];
                        tile_of(wide, packed.as<half>() + (t - first) * PITCH, 2, 2 * MR, panels + (p * deep + from) * NR, both, false, acc);
                        for (long i = 0; i < wide; i++)
                            for (long v = 0; v < 2; v++) {
                                long left = columns - p * NR - v * W;
                                float *at = to + i * columns + v * W;
                                if (left > 0) put(at, add ? take(at, left) + acc[i][v] : acc[i][v], left);
                            }
                    }
            }
    }
}

// ---- the output head: log-probabilities of one id in each row, without logits in memory
//
// With z the scores of a row over its temperature, c a number near its own id's, and e_j = exp(z_j - c):
//     log p_id = z_id - c - log sum e,     entropy = log sum e - sum e (z - c) / sum e.
// The e are kept in bf16 for the backward, with e_id set to 0: of a nearly certain id, 1 - p would be a small difference of large numbers.

constexpr long SPAN = 64, ROWS = 252; // panels and rows of one task; each row's sums are by spans, in order

struct RowResults { // pointers by row
    float *token_score, *sum, *weighted_sum, *top;
};

void scores(const half *x, long n, long depth, const half *panels, long vocab, const int64_t *ids, const float *inverse_temperature, const float *off, half *e, RowResults out,
            int threads) {
    long spans = up(up(vocab, NR) / NR, SPAN) / SPAN, blocks = up(n, ROWS) / ROWS;
    Buffer buffer(n * spans * 3 * W * 4);
    vf *parts = (vf *)buffer.at;
    vi lane;
    for (int l = 0; l < W; l++) lane[l] = l;
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (long task = 0; task < spans * blocks; task++) {
        long span = task / blocks, from = span * SPAN * NR, wide = std::min(SPAN * NR, vocab - from);
        long first = part_begin(n, blocks, task % blocks), rows = part_begin(n, blocks, task % blocks + 1) - first;
        for (long r = first; r < first + rows; r++) {
            vf *part = parts + 3 * (r * spans + span);
            part[0] = part[1] = vf{}, part[2] = splat(-1e30f);
        }
        Side side{x + first * depth, depth, panels + from * depth};
        multiply(&side, 1, rows, wide, 1, [&](long row, long column, vf u, vf v, long left) {
            row += first;
            vf *part = parts + 3 * (row * spans + span);
            for (long h = 0; h < 2 && left > 0; h++, left -= W) {
                long at = from + column + h * W, own = ids[row] - at;
                vf z = (h ? v : u) * inverse_temperature[row];
                if (left < W) z = lane < (int)left ? z : splat(-1e30f);
                if (own >= 0 && own < W) out.token_score[row] = z[own];
                vf offset_score = z - off[row], y = exp_(offset_score);
                part[0] += y;
                part[1] += y * offset_score;
                part[2] = maximum(z, part[2]);
                put(e + row * vocab + at, y, left);
            }
        }, [=](long row, long column) { __builtin_prefetch(e + (first + row) * vocab + from + column, 1); });
    }
    for (long r = 0; r < n; r++) {
        float sum = 0, weighted_sum = 0, top = -1e30f;
        for (vf *part = parts + 3 * r * spans; part < parts + 3 * (r + 1) * spans; part += 3) {
            sum += sum_by_halves(part[0]), weighted_sum += sum_by_halves(part[1]), top = std::max(top, max_across(part[2]));
        }
        out.sum[r] = sum, out.weighted_sum[r] = weighted_sum, out.top[r] = top;
        e[r * vocab + ids[r]] = 0;
    }
}

} // namespace

extern "C" {

// Whether these are faster than torch's: on CPUs with an instruction for the dot product of bf16 pairs, and no matrix unit (AMX).
int64_t is_faster() {
#if defined(__AVX512BF16__) && !defined(__AMX_BF16__)
    return 1;
#else
    return 0;
#endif
}
int64_t panel() { return NR; }

void pack_weights(const float *w, int64_t out, int64_t k, int64_t forward, half *to, int64_t threads) {
    if (forward) pack_forward(w, out, k, to, (int)threads);
    else pack_rows(w, out, k, (const float *)nullptr, to, (int)threads);
}
void pack_tokens(const half *x, int64_t n, int64_t columns, half *to, int64_t threads) {
    pack_rows(x, n, columns, (const float *)nullptr, to, (int)threads);
}

// y [n, columns] = sum over `count` sides of a b, + bias [columns], + residual [n, columns] where given; in bf16 or float32
void matmul(const void *const *a, const int64_t *depth, const void *const *panels, int64_t count, int64_t n, int64_t columns, const float *bias,
             const float *residual, void *y, int64_t bf16_out, int64_t threads) {
    std::vector<Side> sides;
    for (long s = 0; s < count; s++) sides.push_back({(const half *)a[s], depth[s], (const half *)panels[s]});
    auto write_to = [&](auto *to) {
        multiply(sides.data(), count, n, columns, (int)threads, [=](long row, long column, vf u, vf v, long left) {
            for (long h = 0; h < 2 && left > 0; h++, left -= W, column += W) {
                vf x = h ? v : u;
                if (bias) x += take(bias + column, left);
                if (residual) x += take(residual + row * columns + column, left);
                put(to + row * columns + column, x, left);
            }
        }, [=](long row, long column) {
            long at = row * columns + column;
            for (long i = 0; i < NR; i += 64 / (long)sizeof *to) __builtin_prefetch(to + at + i, 1);
            if (residual)
                for (long i = 0; i < NR; i += W) __builtin_prefetch(residual + at + i);
        });
    };
    if (bf16_out) write_to((half *)y);
    else write_to((float *)y);
}

void head_scores(const half *x, int64_t n, int64_t depth, const half *panels, int64_t vocab, const int64_t *ids, const float *inverse_temperature, const float *off, half *e,
                 float *token_score, float *sum, float *weighted_sum, float *top, int64_t threads) {
    scores(x, n, depth, panels, vocab, ids, inverse_temperature, off, e, {token_score, sum, weighted_sum, top}, (int)threads);
}

void weight_gradient(const half *a, int64_t stride, int64_t n, int64_t out, const half *panels, int64_t columns, float *dw, int64_t more, int64_t threads) {
    gradient(a, stride, n, out, panels, columns, dw, more, (int)threads);
}
}

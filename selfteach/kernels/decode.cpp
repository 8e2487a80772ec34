// One forward pass of the transformer over rows of many sequences, and the sampling of tokens, on CPUs.
//
// Built at first use (build.py) and called through ctypes (decode.py); engine/torch_runner.py and engine/sampler.py compute the same in
// torch. Rows are tokens, each with a slot and a position. Every sum of a row is in an order that depends on that row alone, so a row has the
// same bits in any batch, any split into pieces, any pages, and on any number of threads.
//
// Layouts (W numbers in a vector):
//   weights     panels of 2 W output columns: [panel][k][2 W]; in bf16 pairs of k are adjacent: [panel][k / 2][2 W][2]
//   inputs      of matmuls: [k / KB][row][KB], so that a tile of rows is contiguous
//   keys        [layer][slot][head][position / W][d][W]: the scores of W keys at once, without sums across a vector
//   values      [layer][slot][head][position][d]
// Positions n PAGE to n PAGE + PAGE - 1 of a slot's sequence are in the part of slot table[slot][n] (engine/page_table.py).

#include "vectors.h"
#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <functional>
#include <limits>
#include <mutex>
#include <new>
#include <sys/mman.h>
#include <thread>
#include <type_traits>
#include <unistd.h>
#include <vector>

namespace {

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int MR = 12;
#else
constexpr int MR = 6;
#endif
constexpr int NR = 2 * W, KB = 32, TILES = 8, PAGE = 64;
static_assert(PAGE % (4 * W) == 0, "whole blocks to a page");
constexpr float INF = std::numeric_limits<float>::infinity();

inline vf cap_(vf x, float cap) { return cap > 0 ? tanh_(x / cap) * cap : x; }

enum Activation { SILU, GELU, GELU_TANH };

inline vf activate(vf x, int kind) {
    if (kind == SILU) return x / (1.0f + exp_(-x));
    if (kind == GELU_TANH) return 0.5f * x * (1.0f + tanh_(0.7978845608f * (x + 0.044715f * x * x * x)));
    vf out;
    for (int i = 0; i < W; i++) out[i] = 0.5f * x[i] * (1.0f + std::erf(x[i] * 0.70710678f));
    return out;
}

// ---- threads
//
// All threads run the same work, which consists of phases: `parallel_for` gives a phase's pieces to the threads in turn, and a phase ends when
// its pieces are done, not when all threads have arrived: a thread that the system has suspended is waited for only while it holds a piece.
// Idle threads spin for a moment, since the next work usually follows soon, and then sleep.

inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

class Pool {
  public:
    void run(int count, const std::function<void(int)> &work) {
        std::lock_guard<std::mutex> one(_calls);
        if (_pid != getpid()) { // threads do not survive a fork
            _pid = getpid();
            _threads = 0;
        }
        {
            std::lock_guard<std::mutex> lock(_mutex);
            _size = count < 1 ? 1 : count;
            _work = &work;
            for (; _threads < _size - 1; _threads++) std::thread(&Pool::_wait, this, _threads + 1, _epoch.load()).detach();
            _first = _ticket >> BITS;
            _open = true;
            _epoch++;
        }
        if (_size > 1) _wake.notify_all();
        phase = _first;
        work(0);
        {
            std::lock_guard<std::mutex> lock(_mutex);
            _open = false; // threads that have not started need not
        }
        for (int i = 0; _inside; i++) _pause(i);
    }

    // f(i) for i in 0 .. count - 1, on any of the threads; returns when all are done. All threads must call it.
    template <class F> void parallel_for(uint64_t count, F f) {
        if (!count) return;
        uint64_t mine = phase++, ticket = _ticket;
        while (ticket >> BITS == mine) {
            uint64_t i = ticket & MASK;
            if (i >= count) {
                for (int n = 0; (ticket = _ticket) >> BITS == mine; n++) _pause(n);
                break;
            }
            if (!_ticket.compare_exchange_weak(ticket, ticket + 1)) continue;
            f((long)i);
            if (_done.fetch_add(1) + 1 == count) {
                _done = 0;
                _ticket = (mine + 1) << BITS;
            }
            ticket = _ticket;
        }
    }

  private:
    static void _pause(int i) { i < 2000 ? relax() : (void)std::this_thread::yield(); }

    void _wait(int mine, uint64_t value_block) {
        for (;;) {
            for (int i = 0; i < 4000 && _epoch == value_block; i++) relax();
            std::unique_lock<std::mutex> lock(_mutex);
            _wake.wait(lock, [&] { return _epoch != value_block; });
            value_block = _epoch;
            if (mine >= _size || !_open) continue;
            _inside++;
            phase = _first;
            lock.unlock();
            (*_work)(mine);
            _inside--;
        }
    }

    static constexpr int BITS = 24; // low bits of a ticket: the next piece; above them: the phase
    static constexpr uint64_t MASK = (1 << BITS) - 1;
    static thread_local uint64_t phase; // the phase of this thread
    int _size = 1, _threads = 0;
    bool _open = false;
    uint64_t _first = 0; // the first phase of the work
    pid_t _pid = 0;
    const std::function<void(int)> *_work = nullptr;
    std::atomic<uint64_t> _ticket{0}, _done{0}, _epoch{0};
    std::atomic<int> _inside{0};
    std::mutex _calls, _mutex;
    std::condition_variable _wake;
};

thread_local uint64_t Pool::phase = 0;
Pool &pool = *new Pool; // never destroyed: its threads may outlive static objects

// ---- matmuls

// Ask for large pages where the system has them: half of the wait for memory is the lookup of small ones.
void use_large_pages(void *at, size_t bytes) {
#if defined(MADV_HUGEPAGE)
    uintptr_t from = up((uintptr_t)at, 4096), to = ((uintptr_t)at + bytes) / 4096 * 4096;
    if (bytes >= (4 << 20)) madvise((void *)from, to - from, MADV_HUGEPAGE);
#else
    (void)at, (void)bytes;
#endif
}

template <class T> struct Scratch {
    T *at = nullptr;
    size_t room = 0;
    Scratch() = default;
    Scratch(const Scratch &) = delete;
    ~Scratch() { free(at); }
    T *of(size_t count) {
        if (count <= room) return at;
        free(at);
        size_t bytes = up(count * sizeof(T), 64);
        at = (T *)aligned_alloc(bytes >= (4 << 20) ? 2 << 20 : 64, up(bytes, bytes >= (4 << 20) ? 2 << 20 : 64));
        if (!at) throw std::bad_alloc();
        room = count;
        use_large_pages(at, bytes);
        return at;
    }
};

template <class T> struct Linear {
    long out = 0, k = 0; // padded to whole panels and blocks
    Scratch<T> weights;
    std::vector<float> bias;
};

// Not inlined: with the use of its result inlined, the compiler would take registers away from it.
template <int R> __attribute__((noinline)) void tile(const float *x, long block, const float *w, long k, vf (&out)[R][2]) {
    vf acc[R][2];
    for (int r = 0; r < R; r++) acc[r][0] = acc[r][1] = vf{};
    for (long b = 0; b < k; b += KB, x += block)
        for (int i = 0; i < KB; i++, w += NR) {
            vf w0 = load(w), w1 = load(w + W);
#pragma GCC unroll 16
            for (int r = 0; r < R; r++) {
                vf a = splat(x[r * KB + i]);
                acc[r][0] += a * w0;
                acc[r][1] += a * w1;
            }
        }
    memcpy(out, acc, sizeof out);
}

template <int R> __attribute__((noinline)) void tile(const half *x, long block, const half *w, long k, vf (&out)[R][2]) {
    vf acc[R][2];
    for (int r = 0; r < R; r++) acc[r][0] = acc[r][1] = vf{};
    for (long b = 0; b < k; b += KB, x += block)
        for (int i = 0; i < KB; i += 2, w += 2 * NR) {
#if defined(__AVX512BF16__)
            __m512bh w0 = (__m512bh)_mm512_loadu_si512(w), w1 = (__m512bh)_mm512_loadu_si512(w + NR);
#pragma GCC unroll 16
            for (int r = 0; r < R; r++) {
                int32_t pair;
                memcpy(&pair, x + r * KB + i, 4);
                __m512bh a = (__m512bh)_mm512_set1_epi32(pair);
                acc[r][0] = (vf)_mm512_dpbf16_ps((__m512)acc[r][0], w0, a);
                acc[r][1] = (vf)_mm512_dpbf16_ps((__m512)acc[r][1], w1, a);
            }
#else
            vu u0, u1;
            memcpy(&u0, w, sizeof u0);
            memcpy(&u1, w + NR, sizeof u1);
#pragma GCC unroll 16
            for (int r = 0; r < R; r++) {
                uint32_t pair;
                memcpy(&pair, x + r * KB + i, 4);
                vf a = (vf)((pair << 16) + vu{}), b = (vf)((pair & 0xffff0000u) + vu{});
                acc[r][0] += a * (vf)(u0 << 16);
                acc[r][0] += b * (vf)(u0 & 0xffff0000u);
                acc[r][1] += a * (vf)(u1 << 16);
                acc[r][1] += b * (vf)(u1 & 0xffff0000u);
            }
#endif
        }
    memcpy(out, acc, sizeof out);
}

// Rows a .. a + R - 1 times one panel; done(row, panel, two vectors) add_positions the result.
template <int R, class T, class F> void rows_times_panel(const T *x, long n, const Linear<T> &l, long panel, long a, F &done) {
    vf acc[R][2];
    tile<R>(x + a * KB, n * KB, l.weights.at + panel * l.k * NR, l.k, acc);
    const float *bias = l.bias.empty() ? nullptr : l.bias.data() + panel * NR;
    for (int r = 0; r < R; r++) {
        if (bias) acc[r][0] += load(bias), acc[r][1] += load(bias + W);
        done(a + r, panel, acc[r][0], acc[r][1]);
    }
}

template <class T, class F> void matmul(const T *x, long n, const Linear<T> &l, F done) {
    long tiles = up(n, MR) / MR, chunks = up(tiles, TILES) / TILES, panels = l.out / NR;
    pool.parallel_for(panels * chunks, [&](long i) {
        long panel = i / chunks, first = i % chunks * tiles / chunks, last = (i % chunks + 1) * tiles / chunks;
        for (long t = first; t < last; t++) {
            long a = t * n / tiles;
            switch ((t + 1) * n / tiles - a) {
#define CASE(R) case R: if (R <= MR) rows_times_panel<(R <= MR ? R : 1), T>(x, n, l, panel, a, done); break;
                CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#undef CASE
            }
        }
    });
}

// Write a row of numbers into the layout of matmul inputs, from column `k` on.
template <class T> void write_input(T *x, long n, long row, long k, const float *from, long count) {
    for (long i = 0; i < count;) {
        long at = (k + i) % KB, m = std::min(KB - at, count - i);
        T *to = x + (k + i) / KB * n * KB + row * KB + at;
        for (long j = 0; j < m; j++) put(to + j, from[i + j]);
        i += m;
    }
}

template <class T> inline void fetch(const T *at, long count) {
    for (long i = 0; i < std::min<long>(count, 16384); i += 64 / (long)sizeof(T)) __builtin_prefetch(at + i, 0, 2);
    asm volatile(""); // else the compiler drops calls of a function that only prefetches
}

// ---- attention of rows with a common prefix, over one key-value head
//
// All rows of a group attend to a range of positions before the next range: what they share is loaded once. Each query's sums continue from
// those of the range before, so they are the same in any group.

// Scores of G queries [G][hd] and the keys of B blocks.
template <int G, int B, class T> inline void dot_keys(const float *q, long hd, const T *k, float *scores, long room) {
    vf acc[G][B];
    for (int g = 0; g < G; g++)
        for (int b = 0; b < B; b++) acc[g][b] = vf{};
    for (long d = 0; d < hd; d++) {
        vf key_block[B];
#pragma GCC unroll 4
        for (int b = 0; b < B; b++) key_block[b] = load(k + (b * hd + d) * W);
#pragma GCC unroll 4
        for (int g = 0; g < G; g++) {
            vf a = splat(q[g * hd + d]);
#pragma GCC unroll 4
            for (int b = 0; b < B; b++) acc[g][b] += a * key_block[b];
        }
    }
    for (int g = 0; g < G; g++)
        for (int b = 0; b < B; b++) store(scores + g * room + b * W, acc[g][b]);
}

// out [G][B W] += probabilities [G][count] times values
template <int G, int B, class T> inline void add_values(const float *p, long room, long count, const T *v, long hdp, float *out) {
    vf acc[G][B];
    for (int g = 0; g < G; g++)
        for (int b = 0; b < B; b++) acc[g][b] = load(out + g * hdp + b * W);
    for (long j = 0; j < count; j++) {
        vf value_block[B];
#pragma GCC unroll 4
        for (int b = 0; b < B; b++) value_block[b] = load(v + j * hdp + b * W);
#pragma GCC unroll 4
        for (int g = 0; g < G; g++) {
            vf a = splat(p[g * room + j]);
#pragma GCC unroll 4
            for (int b = 0; b < B; b++) acc[g][b] += a * value_block[b];
        }
    }
    for (int g = 0; g < G; g++)
        for (int b = 0; b < B; b++) store(out + g * hdp + b * W, acc[g][b]);
}

// f(G, first) for `count` queries, four at a time, then the rest
template <class F> inline void by_four(long count, F f) {
    long g = 0;
    for (; g + 4 <= count; g += 4) f(std::integral_constant<int, 4>{}, g);
    switch (count - g) {
    case 3: f(std::integral_constant<int, 3>{}, g); break;
    case 2: f(std::integral_constant<int, 2>{}, g); break;
    case 1: f(std::integral_constant<int, 1>{}, g);
    }
}

// Scores [queries_count][room] of positions from .. to - 1; `from` begins a block.
template <class T> void score_range(const float *q, long queries_count, long hd, const T *k, long from, long to, float *scores, long room) {
    by_four(queries_count, [&](auto G, long g) {
        long b = from;
        for (; b + 4 * W <= to; b += 4 * W) dot_keys<G.value, 4>(q + g * hd, hd, k + b * hd, scores + g * room + b, room);
        for (; b < to; b += W) dot_keys<G.value, 1>(q + g * hd, hd, k + b * hd, scores + g * room + b, room);
    });
}

// out [queries_count][hdp] += probabilities p [queries_count][room] times the values of positions from .. to - 1.
template <class T> void add_weighted_values(const float *p, long room, long queries_count, long from, long to, const T *v, long hdp, float *out) {
    by_four(queries_count, [&](auto G, long g) {
        const float *x = p + g * room + from;
        const T *y = v + from * hdp;
        float *z = out + g * hdp;
        long d = 0;
        for (; d + 4 * W <= hdp; d += 4 * W) add_values<G.value, 4>(x, room, to - from, y + d, hdp, z + d);
        for (; d + 2 * W <= hdp; d += 2 * W) add_values<G.value, 2>(x, room, to - from, y + d, hdp, z + d);
        for (; d < hdp; d += W) add_values<G.value, 1>(x, room, to - from, y + d, hdp, z + d);
    });
}

// Softmax, not normalised: scores [queries_count][room] -> e^(score - maximum) at positions first .. last - 1, 0 elsewhere in their
// blocks; by [queries_count]: 1 / sum
void softmax(float *scores, long room, long queries_count, long first, long last, float cap, float *by) {
    const long low = first / W * W;
    vi lane;
    for (int i = 0; i < W; i++) lane[i] = i;
    for (long g = 0; g < queries_count; g++) {
        float *s = scores + g * room;
        vf top = splat(-INF), sum{};
        for (long j = low; j < last; j += W) {
            vf x = load(s + j);
            if (cap > 0) x = cap_(x, cap);
            if (j < first || j + W > last) x = (lane >= (int)(first - j)) & (lane < (int)(last - j)) ? x : splat(-INF);
            store(s + j, x);
            top = maximum(x, top);
        }
        float m = -INF;
        for (int i = 0; i < W; i++) m = top[i] > m ? top[i] : m;
        for (long j = low; j < last; j += W) {
            vf e = exp_(load(s + j) - m);
            store(s + j, e);
            sum += e;
        }
        by[g] = 1.0f / total(sum);
    }
}

// Rows that attend together: `count` of them from `first` on, in an order by common prefixes. All attend to the positions before `common`, on
// the same pages; none attends to positions from `end` on.
struct RowGroup {
    long first, count, common, end;
};

constexpr long QUERIES = 32; // of a group: with a page of keys and their scores they fit the L1 cache

// Groups of at most `most` of n rows; writes their order to `order`.
std::vector<RowGroup> row_groups_of(std::vector<long> &order, const int64_t *table, long pages_per_slot, const int64_t *slot, const int64_t *position, long n,
                           long most) {
    auto first_difference = [&](long a, long b) { // the first page in which two rows first_difference, or the number of pages that both attend to
        long upto = std::min(position[a], position[b]) / PAGE + 1, i = 0;
        const int64_t *x = table + slot[a] * pages_per_slot, *y = table + slot[b] * pages_per_slot;
        if (x != y) while (i < upto && x[i] == y[i]) i++;
        return x == y ? upto : i;
    };
    order.resize(n);
    for (long i = 0; i < n; i++) order[i] = i;
    std::sort(order.begin(), order.end(), [&](long a, long b) {
        long i = first_difference(a, b);
        bool shares_pages = i * PAGE > std::min(position[a], position[b]);
        return shares_pages ? position[a] < position[b] : table[slot[a] * pages_per_slot + i] < table[slot[b] * pages_per_slot + i];
    });
    std::vector<RowGroup> out;
    for (long i = 0; i < n; i += out.back().count) {
        long a = order[i], common = position[a] + 1, end = common, count = 1;
        for (; count < most && i + count < n; count++) {
            long b = order[i + count], same = std::min({common, position[b] + 1, first_difference(a, b) * PAGE}) / W * W;
            if (!same || 2 * same < common) break; // they share less than half of the positions
            common = same;
            end = std::max<long>(end, position[b] + 1);
        }
        out.push_back({i, count, count > 1 ? common : 0, end});
    }
    return out;
}

// One layer's keys and values, and the pages of the rows of a step.
template <class T> struct CacheView {
    const T *keys, *values;
    const int64_t *table, *slot, *position;
    long first, pages_per_slot, part, kv, hd, hdp, window; // first: of the layer's slots in the cache; pages, and positions (part), of a slot

    long begin(long end) const { return window && end > window ? end - window : 0; }

    // The offset of the part of the cache that holds a position of a row's sequence.
    long place(long r, long h, long at) const { return (first + table[slot[r] * pages_per_slot + at / PAGE]) * (kv * part) + h * part; }

    // f(place, from, to) for contiguous ranges; with `short_ranges` of at most a page.
    template <class F> void for_ranges(long r, long h, long from, long to, bool short_ranges, F f) const {
        for (long at = from; at < to;) {
            long where = place(r, h, at), next = at / PAGE * PAGE + PAGE;
            while (!short_ranges && next < to && place(r, h, next) == where) next += PAGE;
            f(where, at, std::min(to, next));
            at = next;
        }
    }

    // Prefetch the keys or values that a row attends to, up to 16384 numbers.
    void prefetch(const T *x, long wide, long r, long h) const {
        long end = position[r] + 1, from = begin(end) / W * W;
        for_ranges(r, h, from, std::min(end, from + 16384 / wide), false, [&](long where, long a, long z) {
            fetch(x + (where + a) * wide, (z - a) * wide);
        });
    }

    // q [rows of the group][groups][hd] (scaled) -> out [rows][groups][hdp]; scores [rows][groups][room] and by [rows][groups] are scratch.
    void attend(const RowGroup &p, const long *rows, long h, const float *q, long groups, float cap, float *scores, long room, float *out,
                float *by) const {
        const long common = begin(p.end) ? 0 : p.common;
        auto score_positions = [&](long e, long count, long from, long to) {
            for_ranges(rows[e], h, from, to, count > 1, [&](long where, long a, long z) {
                score_range(q + e * groups * hd, count * groups, hd, keys + where * hd, a, z, scores + e * groups * room, room);
            });
        };
        auto add_positions = [&](long e, long count, long from, long to) {
            for_ranges(rows[e], h, from, to, count > 1, [&](long where, long a, long z) {
                add_weighted_values(scores + e * groups * room, room, count * groups, a, z, values + where * hdp, hdp, out + e * groups * hdp);
            });
        };
        prefetch(values, hdp, rows[0], h);
        score_positions(0, p.count, 0, common);
        for (long e = 0; e < p.count; e++) {
            long end = position[rows[e]] + 1;
            score_positions(e, 1, std::max(common, begin(end) / W * W), end);
            softmax(scores + e * groups * room, room, groups, begin(end), end, cap, by + e * groups);
        }
        std::fill(out, out + p.count * groups * hdp, 0.0f);
        add_positions(0, p.count, 0, common);
        for (long e = 0; e < p.count; e++) {
            long end = position[rows[e]] + 1;
            add_positions(e, 1, std::max(common, begin(end)), end);
        }
        for (long g = 0; g < p.count * groups; g++)
            for (long c = 0; c < hdp; c++) out[g * hdp + c] *= by[g];
    }
};

// ---- the model

struct Shape { // as decode.py fills it
    int64_t vocab, width, layers, heads, kv_heads, head_dim, hidden, activation, sandwich, qk_norm;
    double eps, scale, score_cap, logit_cap, embedding_scale;
};

enum Norm { INPUT_NORM, POST_ATTENTION_NORM, PRE_MLP_NORM, POST_MLP_NORM, Q_NORM, K_NORM, NORMS };
enum Matrix { QKV, OUT, GATE_UP, DOWN, MATRICES };

template <class T> struct Layer {
    Linear<T> matrix[MATRICES];
    std::vector<float> norm[NORMS];
    long window = 0;
    const float *cos = nullptr, *sin = nullptr;
};

// Vectors added to the residual stream of some rows: of_row [n] is the vector of a row or -1, layer [vectors] after which layer it is added,
// vectors [vectors][width]. of_row is null where there are none.
struct Steering {
    const int64_t *of_row, *layer;
    const float *vectors;
};

struct AnyModel {
    Shape s;
    virtual ~AnyModel() = default;
    virtual void matrix(long layer, int which, const float *w, long out, long k, const float *bias, int threads) = 0;
    virtual void norm(long layer, int which, const float *w, long count) = 0;
    virtual void layer(long layer, long window, const float *cos, const float *sin) = 0;
    virtual void forward(void *k, void *v, long slots, const int64_t *table, long pages_per_slot, const int64_t *ids, const int64_t *slot,
                         const int64_t *position, long n, const Steering &steering, float *hidden, int threads) = 0;
    virtual void logits(const float *hidden, const int64_t *rows, long n, float *out, int threads) = 0;
    const float *embedding = nullptr;
};

template <class T> struct Model : AnyModel {
    std::deque<Layer<T>> layers;
    Linear<T> head;
    std::vector<float> last;
    Scratch<float> x_, qkv_, wide_, scores_;
    std::vector<long> order;
    Scratch<T> in_, mid_;

    void matrix(long layer, int which, const float *w, long out, long k, const float *bias, int threads) override {
        Linear<T> &l = layer < 0 ? head : layers[layer].matrix[which];
        l.out = up(out, NR);
        l.k = up(k, KB);
        constexpr int P = sizeof(T) == 2 ? 2 : 1; // adjacent numbers of k
        T *to = l.weights.of(l.out * l.k);
        l.bias.assign(bias ? l.out : 0, 0.0f);
        if (bias) memcpy(l.bias.data(), bias, out * sizeof(float));
        pool.run(threads, [&](int) {
            pool.parallel_for(l.out / NR, [&](long p) {
                T *panel = to + p * l.k * NR;
                for (long kb = 0; kb < l.k; kb += KB)
                    for (long c = 0; c < NR; c++)
                        for (long i = kb; i < kb + KB; i++)
                            put(panel + i / P * P * NR + c * P + i % P, i < k && p * NR + c < out ? w[(p * NR + c) * k + i] : 0.0f);
            });
        });
    }

    void norm(long layer, int which, const float *w, long count) override {
        (layer < 0 ? last : layers[layer].norm[which]).assign(w, w + count);
    }

    void layer(long layer, long window, const float *cos, const float *sin) override {
        layers[layer].window = window;
        layers[layer].cos = cos;
        layers[layer].sin = sin;
    }

    // x / rms(x) * weight
    void rms(const float *x, const float *weight, long count, float *out) const {
        vf squares{};
        long i = 0;
        for (; i + W <= count; i += W) squares += load(x + i) * load(x + i);
        float sum = total(squares);
        for (; i < count; i++) sum += x[i] * x[i];
        float by = 1.0f / std::sqrt(sum / count + (float)s.eps);
        for (i = 0; i < count; i++) out[i] = x[i] * by * weight[i];
    }

    void forward(void *kc, void *vc, long slots, const int64_t *table, long pages_per_slot, const int64_t *ids, const int64_t *slot, const int64_t *position,
                 long n, const Steering &steering, float *hidden, int threads) override {
        const long d = s.width, ld = up(d, NR), hd = s.head_dim, hdp = up(hd, W), kv = s.kv_heads, groups = s.heads / kv;
        const long ldq = up((s.heads + 2 * kv) * hd, NR), deep = up(std::max<long>(d, s.heads * hd), KB), hid = up(up(s.hidden, W), KB);
        float *x = x_.of(n * ld), *qkv = qkv_.of(n * ldq), *wide = wide_.of(s.sandwich ? n * ld : 0);
        T *in = in_.of(n * deep), *mid = mid_.of(n * hid), *keys = (T *)kc, *values = (T *)vc;
        // Groups of several rows where that leaves every thread several pieces.
        const long most = std::max<long>(1, std::min(QUERIES / groups, n * kv / (4 * threads))), queries = most * groups;
        const std::vector<RowGroup> row_groups = row_groups_of(order, table, pages_per_slot, slot, position, n, most);
        const long room = up(*std::max_element(position, position + n) + 1, PAGE) + 4 * W;
        scores_.of(threads * queries * room);
        // Matmul inputs beyond the last column are set to 0: the weights there are 0, and 0 * NaN would be NaN.
        pool.run(threads, [&](int mine) {
            std::vector<float> row_(std::max<long>(up(d, KB), hd)), q_(queries * hd), out_(queries * hdp), by(queries);
            float *row = row_.data(), *q = q_.data(), *out = out_.data(), *scores = scores_.at + mine * queries * room;
            auto normed = [&](long r, const std::vector<float> &weight) {
                rms(x + r * ld, weight.data(), d, row);
                for (long i = d; i < up(d, KB); i++) row[i] = 0;
                write_input(in, n, r, 0, row, up(d, KB));
            };
            auto add = [&](long r, long panel, vf a, vf b) {
                float *to = (s.sandwich ? wide : x) + r * ld + panel * NR;
                if (s.sandwich) store(to, a), store(to + W, b);
                else store(to, load(to) + a), store(to + W, load(to + W) + b);
            };
            auto add_normed = [&](long r, const std::vector<float> &weight) { // with sandwich norms a block's output is normed, then added
                rms(wide + r * ld, weight.data(), d, row);
                for (long i = 0; i < d; i++) x[r * ld + i] += row[i];
            };
            pool.parallel_for(n, [&](long r) {
                for (long i = 0; i < d; i++) x[r * ld + i] = embedding[ids[r] * d + i] * (float)s.embedding_scale;
                for (long i = d; i < ld; i++) x[r * ld + i] = 0;
                normed(r, layers[0].norm[INPUT_NORM]);
            });
            for (long l = 0; l < s.layers; l++) {
                const Layer<T> &layer = layers[l];
                matmul(in, n, layer.matrix[QKV], [&](long r, long panel, vf a, vf b) {
                    float *to = qkv + r * ldq + panel * NR;
                    store(to, a), store(to + W, b);
                });
                const CacheView<T> view{keys, values, table, slot, position, l * slots, pages_per_slot, pages_per_slot * PAGE, kv, hd, hdp, layer.window};
                auto rotate = [&](float *y, long r) {
                    if (!layer.cos) return;
                    const float *cos = layer.cos + position[r] * hd, *sin = layer.sin + position[r] * hd;
                    for (long i = 0; i < hd / 2; i++) {
                        float a = y[i], b = y[i + hd / 2];
                        y[i] = a * cos[i] - b * sin[i];
                        y[i + hd / 2] = b * cos[i + hd / 2] + a * sin[i + hd / 2];
                    }
                };
                pool.parallel_for(n, [&](long r) {
                    float *y = qkv + r * ldq;
                    for (long h = 0; h < s.heads + kv; h++, y += hd) {
                        if (s.qk_norm) rms(y, layer.norm[h < s.heads ? Q_NORM : K_NORM].data(), hd, y);
                        rotate(y, r);
                        if (h < s.heads) {
                            for (long i = 0; i < hd; i++) y[i] *= (float)s.scale;
                            continue;
                        }
                        T *to = keys + (view.place(r, h - s.heads, position[r]) + position[r] / W * W) * hd + position[r] % W;
                        for (long i = 0; i < hd; i++) put(to + i * W, y[i]);
                    }
                    for (long h = 0; h < kv; h++, y += hd) {
                        T *to = values + (view.place(r, h, position[r]) + position[r]) * hdp;
                        for (long i = 0; i < hd; i++) put(to + i, y[i]);
                    }
                });
                pool.parallel_for(row_groups.size() * kv, [&](long i) {
                    if (long next = i + threads; next < (long)row_groups.size() * kv) view.prefetch(keys, hd, order[row_groups[next / kv].first], next % kv);
                    const RowGroup &p = row_groups[i / kv];
                    const long h = i % kv, *rows = order.data() + p.first;
                    const long own = groups * hd;
                    for (long e = 0; e < p.count; e++) memcpy(q + e * own, qkv + rows[e] * ldq + h * own, own * sizeof(float));
                    view.attend(p, rows, h, q, groups, (float)s.score_cap, scores, room, out, by.data());
                    for (long e = 0; e < p.count; e++) {
                        for (long g = 0; g < groups; g++) write_input(in, n, rows[e], (h * groups + g) * hd, out + (e * groups + g) * hdp, hd);
                        if (h < kv - 1) continue;
                        static const float zeros[KB] = {};
                        write_input(in, n, rows[e], s.heads * hd, zeros, up(s.heads * hd, KB) - s.heads * hd);
                    }
                });
                matmul(in, n, layer.matrix[OUT], add);
                pool.parallel_for(n, [&](long r) {
                    if (s.sandwich) add_normed(r, layer.norm[POST_ATTENTION_NORM]);
                    normed(r, layer.norm[s.sandwich ? PRE_MLP_NORM : POST_ATTENTION_NORM]);
                });
                matmul(in, n, layer.matrix[GATE_UP], [&](long r, long panel, vf a, vf b) {
                    long at = panel * W;
                    store(mid + at / KB * n * KB + r * KB + at % KB, activate(a, (int)s.activation) * b);
                });
                if (long have = layer.matrix[GATE_UP].out / 2; have < layer.matrix[DOWN].k)
                    pool.parallel_for(n, [&](long r) {
                        static const float zeros[KB] = {};
                        write_input(mid, n, r, have, zeros, layer.matrix[DOWN].k - have);
                    });
                matmul(mid, n, layer.matrix[DOWN], add);
                pool.parallel_for(n, [&](long r) {
                    if (s.sandwich) add_normed(r, layer.norm[POST_MLP_NORM]);
                    if (steering.of_row && steering.of_row[r] >= 0 && steering.layer[steering.of_row[r]] == l)
                        for (long i = 0; i < d; i++) x[r * ld + i] += steering.vectors[steering.of_row[r] * d + i];
                    if (l + 1 < s.layers) normed(r, layers[l + 1].norm[INPUT_NORM]);
                    else rms(x + r * ld, last.data(), d, hidden + r * d);
                });
            }
        });
    }

    void logits(const float *hidden, const int64_t *rows, long n, float *out, int threads) override {
        const long d = s.width, ld = head.out;
        T *in = in_.of(n * up(d, KB));
        pool.run(threads, [&](int) {
            pool.parallel_for(n, [&](long r) {
                static const float zeros[KB] = {};
                write_input(in, n, r, 0, hidden + rows[r] * d, d);
                write_input(in, n, r, d, zeros, up(d, KB) - d);
            });
            matmul(in, n, head, [&](long r, long panel, vf a, vf b) {
                float *to = out + r * ld + panel * NR;
                store(to, cap_(a, (float)s.logit_cap)), store(to + W, cap_(b, (float)s.logit_cap));
            });
        });
    }
};

// ---- sampling

constexpr long SPAN = 32 * W; // ids of a partial sum of the CDF

// sum(exp(x / t - top)) of a row, top its greatest x / t, and the partial sums of its spans
double sum_exp(const float *x, long vocab, float t, float &top, std::vector<double> &spans) {
    vf high = splat(-INF);
    long i = 0;
    for (; i + W <= vocab; i += W) high = maximum(load(x + i), high);
    top = -INF;
    for (int j = 0; j < W; j++) top = high[j] > top ? high[j] : top;
    for (; i < vocab; i++) top = x[i] > top ? x[i] : top;
    top /= t;
    double whole = 0;
    spans.clear();
    for (long a = 0; a < vocab; a += SPAN) {
        vf sum{};
        for (i = a; i + W <= vocab && i < a + SPAN; i += W) sum += exp_(load(x + i) / t - top);
        if (i < vocab && i < a + SPAN) {
            vf rest = splat(-INF);
            for (int j = 0; i + j < vocab; j++) rest[j] = x[i + j];
            sum += exp_(rest / t - top);
        }
        spans.push_back(total(sum));
        whole += spans.back();
    }
    return whole;
}

// The id of a row by inverse CDF at `uniform` (temperature 0: the greatest) unless it is given, and its log-probability.
void draw_row(const float *x, long vocab, float t, double uniform, bool given, int64_t &id, float &logp) {
    static thread_local std::vector<double> spans;
    float top, by = t == 0 ? 1 : t;
    double whole = sum_exp(x, vocab, by, top, spans);
    if (!given && t == 0) {
        for (id = 0; id < vocab - 1 && x[id] / by != top;) id++;
        logp = std::isfinite(whole) ? 0.0f : std::nanf("");
        return;
    }
    if (!given) {
        double target = uniform * whole, upto = 0;
        long span = 0, count = (long)spans.size();
        while (span < count - 1 && !(upto + spans[span] > target)) upto += spans[span++];
        id = -1;
        while (id < 0 && span >= 0) { // rounding may leave the target above the span's sum: then the last id with a probability above 0
            for (long a = span * SPAN; a < vocab && a < (span + 1) * SPAN; a += W) {
                vf chunk = splat(-INF);
                for (int j = 0; j < W && a + j < vocab; j++) chunk[j] = x[a + j];
                vf e = exp_(chunk / by - top);
                int64_t found = -1;
                for (int j = 0; j < W && found < 0; j++) {
                    if (!(e[j] > 0)) continue;
                    id = a + j;
                    if ((upto += e[j]) > target) found = id;
                }
                if (found >= 0) break;
            }
            span--;
        }
        id = id < 0 ? 0 : id;
    }
    logp = x[id] / by - top - (float)std::log(whole);
}

} // namespace

extern "C" {

int64_t lanes() { return W; }
int64_t page() { return PAGE; }
void large_pages(void *at, int64_t bytes) { use_large_pages(at, bytes); }

void *model_new(const Shape *shape, int64_t bf16) {
    auto made = [&](auto *m) {
        m->s = *shape;
        m->layers.resize(shape->layers);
        return (AnyModel *)m;
    };
    return bf16 ? made(new Model<half>) : made(new Model<float>);
}
void model_free(void *m) { delete (AnyModel *)m; }
void model_embedding(void *m, const float *w) { ((AnyModel *)m)->embedding = w; }
void model_matrix(void *m, int64_t layer, int64_t which, const float *w, int64_t out, int64_t k, const float *bias, int64_t threads) {
    ((AnyModel *)m)->matrix(layer, (int)which, w, out, k, bias, (int)threads);
}
void model_norm(void *m, int64_t layer, int64_t which, const float *w, int64_t count) { ((AnyModel *)m)->norm(layer, (int)which, w, count); }
void model_layer(void *m, int64_t layer, int64_t window, const float *cos, const float *sin) { ((AnyModel *)m)->layer(layer, window, cos, sin); }
void model_forward(void *m, void *k, void *v, int64_t slots, const int64_t *table, int64_t pages_per_slot, const int64_t *ids, const int64_t *slot,
                   const int64_t *position, int64_t n, const int64_t *steered, const int64_t *layer, const float *vectors, float *hidden, int64_t threads) {
    ((AnyModel *)m)->forward(k, v, slots, table, pages_per_slot, ids, slot, position, n, {steered, layer, vectors}, hidden, (int)threads);
}
void model_logits(void *m, const float *hidden, const int64_t *rows, int64_t n, float *out, int64_t threads) {
    ((AnyModel *)m)->logits(hidden, rows, n, out, (int)threads);
}
void draw(const float *logits, int64_t stride, int64_t vocab, const float *temperature, const double *uniform, int64_t given, int64_t n, int64_t *ids,
          float *logp, int64_t threads) {
    pool.run((int)threads, [&](int) {
        pool.parallel_for(n, [&](long r) {
            draw_row(logits + r * stride, vocab, temperature[r], given ? 0 : uniform[r], given, ids[r], logp[r]);
        });
    });
}

// Draw up to `steps` tokens of each of n sequences, and write them with their log-probabilities to tokens, logp [slots, length].
// A sequence is left out after a token that may stop it, or at its limit; all end once `enough` have been. uniform [n, steps],
// may_stop [tables, vocab]. Adds to `known`, the tokens of each sequence; returns the steps done, -1 where a distribution is not finite.
int64_t generate(void *m, void *k, void *v, int64_t slots, const int64_t *table, int64_t pages_per_slot, int64_t *tokens, float *logp, int64_t length,
                 const int64_t *slot, int64_t *known, const int64_t *limit, const float *temperature, const double *uniform, const uint8_t *may_stop,
                 const int64_t *stop_table, int64_t n, int64_t steps, int64_t enough, int64_t threads) {
    AnyModel *model = (AnyModel *)m;
    const long vocab = model->s.vocab, stride = up(vocab, NR);
    std::vector<int64_t> row(n), all(n), at(n), ids(n), position(n);
    std::vector<float> t(n), drawn(n), hidden(n * model->s.width), logits(n * stride);
    std::vector<double> u(n);
    for (long i = 0; i < n; i++) row[i] = all[i] = i;
    long left = n, done = 0;
    for (; done < steps && left && n - left < enough; done++) {
        for (long i = 0; i < left; i++) {
            const long r = row[i];
            at[i] = slot[r], position[i] = known[r] - 1, ids[i] = tokens[slot[r] * length + known[r] - 1];
            t[i] = temperature[r], u[i] = uniform[r * steps + done];
        }
        model->forward(k, v, slots, table, pages_per_slot, ids.data(), at.data(), position.data(), left, {}, hidden.data(), (int)threads);
        model->logits(hidden.data(), all.data(), left, logits.data(), (int)threads);
        draw(logits.data(), stride, vocab, t.data(), u.data(), 0, left, ids.data(), drawn.data(), threads);
        long stay = 0;
        for (long i = 0; i < left; i++) {
            const long r = row[i], to = slot[r] * length + known[r]++;
            if (!std::isfinite(drawn[i])) return -1;
            tokens[to] = ids[i], logp[to] = drawn[i];
            if (known[r] < limit[r] && !may_stop[stop_table[r] * vocab + ids[i]]) row[stay++] = r;
        }
        left = stay;
    }
    return done;
}
}

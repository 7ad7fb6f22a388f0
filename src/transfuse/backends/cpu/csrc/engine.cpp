// Runs a program: segments between cuts, each a parallel walk over tiles in a fixed division, so
// that results are the same bits for any number of threads. Compiled once per instruction set.
#include "engine.h"

#include <omp.h>

#include <exception>
#include <memory>
#include <utility>

#include "convolution.h"

namespace TF_NAMESPACE {

constexpr int64_t TILE_BYTES = 224 * 1024;  // a tile's values, beside its inputs in the second-level cache
constexpr int64_t LARGEST_BYTES = 2 << 20;
constexpr int64_t BLOCK = 4096;             // values that go through several steps in the first-level one
constexpr int64_t HEAVY_BYTES = 512 * 1024; // weights beyond the second-level cache
constexpr int64_t FEWEST_TILES = 48;        // so that many threads find work; never by their number

// The shape of the values before a step.
struct Level {
    int64_t extents[3];
    Channels channels;
};

static bool is_window(int op) { return op == TF_MAX_POOL || op == TF_SUM_POOL || op == TF_SIGN_POOL; }
static bool is_stats(int op) { return op >= TF_BATCH_STATS && op <= TF_MAX_STATS; }
static bool is_resident(int op) { return op == TF_GROUP_NORM || op == TF_SPACE_SOFTMAX; }

// Steps that see one position at a time, and those of them that see one element.
static bool is_element(int op) {
    return op <= TF_TANH || (op >= TF_BATCH_APPLY && op <= TF_MAX_APPLY);
}
static bool is_position(int op) { return is_element(op) || op == TF_SOFTMAX; }

static int64_t windows(int64_t n, const transfuse_step& s, int axis) {
    return (n + 2 * s.padding[axis] - s.kernel[axis]) / s.stride[axis] + 1;
}

// What an element step reads, by slot.
template <class T> struct Lines {
    const T* of[3];
};

// Partial statistics of a gathering step, one set a tile, and what is made of them.
template <class T> struct Statistic {
    int64_t width = 0;             // slots, or groups
    Buffer<Moments> moments;       // [tile][width]; for exp and max: mean = maximum, m2 = sum
    std::vector<T> shift, scale, offset;  // [sample or 1][slot]: (x - shift) * scale + offset

    Statistic() = default;
    Statistic(int64_t sets, int64_t slots) { resize(sets, slots); }
    void resize(int64_t sets, int64_t slots) {
        for (auto* line : {&shift, &scale, &offset}) line->assign(sets * slots, 0);
        by_sample = sets > 1;
    }
    Lines<T> lines(int64_t sample, int64_t slots) const {
        const int64_t at = by_sample ? sample * slots : 0;
        return {{&shift[at], &scale[at], &offset[at]}};
    }
    bool by_sample = false;
};

template <class T> class Engine {
  public:
    Engine(const transfuse_program& program, int threads) : p(program), threads(threads) {
        prologue();
        levels();
    }

    void run() {
        int64_t last = 0;  // the output's last element
        const int64_t sizes[5] = {p.batch, at.back().channels.count, at.back().extents[0], at.back().extents[1],
                                  at.back().extents[2]};
        for (int i = 0; i < 5; i++) last += (sizes[i] - 1) * p.output_strides[i];
        expect_writes(p.output, size_t(last) * (p.element == TF_F64 ? 8 : p.element == TF_F32 ? 4 : 2));
        size_t begin = 0;  // the step before which values lie in memory
        size_t fresh = 0;  // gathering steps before this one are done
        while (true) {
            size_t end = fresh;
            while (end < size_t(p.steps_count) && p.steps[end].op != TF_CUT) end++;
            if (end == size_t(p.steps_count)) return segment(begin, fresh, end, nullptr);
            if (p.steps[end].i0 == 0 && fits_output(end)) {
                segment(begin, fresh, end, nullptr);
                return in_place(end + 1);
            }
            if (p.steps[end].i0 == 0) {
                const Level& level = at[end];
                Buffer<T> values = allocate<T>(p.batch * level.extents[0] * level.extents[1] *
                                               level.extents[2] * level.channels.slots);
                segment(begin, fresh, end, values.get());
                stored = std::move(values);
                begin = end + 1;
            } else {
                segment(begin, fresh, end, &nowhere);
            }
            fresh = end + 1;
        }
    }

  private:
    const transfuse_program& p;
    const int threads;
    int64_t inputs[3];  // of the convolution
    const void* source;
    int element;
    int64_t strides[5];
    Buffer<T> pooled, stored;
    T nowhere = 0;  // stands for: keep nothing but the statistic
    std::vector<Level> at;  // before each step, and after the last
    std::vector<std::vector<T>> lines;  // each step's operand by slot
    std::vector<Statistic<T>> statistics;  // by the step that gathers

    // f(own, i) for every i < count, each thread with an `own` that prepare() made. A thread that fails
    // leaves its share to the others, and the failure is thrown when all are done.
    template <class Prepare, class F> void in_parallel(int64_t count, Prepare prepare, F f) const {
        std::exception_ptr failure;
        const auto done = [&](auto work) {
            try {
                work();
                return true;
            } catch (...) {
#pragma omp critical
                failure = std::current_exception();
                return false;
            }
        };
#pragma omp parallel num_threads(threads)
        {
            std::unique_ptr<decltype(prepare())> own;
            done([&] { own.reset(new decltype(prepare())(prepare())); });
#pragma omp for schedule(dynamic)
            for (int64_t i = 0; i < count; i++)
                if (own && !done([&] { f(*own, i); })) own.reset();
        }
        if (failure) std::rethrow_exception(failure);
    }

    // Pooling before the convolution, into a contiguous tensor of the compute type.
    void prologue() {
        for (int a = 0; a < 3; a++) inputs[a] = p.spatial[a];
        for (int i = 0; i < 5; i++) strides[i] = p.input_strides[i];
        source = p.input;
        element = p.element;
        if (!p.pooled) return;
        for (int a = 0; a < 3; a++) inputs[a] = windows(p.spatial[a], p.pool, a);
        const int64_t plane = inputs[1] * inputs[2], volume = inputs[0] * plane;
        pooled = allocate<T>(p.batch * p.in_channels * volume);
        const bool most = p.pool.op == TF_MAX_POOL;
        typedef std::pair<std::vector<T>, std::vector<T>> Rows;
        const auto prepare = [&] { return Rows(std::vector<T>(p.spatial[2]), std::vector<T>(p.spatial[2])); };
        in_parallel(p.batch * p.in_channels * inputs[0], prepare, [&](Rows& rows, int64_t i) {
            const int64_t nc = i / inputs[0], z = i % inputs[0];
            for (int64_t y = 0; y < inputs[1]; y++)
                pool_row(nc, z, y, most, rows.first, rows.second,
                         pooled.get() + nc * volume + z * plane + y * inputs[2]);
        });
        source = pooled.get();
        element = sizeof(T) == 8 ? TF_F64 : TF_F32;
        const int64_t contiguous[5] = {p.in_channels * volume, volume, plane, inputs[2], 1};
        for (int i = 0; i < 5; i++) strides[i] = contiguous[i];
    }

    void pool_row(int64_t nc, int64_t z, int64_t y, bool most, std::vector<T>& line, std::vector<T>& folded,
                  T* to) const {
        if (most)
            fold_row(nc, z, y, [](T a, T b) { return larger(a, b); }, T(-INFINITY), T(1), line, folded, to);
        else
            fold_row(nc, z, y, [](T a, T b) { return a + b; }, T(0), T(p.pool.f0), line, folded, to);
    }

    template <class F>
    void fold_row(int64_t nc, int64_t z, int64_t y, F fold, T none, T factor, std::vector<T>& line,
                  std::vector<T>& folded, T* to) const {
        const transfuse_step& s = p.pool;
        const int64_t width = p.spatial[2];
        bool first = true;
        for (int64_t d = 0; d < s.kernel[0]; d++)
            for (int64_t h = 0; h < s.kernel[1]; h++) {
                const int64_t id = z * s.stride[0] - s.padding[0] + d, ih = y * s.stride[1] - s.padding[1] + h;
                if (id < 0 || ih < 0 || id >= p.spatial[0] || ih >= p.spatial[1]) continue;
                const int64_t from = nc / p.in_channels * p.input_strides[0] +
                                     nc % p.in_channels * p.input_strides[1] + id * p.input_strides[2] +
                                     ih * p.input_strides[3];
                load_row(p.element, p.input, from, p.input_strides[4], width, first ? folded.data() : line.data());
                if (!first)
                    for (int64_t w = 0; w < width; w++) folded[w] = fold(folded[w], line[w]);
                first = false;
            }
        if (s.stride[2] == 2)  // by a constant the compiler takes every other one with vectors
            fold_width<2>(fold, none, 2, folded.data(), to);
        else
            fold_width<0>(fold, none, s.stride[2], folded.data(), to);
        for (int64_t x = 0; x < inputs[2]; x++) to[x] *= factor;
    }

    // Windows along a row, one tap after another.
    template <int STRIDE, class F> void fold_width(F fold, T none, int64_t stride, const T* from, T* to) const {
        const int64_t padding = p.pool.padding[2];
        if (STRIDE) stride = STRIDE;
        std::fill(to, to + inputs[2], none);
        for (int64_t k = 0; k < p.pool.kernel[2]; k++) {
            const int64_t off = k - padding;  // 0 <= x * stride + off < width
            const int64_t lo = off < 0 ? (-off + stride - 1) / stride : 0;
            const int64_t hi = std::min(inputs[2], (p.spatial[2] - 1 - off) / stride + 1);
            for (int64_t x = lo; x < hi; x++) to[x] = fold(to[x], from[x * stride + off]);
        }
    }

    static T larger(T a, T b) { return a > b || a != a ? a : b; }

    void levels() {
        Level level;
        for (int a = 0; a < 3; a++)
            level.extents[a] = (inputs[a] - 1) * p.stride[a] - 2 * p.padding[a] +
                               p.dilation[a] * (p.kernel[a] - 1) + p.output_padding[a] + 1;
        level.channels = conv_channels<T>(p);
        for (int i = 0; i < p.steps_count; i++) {
            at.push_back(level);
            if (is_window(p.steps[i].op))
                for (int a = 0; a < 3; a++) level.extents[a] = windows(level.extents[a], p.steps[i], a);
            lines.push_back(operand(p.steps[i], level.channels));
            if (p.steps[i].op == TF_SUM) level.channels = {1, 1, LANES<T>, LANES<T>};
        }
        at.push_back(level);
        statistics.resize(p.steps_count);
    }

    std::vector<T> operand(const transfuse_step& s, const Channels& c) const {
        const bool constant = (s.op == TF_ADD || s.op == TF_SCALE) && !s.t0;
        return constant ? std::vector<T>(c.slots, T(s.f0)) : by_slot(s.t0, c, T(s.op == TF_ADD ? 0 : 1));
    }

    // The boxes a tile has before each step from `begin` to `end`, last one the tile itself; steps
    // from `fresh` on gather.
    std::vector<Box> boxes(size_t begin, size_t fresh, size_t end, const Box& tile) const {
        std::vector<Box> found(end - begin + 1);
        Box box = tile;    // what the steps that follow read
        Box share = tile;  // the tile's share of all positions: shares meet without gap or overlap
        found.back() = tile;
        for (size_t i = end; i-- > begin;) {
            const transfuse_step& s = p.steps[i];
            if (is_window(s.op))
                for (int a = 0; a < 3; a++) {
                    const int64_t lo = box.lo[a] * s.stride[a] - s.padding[a];
                    const int64_t hi = (box.hi[a] - 1) * s.stride[a] - s.padding[a] + s.kernel[a];
                    box.lo[a] = std::max<int64_t>(0, lo);
                    box.hi[a] = std::min(at[i].extents[a], hi);
                    const bool last = share.hi[a] == at[i + 1].extents[a];
                    share.lo[a] *= s.stride[a];
                    share.hi[a] = last ? at[i].extents[a] : share.hi[a] * s.stride[a];
                }
            // A statistic covers what later windows leave out, too.
            if ((is_stats(s.op) && i >= fresh) || is_resident(s.op)) box = share;
            found[i - begin] = box;
        }
        return found;
    }

    // Values that the largest of a tile's boxes holds.
    int64_t values(size_t begin, size_t fresh, size_t end, const Box& tile) const {
        const auto found = boxes(begin, fresh, end, tile);
        int64_t most = 0;
        for (size_t i = begin; i <= end; i++)
            most = std::max(most, found[i - begin].positions() * at[i].channels.slots);
        return most;
    }

    static Box tile_at(const int64_t* index, const int64_t* size, const int64_t* extents) {
        Box tile;
        for (int a = 0; a < 3; a++) {
            tile.lo[a] = index[a] * size[a];
            tile.hi[a] = std::min(tile.lo[a] + size[a], extents[a]);
        }
        return tile;
    }

    // Values that every tile of a division has room in: axes are independent, so the longest box
    // along each one tells.
    int64_t room(size_t begin, size_t fresh, size_t end, const int64_t* size) const {
        const int64_t* extents = at[end].extents;
        std::vector<int64_t> positions(end - begin + 1, 1);
        for (int a = 0; a < 3; a++) {
            std::vector<int64_t> longest(end - begin + 1, 0);
            for (int64_t index[3] = {0, 0, 0}; index[a] * size[a] < extents[a]; index[a]++) {
                const auto found = boxes(begin, fresh, end, tile_at(index, size, extents));
                for (size_t i = 0; i < longest.size(); i++) longest[i] = std::max(longest[i], found[i].size(a));
            }
            for (size_t i = 0; i < longest.size(); i++) positions[i] *= longest[i];
        }
        int64_t most = 0;
        for (size_t i = begin; i <= end; i++) most = std::max(most, positions[i - begin] * at[i].channels.slots);
        return most;
    }

    // About the values of the largest tile: the first, second and last along each axis tell.
    int64_t values(size_t begin, size_t fresh, size_t end, const int64_t* size) const {
        const int64_t* extents = at[end].extents;
        int64_t most = 0, which[3][3];
        for (int a = 0; a < 3; a++) {
            const int64_t last = (extents[a] - 1) / size[a];
            which[a][0] = 0, which[a][1] = std::min<int64_t>(1, last), which[a][2] = last;
        }
        for (int64_t d : which[0])
            for (int64_t h : which[1])
                for (int64_t w : which[2]) {
                    const int64_t index[3] = {d, h, w};
                    most = std::max(most, values(begin, fresh, end, tile_at(index, size, extents)));
                }
        return most;
    }

    // Rows that a tile grows by: those of whole pairs in every phase of the convolution.
    int64_t rows_of_pairs(size_t begin, size_t fresh, size_t end) const {
        if (begin > 0 || !is_paired<T>(p)) return 1;
        for (int64_t rows = 1; rows <= 2 * p.stride[1]; rows++) {
            const int64_t index[3] = {0, 1, 0}, size[3] = {1, rows, 1};
            if (2 * rows > at[end].extents[1]) break;
            if (boxes(begin, fresh, end, tile_at(index, size, at[end].extents))[0].size(1) % (2 * p.stride[1]) == 0)
                return rows;
        }
        return 1;
    }

    // Makes tiles larger while they fit: along the axis where inputs that neighbours read too weigh most.
    void grow(size_t begin, size_t fresh, size_t end, int64_t limit, int64_t rows, int64_t* size) const {
        const int64_t *extents = at[end].extents, by[2] = {1, rows};
        bool done[2] = {false, false};
        while (!done[0] || !done[1]) {
            const int64_t first[3] = {0, 0, 0};
            const Box box = boxes(begin, fresh, end, tile_at(first, size, extents))[0];
            double shared[2];
            for (int a : {0, 1}) shared[a] = double(p.dilation[a] * (p.kernel[a] - 1)) / double(box.size(a));
            const int a = done[0] || (!done[1] && shared[1] >= shared[0]) ? 1 : 0;
            int64_t trial[3] = {size[0], size[1], size[2]};
            trial[a] += by[a];
            done[a] = trial[a] > extents[a] || values(begin, fresh, end, trial) * int64_t(sizeof(T)) > limit;
            if (!done[a]) size[a] = trial[a];
        }
    }

    // A division into tiles that depends on the sizes alone.
    void divide(size_t begin, size_t fresh, size_t end, int64_t* size) const {
        const int64_t* extents = at[end].extents;
        for (int a = 0; a < 3; a++) size[a] = extents[a];
        for (size_t i = begin; i < end; i++)
            if (is_resident(p.steps[i].op)) return;
        // Every tile reads all weights: many of them want many positions to meet, and few tiles.
        const int64_t weights = begin == 0 ? packed_size<T>(p) * int64_t(sizeof(T)) : 0;
        const bool heavy = weights > HEAVY_BYTES;
        const int64_t fewest = weights > 8 * HEAVY_BYTES ? FEWEST_TILES / 8 : heavy ? FEWEST_TILES / 2 : FEWEST_TILES;
        const int64_t smallest = heavy ? TILE_BYTES : TILE_BYTES / 8;
        const int64_t rows = std::min(rows_of_pairs(begin, fresh, end), extents[1]);
        // A block of the microkernel in every phase, however wide the stride: else weights are read for little.
        const int64_t block = std::min(LARGEST_BYTES, TF_ROWS * p.stride[2] * at[0].channels.slots * int64_t(sizeof(T)));
        for (int64_t limit = std::max(block, heavy ? 4 * TILE_BYTES : TILE_BYTES);; limit /= 2) {
            size[0] = 1;
            size[1] = rows;
            for (int64_t parts = 1; parts <= extents[2]; parts++) {
                size[2] = (extents[2] + parts - 1) / parts;
                if (values(begin, fresh, end, size) * int64_t(sizeof(T)) <= limit) break;
            }
            grow(begin, fresh, end, limit, rows, size);
            int64_t tiles = p.batch;
            for (int a = 0; a < 3; a++) tiles *= (extents[a] + size[a] - 1) / size[a];
            if (tiles >= fewest || limit / 2 < std::max(block, smallest)) return;
        }
    }

    // One walk over all tiles; the values go to `keep`, to the output where it is null.
    void segment(size_t begin, size_t fresh, size_t end, T* keep) {
        int64_t size[3], counts[3];
        divide(begin, fresh, end, size);
        for (int a = 0; a < 3; a++) counts[a] = (at[end].extents[a] + size[a] - 1) / size[a];
        const int64_t per_sample = counts[0] * counts[1] * counts[2], tiles = p.batch * per_sample;
        for (size_t i = fresh; i < end; i++)
            if (is_stats(p.steps[i].op)) start(i, tiles);
        const int64_t count = room(begin, fresh, end, size);
        // What each thread has for itself, and what it does with tile t.
        struct Own {
            Buffer<T> values, spare;
            Convolution<T> convolve;
            std::vector<Moments> moments;
        };
        const auto prepare = [&] {
            return Own{allocate<T>(count), allocate<T>(count), {p, source, element, strides, inputs}, {}};
        };
        in_parallel(tiles, prepare, [&](Own& own, int64_t t) {
            const int64_t k = t % per_sample;
            const int64_t index[3] = {k / counts[2] / counts[1], k / counts[2] % counts[1], k % counts[2]};
            const auto found = boxes(begin, fresh, end, tile_at(index, size, at[end].extents));
            Tile<T> tile = {found[0], at[begin].channels, own.values.get(), own.spare.get(), t / per_sample, t};
            if (begin == 0)
                own.convolve(tile);
            else
                fetch(tile, begin);
            for (size_t i = begin; i < end;) {
                size_t next = i;
                while (next < end && (is_position(p.steps[next].op) || p.steps[next].op == TF_CUT)) next++;
                if (next > i)
                    positions(tile, i, next);
                else
                    step(tile, i, found[++next - begin], i >= fresh, own.moments);
                i = next;
            }
            if (!keep)
                write(tile);
            else if (keep != &nowhere)
                save(tile, end, keep);
        });
        for (size_t i = fresh; i < end; i++)
            if (is_stats(p.steps[i].op)) finish(i, per_sample);
    }

    // ---- steps -----------------------------------------------------------------------------

    // One element per channel, laid out by slots; `none` where a slot has no channel.
    std::vector<T> by_slot(const void* operand, const Channels& c, T none) const {
        std::vector<T> line(c.slots, none);
        for (int64_t i = 0; i < c.count && operand; i++)
            load_row(p.element, operand, i, 1, 1, &line[c.slot(i)]);
        return line;
    }

    // Steps i to end, a block of positions at a time, so that values stay in the first-level cache.
    void positions(Tile<T>& tile, size_t i, size_t end) {
        const int64_t all = tile.box.positions(), some = std::max<int64_t>(1, BLOCK / tile.channels.slots);
        Tile<T> block = tile;
        for (int64_t p0 = 0; p0 < all; p0 += some) {
            block.values = tile.at(p0);
            block.box = {{0, 0, 0}, {1, 1, std::min(some, all - p0)}};
            for (size_t k = i; k < end; k++) {
                if (p.steps[k].op == TF_SOFTMAX) {
                    channel_softmax(block);
                } else if (p.steps[k].op != TF_CUT) {
                    const Lines<T> l = lines_of(k, tile.n);
                    with_element_op(p.steps[k].op, [&](auto op) {
                        each_vector(block, [&](Vec<T> x, int64_t s) {
                            return element_step<decltype(op)::value>(p.steps[k], x, [&](int line) {
                                return load(l.of[line] + s);
                            });
                        });
                    });
                }
            }
        }
    }

    Lines<T> lines_of(size_t i, int64_t sample) const {
        const int op = p.steps[i].op;
        if (op < TF_BATCH_APPLY) return {{lines[i].data(), nullptr, nullptr}};
        // The last one gathered for this kind of step.
        size_t k = i;
        while (p.steps[--k].op != op - TF_BATCH_APPLY + TF_BATCH_STATS) continue;
        return statistics[k].lines(sample, at[i].channels.slots);
    }

    // The maths of an element step; `line(i)` gives its i-th operand for the lanes of x.
    template <int OP, class F> static Vec<T> element_step(const transfuse_step& s, Vec<T> x, F line) {
        if constexpr (OP == TF_ADD) return x + line(0);
        if constexpr (OP == TF_SCALE) return x * line(0);
        if constexpr (OP == TF_CLAMP) return clamp(x, fill(T(s.f0)), fill(T(s.f1)));
        if constexpr (OP == TF_SIGMOID) return sigmoid<T>(x);
        if constexpr (OP == TF_TANH) return hyperbolic(x);
        if constexpr (OP == TF_EXP_APPLY) return x * line(1);
        if constexpr (OP == TF_MAX_APPLY) return exponential(x - line(0)) * line(1);
        return (x - line(0)) * line(1) + line(2);
    }

    template <class F> static void with_element_op(int op, F f) {
        switch (op) {
            case TF_ADD: return f(std::integral_constant<int, TF_ADD>());
            case TF_SCALE: return f(std::integral_constant<int, TF_SCALE>());
            case TF_CLAMP: return f(std::integral_constant<int, TF_CLAMP>());
            case TF_SIGMOID: return f(std::integral_constant<int, TF_SIGMOID>());
            case TF_TANH: return f(std::integral_constant<int, TF_TANH>());
            case TF_EXP_APPLY: return f(std::integral_constant<int, TF_EXP_APPLY>());
            case TF_MAX_APPLY: return f(std::integral_constant<int, TF_MAX_APPLY>());
            default: return f(std::integral_constant<int, TF_BATCH_APPLY>());
        }
    }

    // Steps that see more than a position.
    void step(Tile<T>& tile, size_t i, const Box& next, bool fresh, std::vector<Moments>& moments) {
        const transfuse_step& s = p.steps[i];
        typedef Vec<T> V;
        const Channels& c = tile.channels;
        const int64_t* extents = at[i].extents;
        switch (s.op) {
            case TF_SUM: return channel_sum(tile);
            case TF_MAX_POOL:
                return pool(tile, s, next, extents, [](V a, V b, int64_t) { return maximum(a, b); });
            case TF_SUM_POOL: {
                pool(tile, s, next, extents, [](V a, V b, int64_t) { return a + b; });
                const T factor = T(s.f0);
                return each_vector(tile, [&](V x, int64_t) { return x * factor; });
            }
            case TF_SIGN_POOL: {
                const T* sign = lines[i].data();
                return pool(tile, s, next, extents, [&](V a, V b, int64_t k) {
                    return load(sign + k) < T(0) ? minimum(a, b) : maximum(a, b);
                });
            }
            case TF_BATCH_STATS:
                if (!fresh) return;
                slot_moments(tile, moments);
                return put(statistics[i], tile, moments);
            case TF_GROUP_STATS:
                if (!fresh) return;
                slot_moments(tile, moments);
                return put(statistics[i], tile, by_group(moments, c, s.i0));
            case TF_EXP_STATS: {
                const auto found = sums<true>(tile);
                return fresh ? put(statistics[i], tile, found) : void();
            }
            case TF_MAX_STATS: return fresh ? put(statistics[i], tile, maxima(tile)) : void();
            case TF_GROUP_NORM: {
                Statistic<T> own(1, c.slots);
                slot_moments(tile, moments);
                affine(own, 0, by_group(moments, c, s.i0).data(), s.i0, c, s);
                return apply<TF_GROUP_APPLY>(tile, s, own);
            }
            case TF_SPACE_SOFTMAX: {
                Statistic<T> own(1, c.slots);
                const auto found = maxima(tile);
                for (int64_t k = 0; k < c.slots; k++) {
                    own.shift[k] = T(found[k].mean);
                    own.scale[k] = T(1 / found[k].m2);
                }
                return apply<TF_MAX_APPLY>(tile, s, own);
            }
        }
    }

    template <int OP> void apply(Tile<T>& tile, const transfuse_step& s, const Statistic<T>& own) {
        const Lines<T> l = own.lines(0, tile.channels.slots);
        each_vector(tile, [&](Vec<T> x, int64_t k) {
            return element_step<OP>(s, x, [&](int line) { return load(l.of[line] + k); });
        });
    }

    // ---- the output as the place for values that cross a cut ---------------------------------

    // Whether the rest of the steps from a cut on works on single elements, so that values can wait
    // in the output, in its own type.
    bool fits_output(size_t cut) const {
        for (size_t i = cut + 1; i < size_t(p.steps_count); i++)
            if (!is_element(p.steps[i].op)) return false;
        return (p.element == TF_F32 || p.element == TF_F64) && p.output_strides[4] == 1;
    }

    void in_place(size_t begin) {
        const Level& level = at.back();
        const int64_t *st = p.output_strides, *e = level.extents;
        // Rows that follow one another make one.
        int64_t length = e[2], rows = e[1], planes = e[0];
        if (st[3] == length || rows == 1) length *= rows, rows = 1;
        if (rows == 1 && (st[2] == length || planes == 1)) length *= planes, planes = 1;
        const int64_t parts = (length + BLOCK - 1) / BLOCK;
        const int64_t work = p.batch * level.channels.count * planes * rows * parts;
#pragma omp parallel for schedule(static) num_threads(threads)
        for (int64_t i = 0; i < work; i++) {
            int64_t part = i % parts, row = i / parts % rows, plane = i / parts / rows % planes;
            int64_t c = i / parts / rows / planes % level.channels.count;
            int64_t sample = i / parts / rows / planes / level.channels.count;
            T* v = static_cast<T*>(p.output) + sample * st[0] + c * st[1] + plane * st[2] + row * st[3] +
                   part * BLOCK;
            const int64_t n = std::min(BLOCK, length - part * BLOCK), slot = level.channels.slot(c);
            for (size_t k = begin; k < size_t(p.steps_count); k++) {
                const Lines<T> l = lines_of(k, sample);
                with_element_op(p.steps[k].op, [&](auto op) {
                    each_in_row(v, n, [&](Vec<T> x) {
                        return element_step<decltype(op)::value>(p.steps[k], x, [&](int line) {
                            return fill(l.of[line][slot]);
                        });
                    });
                });
            }
        }
    }

    template <class F> static void each_in_row(T* v, int64_t n, F f) {
        int64_t i = 0;
        for (; i + LANES<T> <= n; i += LANES<T>) store(v + i, f(load(v + i)));
        if (i < n) {
            T rest[LANES<T>] = {};
            std::copy(v + i, v + n, rest);
            store(rest, f(load(rest)));
            std::copy(rest, rest + (n - i), v + i);
        }
    }

    // ---- statistics ------------------------------------------------------------------------

    void start(size_t i, int64_t tiles) {
        Statistic<T>& statistic = statistics[i];
        statistic.width = p.steps[i].op == TF_GROUP_STATS ? p.steps[i].i0 : at[i].channels.slots;
        statistic.moments = allocate<Moments>(tiles * statistic.width);  // every tile puts its own
    }

    static void put(Statistic<T>& statistic, const Tile<T>& tile, const std::vector<Moments>& moments) {
        std::copy(moments.begin(), moments.end(), statistic.moments.get() + tile.index * statistic.width);
    }

    static std::vector<Moments> by_group(const std::vector<Moments>& slots, const Channels& c, int64_t groups) {
        std::vector<Moments> found(groups);
        for (int64_t i = 0; i < c.count; i++) found[i / (c.count / groups)].merge(slots[c.slot(i)]);
        return found;
    }

    // Sum over positions of each slot of exp(x), which takes the place of x, or of exp(x - top).
    template <bool KEEP> static std::vector<Moments> sums(Tile<T>& tile, const std::vector<T>& top = {}) {
        const int64_t slots = tile.channels.slots;
        std::vector<Moments> found(slots);
        sum_by_blocks(
            tile, 1,
            [&](T* v, int64_t s, T* total) {
                Vec<T> x = load(v + s);
                if (!KEEP) x = x - load(&top[s]);
                x = exponential(x);
                if (KEEP) store(v + s, x);
                store(total + s, load(total + s) + x);
            },
            [&](int64_t s, const T* total) { found[s].m2 += double(total[s]); });
        for (int64_t s = 0; s < slots; s++) {
            found[s].n = double(tile.box.positions());
            found[s].mean = KEEP ? 0 : double(top[s]);
        }
        return found;
    }

    static std::vector<Moments> maxima(Tile<T>& tile) {
        std::vector<T> top(tile.values, tile.values + tile.channels.slots);
        each_position(tile, [&](T* v, int64_t s) { store(&top[s], maximum(load(&top[s]), load(v + s))); });
        std::vector<T> shift = top;
        for (T& most : shift)
            if (most == -INFINITY) most = 0;  // nothing but -Inf: each adds exp(-Inf) = 0
        auto found = sums<false>(tile, shift);
        for (size_t s = 0; s < top.size(); s++) found[s].mean = double(top[s]);
        return found;
    }

    // Merge the partials in the order of the tiles.
    void finish(size_t i, int64_t per_sample) {
        const transfuse_step& s = p.steps[i];
        Statistic<T>& statistic = statistics[i];
        const Channels& c = at[i].channels;
        const bool whole = s.op == TF_BATCH_STATS;
        const int64_t sets = whole ? 1 : p.batch, each = whole ? p.batch * per_sample : per_sample;
        statistic.resize(sets, c.slots);
        size_t use = i;
        while (p.steps[use].op != s.op - TF_BATCH_STATS + TF_BATCH_APPLY) use++;
        const bool moments = s.op == TF_BATCH_STATS || s.op == TF_GROUP_STATS;
        std::vector<Moments> merged(sets * statistic.width);
#pragma omp parallel for schedule(static) num_threads(threads)
        for (int64_t i = 0; i < sets * statistic.width; i++) {
            const Moments* part = statistic.moments.get() + i / statistic.width * each * statistic.width;
            for (int64_t t = 0; t < each; t++, part += statistic.width) {
                const Moments& next = part[i % statistic.width];
                moments ? merged[i].merge(next) : merge_sums(merged[i], next);
            }
        }
        for (int64_t set = 0; set < sets; set++) {
            const Moments* of = &merged[set * statistic.width];
            if (moments) {
                affine(statistic, set * c.slots, of, statistic.width, c, p.steps[use]);
                continue;
            }
            for (int64_t k = 0; k < c.slots; k++) {
                statistic.shift[set * c.slots + k] = s.op == TF_MAX_STATS ? T(of[k].mean) : T(0);
                statistic.scale[set * c.slots + k] = T(1 / of[k].m2);
            }
        }
        statistic.moments.reset();
    }

    // mean holds a maximum, m2 a sum of exp(x - maximum): bring both to the larger maximum.
    static void merge_sums(Moments& a, const Moments& b) {
        if (b.n == 0) return;
        if (a.n == 0) {
            a = b;
            return;
        }
        const double top = a.mean > b.mean || a.mean != a.mean ? a.mean : b.mean;
        const auto share = [&](const Moments& m) { return m.mean == top ? m.m2 : m.m2 * std::exp(m.mean - top); };
        a.m2 = share(a) + share(b);
        a.mean = top;
        a.n += b.n;
    }

    // (x - mean) * (1 / sqrt(var + eps) * weight) + bias, from moments of slots or of groups.
    void affine(Statistic<T>& to, int64_t offset, const Moments* moments, int64_t count, const Channels& c,
                const transfuse_step& s) const {
        const auto weight = s.t0 ? by_slot(s.t0, c, 1) : std::vector<T>(c.slots, T(1));
        const auto bias = by_slot(s.t1, c, 0);
        const bool grouped = s.op != TF_BATCH_APPLY;
        for (int64_t i = 0; i < c.count; i++) {
            const int64_t slot = c.slot(i);
            const Moments& m = moments[grouped ? i / (c.count / count) : slot];
            to.shift[offset + slot] = T(m.mean);
            to.scale[offset + slot] = T(double(weight[slot]) / std::sqrt(m.m2 / m.n + s.f0));
            to.offset[offset + slot] = bias[slot];
        }
    }

    // ---- memory ----------------------------------------------------------------------------

    // Stored values are [sample][depth][height][width][slot].
    template <class F> void each_row(Tile<T>& tile, size_t level, T* memory, F f) const {
        const int64_t* e = at[level].extents;
        const int64_t slots = tile.channels.slots, n = tile.box.size(2) * slots;
        for (int64_t d = tile.box.lo[0]; d < tile.box.hi[0]; d++)
            for (int64_t h = tile.box.lo[1]; h < tile.box.hi[1]; h++)
                f(memory + (((tile.n * e[0] + d) * e[1] + h) * e[2] + tile.box.lo[2]) * slots,
                  tile.at(tile.box.at(d, h, tile.box.lo[2])), n * int64_t(sizeof(T)));
    }
    void fetch(Tile<T>& tile, size_t level) {
        each_row(tile, level, stored.get(), [](T* m, T* v, int64_t n) { memcpy(v, m, n); });
    }
    void save(Tile<T>& tile, size_t level, T* memory) {
        each_row(tile, level, memory, [](T* m, T* v, int64_t n) { memcpy(m, v, n); });
    }

    void write(Tile<T>& tile) const {
        const int64_t* st = p.output_strides;
        const int64_t width = tile.box.size(2), slots = tile.channels.slots;
        const Channels& c = tile.channels;
        const bool as_is = (p.element == TF_F32 || p.element == TF_F64) && st[4] == 1;
        std::vector<T> lines(as_is ? 0 : width * LANES<T>);
        for (int64_t d = tile.box.lo[0]; d < tile.box.hi[0]; d++)
            for (int64_t h = tile.box.lo[1]; h < tile.box.hi[1]; h++) {
                const T* v = tile.at(tile.box.at(d, h, tile.box.lo[2]));
                const int64_t base = tile.n * st[0] + d * st[2] + h * st[3] + tile.box.lo[2] * st[4];
                if (st[1] == 1 && c.dense()) {  // channels last: as the tile lies
                    for (int64_t w = 0; w < width; w++)
                        store_row(p.element, p.output, base + w * st[4], 1, c.count, v + w * slots);
                    continue;
                }
                for (int64_t g = 0; g < c.count; g += c.per_group)
                    for (int64_t o = 0; o < c.per_group; o += LANES<T>) {
                        const int lanes = int(std::min<int64_t>(LANES<T>, c.per_group - o));
                        const T* from = v + c.slot(g) + o;
                        const int64_t to = base + (g + o) * st[1];
                        if (as_is) {
                            turn(from, slots, width, lanes, static_cast<T*>(p.output) + to, st[1]);
                            continue;
                        }
                        turn(from, slots, width, lanes, lines.data(), width);
                        for (int l = 0; l < lanes; l++)
                            store_row(p.element, p.output, to + l * st[1], st[4], width, lines.data() + l * width);
                    }
            }
    }

    // A vector of channels of every position into a row of positions of every channel.
    static void turn(const T* from, int64_t slots, int64_t width, int lanes, T* to, int64_t pitch) {
        constexpr int L = LANES<T>;
        int64_t w = 0;
        for (; w + L <= width; w += L) {
            Vec<T> r[L];
#pragma GCC unroll 16
            for (int i = 0; i < L; i++) r[i] = load(from + (w + i) * slots);
            transpose<T>(r);
            if (lanes == L) {
#pragma GCC unroll 16
                for (int i = 0; i < L; i++) store(to + i * pitch + w, r[i]);
            } else {
                for (int i = 0; i < lanes; i++) store(to + i * pitch + w, r[i]);
            }
        }
        for (; w < width; w++)
            for (int i = 0; i < lanes; i++) to[i * pitch + w] = from[w * slots + i];
    }
};

template <class T> static void run_as(const transfuse_program& p, int threads) {
    Engine<T>(p, threads).run();
}

static void run(const transfuse_program& p, int threads) {
    p.element == TF_F64 ? run_as<double>(p, threads) : run_as<float>(p, threads);
}

static int64_t packed_bytes(const transfuse_program& p) {
    return p.element == TF_F64 ? packed_size<double>(p) * 8 : packed_size<float>(p) * 4;
}

static void pack_weights(const transfuse_program& p, const void* weights, const int64_t* strides, void* to) {
    if (p.element == TF_F64)
        pack(p, weights, strides, static_cast<double*>(to));
    else
        pack(p, weights, strides, static_cast<float*>(to));
}

extern const transfuse_engine ENGINE;
const transfuse_engine ENGINE = {run, packed_bytes, pack_weights};

}  // namespace TF_NAMESPACE

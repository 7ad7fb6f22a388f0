// Slide: one value for each window.
//
// Vectors lie across: the same position of as many channels as a vector has lanes, so that windows of any size and
// step take whole vectors, however short their rows are. Values of which the channels are not next to one another in
// memory are turned, a box of positions at a time. The rows that a window covers are folded into one, and then the
// windows along it.
#pragma once
#include <cmath>
#include <utility>
#include <vector>

#include "block.h"
#include "parallel.h"

namespace TF_NAMESPACE {

constexpr int64_t BOX_VALUES = 32768;  // inputs of a box: they stay in the second-level cache
constexpr int64_t SIDE_CHANNELS = 64;  // at a time, where they lie side by side
constexpr int64_t SMALL_WINDOW = 64;   // values that may be added in the compute type

// As many values as a vector of T has, in the type A.
template <class T, class A> struct LanesOf {
    typedef A Type __attribute__((vector_size(LANES<T> * sizeof(A))));
};
template <class T, class A> using Lanes = typename LanesOf<T, A>::Type;

struct Most {
    template <class A> static A none() { return -INFINITY; }
    template <class V> TF_INLINE void fold(V& a, const V& b) { a = (a > b) | (a != a) ? a : b; }
};
struct Least {
    template <class A> static A none() { return INFINITY; }
    template <class V> TF_INLINE void fold(V& a, const V& b) { a = (a < b) | (a != a) ? a : b; }
};
struct Sum {
    template <class A> static A none() { return 0; }
    template <class V> TF_INLINE void fold(V& a, const V& b) { a += b; }
};

// The windows along an axis: where each begins within the tensor, its values there, and those it counts.
class Windows {
  public:
    struct Window {
        int64_t first, taps, counted;
    };
    int64_t dilation;

    Windows(const transfuse_sweep& s, int axis) : dilation(s.adaptive ? 1 : s.dilation[axis]) {
        const int64_t inputs = s.inputs[axis], outputs = s.sizes[2 + axis];
        for (int64_t o = 0; o < outputs; o++) {
            if (s.adaptive) {
                const int64_t first = share(o, inputs, outputs), end = inputs - share(outputs - o - 1, inputs, outputs);
                all.push_back({first, end - first, end - first});
                continue;
            }
            const int64_t from = o * s.stride[axis] - s.padding[axis];
            const auto below = [&](int64_t end) {  // taps before it
                return from >= end ? 0 : std::min(s.kernel[axis], ceiling(end - from, dilation));
            };
            const int64_t outside = below(0), inside = below(inputs) - outside;
            const int64_t counted = s.counts_padding ? below(inputs + s.padding[axis]) : inside;
            all.push_back({from + outside * dilation, inside, counted});
        }
        for (const Window& each : all) largest = std::max(largest, each.taps);
    }
    const Window& operator[](int64_t o) const { return all[size_t(o)]; }
    int64_t count() const { return int64_t(all.size()); }
    int64_t most() const { return largest; }  // taps of any window

    // The inputs that windows lo to hi read: from the first on, and how many.
    struct Covered {
        int64_t first, count;
    };
    Covered covered(int64_t lo, int64_t hi) const {
        while (lo < hi && !all[lo].taps) lo++;  // those that see padding alone are at the ends
        while (lo < hi && !all[hi - 1].taps) hi--;
        if (lo == hi) return {0, 0};
        int64_t first = all[lo].first, last = end(hi - 1);
        // Windows begin and end in their order, unless padding hides some values of one and not of the next.
        for (int64_t o = lo; dilation > 1 && o < hi; o++)
            if (all[o].taps) first = std::min(first, all[o].first), last = std::max(last, end(o));
        return {first, last - first};
    }
    // The most inputs that `some` windows in a row read.
    int64_t reach(int64_t some) const {
        int64_t most = 0;
        for (int64_t o = 0; o < count(); o += some) most = std::max(most, covered(o, std::min(count(), o + some)).count);
        return most;
    }

  private:
    std::vector<Window> all;
    int64_t largest = 0;

    int64_t end(int64_t o) const { return all[o].first + (all[o].taps - 1) * dilation + 1; }

    // floor(a * b / c) of numbers below 2^48; in 64 bits where they do, since others are slow to divide.
    static int64_t share(int64_t a, int64_t b, int64_t c) {
        return std::max(a, b) < INT32_MAX ? a * b / c : int64_t(__int128(a) * b / c);
    }
};

template <class T> class Slide {
  public:
    Slide(const transfuse_sweep& s, int threads)
        : s(s), threads(threads), windows{{s, 0}, {s, 1}, {s, 2}},
          inputs{s.sizes[0], s.sizes[1], s.inputs[0], s.inputs[1], s.inputs[2]},
          reader(s.values, s.values_count, s.before, grid(inputs)),
          after(s.others, s.others_count, s.after, grid(s.sizes)), lie(grid(s.sizes), s.outs[0]) {}

    void run() {
        const int64_t channels = s.sizes[1];
        group = s.across ? std::min(channels, SIDE_CHANNELS) : std::min<int64_t>(L, s.sizes[0] * channels);
        lanes = ceiling(group, L) * L;
        divide();
        int64_t last = 0;
        for (int a = 0; a < 5; a++) last += (s.sizes[a] - 1) * s.outs[0].strides[a];
        expect_writes(s.outs[0].data, size_t(last) * bytes_of(s.outs[0].element));
        switch (s.folding) {
            case TF_F_MAX: return walk<Most, T>();
            case TF_F_SIGN: return walk<void, T>();
            default: {
                const double cells = double(windows[0].most()) * double(windows[1].most()) * double(windows[2].most());
                return cells > SMALL_WINDOW ? walk<Sum, double>() : walk<Sum, T>();
            }
        }
    }

  private:
    static constexpr int L = LANES<T>;
    const transfuse_sweep& s;
    const int threads;
    const Windows windows[3];
    const int64_t inputs[5];
    const Reader<T> reader, after;
    const Lie lie;
    int64_t group = 1, lanes = L;    // channels at a time, and in whole vectors
    int64_t size[3] = {1, 1, 1};     // outputs of a box
    int64_t most_inputs = 1, most_outputs = 1;  // positions

    Grid grid(const int64_t* sizes) const {
        return s.across ? Grid{sizes, {0, 2, 3, 4}, 1} : Grid{sizes, {0, 1, 2, 3}, 4};
    }

    // Boxes of outputs as large as their inputs fit: whole rows first, then along the axis where windows of
    // neighbouring boxes share most.
    void divide() {
        const int64_t most = std::max<int64_t>(1, BOX_VALUES / lanes);
        const auto reads = [&](const int64_t* n) {
            return double(windows[0].reach(n[0])) * double(windows[1].reach(n[1])) * double(windows[2].reach(n[2]));
        };
        size[2] = windows[2].count();
        while (size[2] > 1 && reads(size) > double(most)) size[2] = (size[2] + 1) / 2;
        bool done[2] = {false, false};
        while (!done[0] || !done[1]) {
            const auto shared = [&](int a) { return done[a] ? -1.0 : double(windows[a].reach(1)) / double(size[a]); };
            const int a = shared(1) >= shared(0) ? 1 : 0;
            int64_t trial[3] = {size[0], size[1], size[2]};
            trial[a] = std::min(2 * size[a], windows[a].count());
            done[a] = trial[a] == size[a] || reads(trial) > double(most);
            if (!done[a]) size[a] = trial[a];
        }
        most_inputs = windows[0].reach(size[0]) * windows[1].reach(size[1]) * windows[2].reach(size[2]);
        most_outputs = size[0] * size[1] * size[2];
    }

    // Positions of some channels, or of the planes of some samples' channels.
    struct Box {
        int64_t sample, first, count;  // across: channels of a sample; else planes
        int64_t lo[3], size[3];
        int64_t positions() const { return size[0] * size[1] * size[2]; }
    };

    // What a thread has for itself.
    template <class A> struct Own {
        Buffer<T> rooms;          // what blocks are made in
        Buffer<T> read, turned;   // the inputs of a box, as they are read and by vectors of channels
        Buffer<A> folded, found;  // a row of inputs, one of outputs
        Buffer<T> results, back;  // outputs by vectors of channels, and as they are written
        Buffer<T> least;          // the same of another folding
    };

    // Where the inputs of a box are by vectors of channels, and how far apart along each axis.
    struct Source {
        const T* at;
        int64_t strides[3];
    };

    template <class F, class A> void walk() const {
        const int64_t planes = s.sizes[0] * s.sizes[1], sides = ceiling(s.sizes[1], group);
        const int64_t groups = s.across ? s.sizes[0] * sides : ceiling(planes, group);
        int64_t counts[3], boxes = groups;
        for (int a = 0; a < 3; a++) boxes *= counts[a] = ceiling(windows[a].count(), size[a]);
        const int64_t values = std::max(most_inputs, most_outputs) * lanes;
        const int64_t some = std::max<int64_t>(1, ITEM_VALUES / values), items = ceiling(boxes, some);
        const int64_t block = std::max(BLOCK_VALUES, s.across ? group : std::max(inputs[4], s.sizes[4]));
        constexpr bool is_signed = std::is_void<F>::value;
        const auto prepare = [&] {
            return Own<A>{allocate<T>(std::max(reader.room(block), after.room(block))),
                          allocate<T>(most_inputs * lanes),
                          allocate<T>(most_inputs * lanes),
                          allocate<A>(windows[2].reach(size[2]) * lanes),
                          allocate<A>(size[2] * lanes),
                          allocate<T>(most_outputs * lanes),
                          allocate<T>(most_outputs * lanes),
                          allocate<T>(is_signed ? most_outputs * lanes : 0)};
        };
        in_parallel(int(std::min<int64_t>(threads, items)), items, prepare, [&](Own<A>& own, int64_t item) {
            for (int64_t i = item * some; i < std::min(boxes, (item + 1) * some); i++) {
                Box out;
                int64_t rest = i;
                for (int a = 3; a-- > 0; rest /= counts[a]) {
                    out.lo[a] = rest % counts[a] * size[a];
                    out.size[a] = std::min(size[a], windows[a].count() - out.lo[a]);
                }
                out.sample = s.across ? rest / sides : 0;
                out.first = (s.across ? rest % sides : rest) * group;
                out.count = std::min(group, (s.across ? s.sizes[1] : planes) - out.first);
                Box in = out;
                for (int a = 0; a < 3; a++) {
                    const auto covered = windows[a].covered(out.lo[a], out.lo[a] + out.size[a]);
                    in.lo[a] = covered.first, in.size[a] = covered.count;
                }
                const Source source = read(own, in);
                if constexpr (is_signed) {
                    fold<Least>(own, source, in, out);
                    const T* least = turned_back(own, out);
                    std::copy(least, least + out.positions() * out.count, own.least.get());
                    fold<Most>(own, source, in, out);
                } else {
                    fold<F>(own, source, in, out);
                }
                write(own, out, is_signed ? own.least.get() : nullptr);
            }
        });
    }

    // f(row, rows, first): rows of a grid from `row` on that follow one another, the `first`-th of a box. A row has
    // the channels of one position, or the positions along the width of one plane.
    template <class F> void each_rows(const Box& box, const int64_t* sizes, F f) const {
        const int64_t depth = sizes[2], height = sizes[3], width = sizes[4];
        const int64_t row = s.across ? width : 1, along = s.across ? box.size[2] : 1, lo = s.across ? box.lo[2] : 0;
        const int64_t planes = s.across ? 1 : box.count, first = s.across ? box.sample : box.first;
        // Whole axes make longer runs.
        const bool rows = along == row, slices = rows && box.size[1] == height, all = slices && box.size[0] == depth;
        const int64_t p1 = all ? 1 : planes, d1 = slices ? 1 : box.size[0], h1 = rows ? 1 : box.size[1];
        const int64_t run = box.positions() * planes * along / std::max<int64_t>(1, box.size[2]) / (p1 * d1 * h1);
        int64_t done = 0;
        for (int64_t p = 0; p < p1; p++)
            for (int64_t d = 0; d < d1; d++)
                for (int64_t h = 0; h < h1; h++, done += run)
                    f((((first + p) * depth + box.lo[0] + d) * height + box.lo[1] + h) * row + lo, run, done);
    }

    // The same by blocks that stay in the first-level cache.
    template <class F> void each_block(const Box& box, const int64_t* sizes, F f) const {
        const int64_t width = s.across ? box.count : box.size[2], most = std::max<int64_t>(1, BLOCK_VALUES / std::max<int64_t>(1, width));
        each_rows(box, sizes, [&](int64_t row, int64_t rows, int64_t first) {
            for (int64_t r = 0; r < rows; r += most) f(row + r, Extent{std::min(most, rows - r), width}, (first + r) * width);
        });
    }

    // Where the first value of a row of a box is in a view, beside the rows before it.
    int64_t begin(const transfuse_view& v, const Box& box) const {
        return s.across ? box.first * v.strides[1] : box.lo[2] * v.strides[4];
    }

    // The inputs of a box, by vectors of channels.
    template <class A> Source read(Own<A>& own, const Box& in) const {
        const int64_t *n = in.size, positions = in.positions();
        Source found = {own.turned.get(), {n[1] * n[2] * lanes, n[2] * lanes, lanes}};
        if (!positions) return found;
        const transfuse_view& v = s.values[0];
        const bool plain = !reader.map && v.element == COMPUTED<T>;
        const T* data = static_cast<const T*>(v.data);
        if (plain && s.across && v.strides[1] == 1 && in.count % L == 0) {
            found.at = data + in.sample * v.strides[0] + in.first + in.lo[0] * v.strides[2] + in.lo[1] * v.strides[3] +
                       in.lo[2] * v.strides[4];
            for (int a = 0; a < 3; a++) found.strides[a] = v.strides[2 + a];
            return found;
        }
        // Planes as they lie, where their positions follow one another.
        const bool whole = n[1] == inputs[3] && n[2] == inputs[4];
        if (plain && !s.across && v.strides[4] == 1 && (n[1] == 1 || (whole && v.strides[3] == inputs[4])) &&
            (n[0] == 1 || (whole && v.strides[2] == inputs[3] * inputs[4]))) {
            const int64_t c = s.sizes[1];
            const T* planes[L];
            for (int i = 0; i < L; i++) {
                const int64_t p = in.first + std::min<int64_t>(i, in.count - 1);
                planes[i] = data + p / c * v.strides[0] + p % c * v.strides[1] + in.lo[0] * v.strides[2] +
                            in.lo[1] * v.strides[3] + in.lo[2];
            }
            turn_planes(planes, positions, own.turned.get());
            return found;
        }
        int64_t at[UINT8_MAX];
        for (int k = 0; k < s.values_count; k++) at[k] = begin(s.values[k], in);
        each_block(in, inputs, [&](int64_t row, Extent e, int64_t to) {
            if (reader.map) return reader.into(own.read.get() + to, e.width, at, row, e, own.rooms.get());
            const Placed<T> v = reader(at, row, e, own.rooms.get(), true);
            std::copy(v.at, v.at + e.values(), own.read.get() + to);
        });
        if (s.across && in.count % L == 0) {
            found.at = own.read.get();
            for (int a = 0; a < 3; a++) found.strides[a] = found.strides[a] / lanes * in.count;
        } else if (s.across) {
            for (int64_t i = 0; i < positions; i++)
                std::copy(own.read.get() + i * in.count, own.read.get() + (i + 1) * in.count, own.turned.get() + i * lanes);
        } else {
            const T* planes[L];
            for (int i = 0; i < L; i++) planes[i] = own.read.get() + std::min<int64_t>(i, in.count - 1) * positions;
            turn_planes(planes, positions, own.turned.get());
        }
        return found;
    }

    static void turn_planes(const T* const* planes, int64_t positions, T* to) {
        for (int64_t i = 0; i < positions; i += L) {
            const int64_t some = std::min<int64_t>(L, positions - i);
            Vec<T> square[L];
            for (int k = 0; k < L; k++) square[k] = some == L ? load(planes[k] + i) : load_some(planes[k] + i, some);
            transpose<T>(square);
            for (int k = 0; k < some; k++) store(to + (i + k) * L, square[k]);
        }
    }

    // All outputs of a box, by vectors of channels.
    template <class F, class A> void fold(Own<A>& own, const Source& from, const Box& in, const Box& out) const {
        T* to = own.results.get();
        const int64_t vectors = ceiling(out.count, L);
        for (int64_t d = out.lo[0]; d < out.lo[0] + out.size[0]; d++)
            for (int64_t h = out.lo[1]; h < out.lo[1] + out.size[1]; h++) {
                const auto &deep = windows[0][d], &high = windows[1][h];
                const T* first = from.at + (deep.first - in.lo[0]) * from.strides[0] + (high.first - in.lo[1]) * from.strides[1];
                for (int64_t v = 0; v < vectors; v++)
                    row<F>(own, first + v * L, from.strides, deep, high, in, out, to + v * L);
                to += out.size[2] * lanes;
            }
    }

    // One row of outputs of one vector of channels.
    template <class F, class A, class Window>
    void row(Own<A>& own, const T* from, const int64_t* strides, const Window& deep, const Window& high, const Box& in,
             const Box& out, T* to) const {
        typedef Lanes<T, A> V;
        A* folded = own.folded.get();
        const int64_t cells = deep.taps * high.taps, down = windows[0].dilation * strides[0], next = windows[1].dilation * strides[1];
        for (int64_t w = 0; w < in.size[2] && cells; w++) {
            const T* at = from + w * strides[2];
            V sum = __builtin_convertvector(load(at), V);
            for (int64_t d = 0; d < deep.taps; d++)
                for (int64_t h = d ? 0 : 1; h < high.taps; h++) {
                    const V v = __builtin_convertvector(load(at + d * down + h * next), V);
                    F::fold(sum, v);
                }
            memcpy(folded + w * L, &sum, sizeof sum);
        }
        for (int64_t x = out.lo[2]; x < out.lo[2] + out.size[2]; x++, to += lanes) {
            const auto& window = windows[2][x];
            V found = F::template none<A>() - V{};
            const A* at = folded + (window.first - in.lo[2]) * L;
            for (int64_t k = 0; k < window.taps && cells; k++, at += windows[2].dilation * L) {
                V v;
                memcpy(&v, at, sizeof v);
                F::fold(found, v);
            }
            if (s.folding == TF_F_MEAN) {
                const double counted = double(deep.counted) * double(high.counted) * double(window.counted);
                found /= A(s.divisor ? s.divisor : counted);
            }
            store(to, Vec<T>(__builtin_convertvector(found, Vec<T>)));
        }
    }

    // Outputs as they are written: rows of positions of a plane, or of channels of a position.
    template <class A> T* turned_back(Own<A>& own, const Box& out) const {
        const int64_t positions = out.positions();
        if (s.across && out.count == lanes) return own.results.get();
        if (s.across)
            for (int64_t i = 0; i < positions; i++)
                std::copy(own.results.get() + i * lanes, own.results.get() + i * lanes + out.count, own.back.get() + i * out.count);
        else
            turn(own.results.get(), lanes, {positions, out.count}, own.back.get(), positions);
        return own.back.get();
    }

    // The outputs of a box to where they belong. Where `least` is not null, an output's sign says which of the two.
    template <class A> void write(Own<A>& own, const Box& out, const T* least) const {
        T* results = turned_back(own, out);
        int64_t at[UINT8_MAX];
        for (int k = 0; k < s.others_count; k++) at[k] = begin(s.others[k], out);
        each_block(out, s.sizes, [&](int64_t row, Extent e, int64_t first) {
            T* values = results + first;
            if (least) {
                const int k = s.others_count - 1;
                const Placed<T> sign = after.fetch(k, at[k], row, e, own.rooms.get(), true);
                for (int64_t i = 0; i < e.values(); i++)
                    if ((sign.at ? sign.at[i] : sign.number) < T(0)) values[i] = least[first + i];
            }
            if (after.map) after.into(values, e.width, at, row, e, own.rooms.get());
            write_rows(s.outs[0], lie, begin(s.outs[0], out), row, e, values);
        });
    }
};

}  // namespace TF_NAMESPACE

// Slide: one value for each window.
//
// The rows that a window covers are folded into one, and then the windows along it, one tap after another. In a
// row lie the positions of one channel, or those of some channels side by side where these are next to one
// another in memory.
#pragma once
#include <cmath>
#include <tuple>
#include <vector>

#include "block.h"
#include "parallel.h"

namespace TF_NAMESPACE {

constexpr int64_t ROW_VALUES = 2048;        // of a row, where windows allow it: several stay in the first-level cache
constexpr int64_t KEPT_VALUES = 1 << 20;    // of rows that windows share
constexpr int64_t SMALL_WINDOW = 64;        // values that may be added in the compute type

struct Most {
    template <class A> static A none() { return -INFINITY; }
    template <class A> static A fold(A a, A b) { return a > b || a != a ? a : b; }
};
struct Least {
    template <class A> static A none() { return INFINITY; }
    template <class A> static A fold(A a, A b) { return a < b || a != a ? a : b; }
};
struct Sum {
    template <class A> static A none() { return 0; }
    template <class A> static A fold(A a, A b) { return a + b; }
};

// The windows along an axis: where each begins within the tensor, its values there, and those it counts.
class Windows {
  public:
    struct Window {
        int64_t first, taps, counted;
    };
    int64_t dilation, stride, reach, padding;

    Windows(const transfuse_sweep& s, int axis)
        : dilation(s.adaptive ? 1 : s.dilation[axis]), stride(s.adaptive ? 0 : s.stride[axis]),
          reach(s.adaptive ? 0 : (s.kernel[axis] - 1) * s.dilation[axis] + 1), padding(s.adaptive ? 0 : s.padding[axis]) {
        const int64_t inputs = s.inputs[axis], outputs = s.sizes[2 + axis];
        for (int64_t o = 0; o < outputs; o++) {
            if (s.adaptive) {
                const int64_t first = int64_t(__int128(o) * inputs / outputs);
                const int64_t end = int64_t((__int128(o + 1) * inputs + outputs - 1) / outputs);
                all.push_back({first, end - first, end - first});
                continue;
            }
            const int64_t from = o * stride - padding;
            const auto below = [&](int64_t end) {  // taps before it
                return from >= end ? 0 : std::min(s.kernel[axis], ceiling(end - from, dilation));
            };
            const int64_t outside = below(0), inside = below(inputs) - outside;
            const int64_t counted = s.counts_padding ? below(inputs + padding) : inside;
            all.push_back({from + outside * dilation, inside, counted});
        }
        for (const Window& each : all) largest = std::max(largest, each.taps);
    }
    const Window& operator[](int64_t o) const { return all[size_t(o)]; }
    int64_t most() const { return largest; }  // taps of any window

    // The inputs that windows lo to hi read.
    std::pair<int64_t, int64_t> covered(int64_t lo, int64_t hi) const {
        int64_t first = INT64_MAX, last = 0;
        for (int64_t o = lo; o < hi; o++) {
            if (!all[o].taps) continue;
            first = std::min(first, all[o].first);
            last = std::max(last, all[o].first + (all[o].taps - 1) * dilation + 1);
        }
        return {std::min(first, last), last};
    }

  private:
    std::vector<Window> all;
    int64_t largest = 0;
};

template <class T> class Slide {
  public:
    Slide(const transfuse_sweep& s, int threads)
        : s(s), threads(threads), windows{{s, 0}, {s, 1}, {s, 2}}, outputs(s.sizes + 2),
          reader(s.values, s.before, s.across ? 4 : -1, s.across ? 1 : 4),
          after(s.others, s.after, s.across ? 4 : 3, s.across ? 1 : 4) {}

    void run() {
        channels = s.across ? std::min<int64_t>(s.sizes[1], 256) : 1;
        // As many outputs of a row as keep its inputs near.
        const int64_t stride = s.adaptive ? std::max<int64_t>(1, s.inputs[2] / outputs[2]) : s.stride[2];
        width = std::max<int64_t>(1, std::min(outputs[2], ROW_VALUES / channels / std::min(stride, ROW_VALUES)));
        pieces = ceiling(outputs[2], width);
        for (int64_t w = 0; w < outputs[2]; w += width) {
            const auto [lo, hi] = windows[2].covered(w, std::min(outputs[2], w + width));
            longest = std::max(longest, (hi - lo) * channels);
        }
        // Rows that several windows read are made once, where making them costs something.
        const bool shared = (windows[0].stride < windows[0].reach && outputs[0] > 1) ||
                            (windows[1].stride < windows[1].reach && outputs[1] > 1);
        deep = std::min(s.inputs[0], windows[0].reach), high = std::min(s.inputs[1], windows[1].reach);
        if (!shared || longest > KEPT_VALUES / std::max<int64_t>(1, deep) / std::max<int64_t>(1, high)) deep = high = 1;
        batched = s.across ? 1 : std::max<int64_t>(1, std::min(outputs[1], BLOCK_VALUES / width));
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
    const transfuse_sweep& s;
    const int threads;
    const Windows windows[3];
    const int64_t* const outputs;
    const Reader<T> reader, after;
    int64_t channels = 1, width = 1, pieces = 1;  // of a row: channels, outputs; rows that make a whole one
    int64_t longest = 0;                          // values that a row reads
    int64_t deep = 1, high = 1;                   // rows that are kept
    int64_t batched = 1;                          // rows of outputs that are written at once

    // Rows of outputs that make one plane: a sample, a channel or some, a piece of the width, a depth.
    struct Plane {
        int64_t sample, channel, channels, lo, hi, depth, first, last;  // outputs lo to hi, inputs first to last
    };

    template <class A> struct Own {
        Buffer<T> rooms;            // what rows are made in
        Buffer<T> rows;             // those kept
        std::vector<int64_t> tags;  // which they are
        std::vector<Placed<T>> placed;
        Buffer<A> folded, found;    // a row of inputs, one of outputs
        Buffer<T> results, others;  // rows of outputs, and what is read beside them
    };

    template <class F, class A> void walk() const {
        const int64_t groups = ceiling(s.sizes[1], channels), rows = outputs[1];
        const int64_t planes = s.sizes[0] * groups * pieces * outputs[0];
        const double each = double(longest) * double(windows[0].most()) * double(windows[1].most());
        const int64_t some = std::max<int64_t>(1, int64_t(double(ITEM_VALUES) / std::max(1.0, each)));
        const int64_t all = planes * rows, items = ceiling(all, some);
        const int64_t block = batched * width * channels;
        const auto prepare = [&] {
            return Own<A>{allocate<T>(reader.room(longest)), allocate<T>(deep * high * longest),
                          std::vector<int64_t>(deep * high, -1), std::vector<Placed<T>>(deep * high),
                          allocate<A>(longest), allocate<A>(width * channels),
                          allocate<T>(2 * block), allocate<T>(after.room(block))};
        };
        in_parallel(int(std::min<int64_t>(threads, items)), items, prepare, [&](Own<A>& own, int64_t item) {
            int64_t known = -1;
            Plane plane = {};
            int64_t waiting = 0;  // rows, before `at`
            const int64_t end = std::min(all, (item + 1) * some);
            for (int64_t at = item * some; at < end; at++) {
                const int64_t i = at / rows, y = at % rows;
                if (i != known) {
                    if (known < 0 || i / outputs[0] != known / outputs[0]) std::fill(own.tags.begin(), own.tags.end(), -1);
                    plane = plane_of(known = i);
                }
                const int64_t values = (plane.hi - plane.lo) * plane.channels;
                T* to = own.results.get() + waiting * values;
                if constexpr (std::is_void<F>::value)
                    signed_row(own, plane, y, to);
                else
                    row<F>(own, plane, y, to);
                waiting++;
                if (waiting == batched || y + 1 == rows || at + 1 == end) {
                    finish(own, plane, y + 1 - waiting, waiting);
                    waiting = 0;
                }
            }
        });
    }

    Plane plane_of(int64_t i) const {
        Plane p;
        p.depth = i % outputs[0], i /= outputs[0];
        p.lo = i % pieces * width, i /= pieces;
        p.hi = std::min(outputs[2], p.lo + width);
        const int64_t groups = ceiling(s.sizes[1], channels);
        p.channel = i % groups * channels, p.sample = i / groups;
        p.channels = std::min(channels, s.sizes[1] - p.channel);
        std::tie(p.first, p.last) = windows[2].covered(p.lo, p.hi);
        return p;
    }

    // The inputs of a row: where they lie, or made and kept.
    template <class A> Placed<T> source(Own<A>& own, const Plane& p, int64_t d, int64_t h) const {
        const int64_t slot = d % deep * high + h % high, tag = d * s.inputs[1] + h;
        if (own.tags[slot] == tag) return own.placed[slot];
        const Extent e = s.across ? Extent{p.last - p.first, p.channels} : Extent{1, p.last - p.first};
        int64_t at[UINT8_MAX];
        for (int k = 0; k < s.values_count; k++) {
            const int64_t* st = s.values[k].strides;
            at[k] = p.sample * st[0] + p.channel * st[1] + d * st[2] + h * st[3] + p.first * st[4];
        }
        Placed<T> found = reader(at, e, own.rooms.get());
        if (found.at >= own.rooms.get() && found.at < own.rooms.get() + reader.room(longest)) {
            T* kept = own.rows.get() + slot * longest;
            std::copy(found.at, found.at + e.values(), kept);
            found.at = kept;
        }
        own.tags[slot] = tag;
        return own.placed[slot] = found;
    }

    // One row of outputs.
    template <class F, class A> void row(Own<A>& own, const Plane& p, int64_t y, T* to) const {
        const auto &deep = windows[0][p.depth], &high = windows[1][y];
        const int64_t positions = p.last - p.first, group = p.channels, n = p.hi - p.lo;
        A* folded = own.folded.get();
        bool first = true;
        for (int64_t d = 0; d < deep.taps; d++)
            for (int64_t h = 0; h < high.taps; h++) {
                const Placed<T> v =
                    source(own, p, deep.first + d * windows[0].dilation, high.first + h * windows[1].dilation);
                const bool dense = !s.across || v.pitch == group;
                const int64_t runs = dense ? 1 : positions, length = dense ? positions * group : group;
                for (int64_t r = 0; r < runs; r++) {
                    const T* from = v.at + r * v.pitch;
                    A* into = folded + r * length;
                    if (first)
                        for (int64_t i = 0; i < length; i++) into[i] = A(from[i]);
                    else
                        for (int64_t i = 0; i < length; i++) into[i] = F::fold(into[i], A(from[i]));
                }
                first = false;
            }
        A* found = own.found.get();
        std::fill(found, found + n * group, F::template none<A>());
        if (!first) {
            if (s.across || s.adaptive || windows[2].stride > 4)
                by_window<F>(p, folded, found);
            else if (windows[2].stride == 1)
                by_tap<F, 1>(p, folded, found);
            else if (windows[2].stride == 2)
                by_tap<F, 2>(p, folded, found);
            else if (windows[2].stride == 3)
                by_tap<F, 3>(p, folded, found);
            else
                by_tap<F, 4>(p, folded, found);
        }
        if (s.folding == TF_F_MEAN)
            for (int64_t x = 0; x < n; x++) {
                const double counted = double(deep.counted) * double(high.counted) * double(windows[2][p.lo + x].counted);
                const A by = A(s.divisor ? s.divisor : counted);
                for (int64_t c = 0; c < group; c++) found[x * group + c] /= by;
            }
        for (int64_t i = 0; i < n * group; i++) to[i] = T(found[i]);
    }

    // The largest or the smallest, as an output's sign says.
    template <class A> void signed_row(Own<A>& own, const Plane& p, int64_t y, T* to) const {
        const int64_t n = (p.hi - p.lo) * p.channels;
        T *least = own.results.get() + batched * width * channels, *room = own.others.get();
        row<Most>(own, p, y, to);
        row<Least>(own, p, y, least);
        const transfuse_view& sign = s.others[s.others_count - 1];
        const Extent e = s.across ? Extent{p.hi - p.lo, p.channels} : Extent{1, n};
        const Placed<T> by = fetch(sign, offset(sign, p, y), e, after.steps(sign), room, false);
        for (int64_t r = 0; r < e.rows; r++)
            for (int64_t i = 0; i < e.width; i++)
                if ((by.at ? by.at[r * by.pitch + i] : by.number) < T(0)) to[r * e.width + i] = least[r * e.width + i];
    }

    int64_t offset(const transfuse_view& v, const Plane& p, int64_t y) const {
        return p.sample * v.strides[0] + p.channel * v.strides[1] + p.depth * v.strides[2] + y * v.strides[3] +
               p.lo * v.strides[4];
    }

    // Window after window, some channels at a time.
    template <class F, class A> void by_window(const Plane& p, const A* from, A* to) const {
        const int64_t group = p.channels;
        for (int64_t x = 0; x < p.hi - p.lo; x++, to += group) {
            const auto& window = windows[2][p.lo + x];
            const A* v = from + (window.first - p.first) * group;
            for (int64_t k = 0; k < window.taps; k++, v += windows[2].dilation * group)
                for (int64_t c = 0; c < group; c++) to[c] = F::fold(to[c], v[c]);
        }
    }

    // Tap after tap, for all windows of a row that find a value there; by a constant stride the compiler does it
    // with vectors.
    template <class F, int STRIDE, class A> void by_tap(const Plane& p, const A* from, A* to) const {
        const Windows& w = windows[2];
        for (int64_t k = 0; k < s.kernel[2]; k++) {
            const int64_t off = k * w.dilation - w.padding;  // 0 <= x * stride + off < inputs
            const int64_t lo = std::max(p.lo, off < 0 ? (-off - 1) / STRIDE + 1 : 0);
            const int64_t hi = off >= s.inputs[2] ? 0 : std::min(p.hi, (s.inputs[2] - off - 1) / STRIDE + 1);
            const A* v = from + off - p.first;
            for (int64_t x = lo; x < hi; x++) to[x - p.lo] = F::fold(to[x - p.lo], v[x * STRIDE]);
        }
    }

    // Rows of outputs to where they belong.
    template <class A> void finish(Own<A>& own, const Plane& p, int64_t y, int64_t rows) const {
        const int64_t n = p.hi - p.lo;
        const Extent e = s.across ? Extent{n, p.channels} : Extent{rows, n};
        if (after.map) {
            int64_t at[UINT8_MAX];
            for (int k = 0; k < after.count(); k++) at[k] = offset(s.others[k], p, y);
            after.into(own.results.get(), e.width, at, e, own.others.get());
        }
        write_block(s.outs[0], offset(s.outs[0], p, y), e, after.steps(s.outs[0]), own.results.get());
    }
};

}  // namespace TF_NAMESPACE

// A tile: the values of a box of positions, channels innermost, and the steps that work on it.
#pragma once
#include <algorithm>
#include <vector>

#include "program.h"
#include "vector.h"

namespace TF_NAMESPACE {

// Windows of a step along an axis of n values.
static int64_t windows(int64_t n, const transfuse_step& s, int axis) {
    return (n + 2 * s.padding[axis] - s.kernel[axis]) / s.stride[axis] + 1;
}

// Positions lo <= p < hi along depth, height, width.
struct Box {
    int64_t lo[3], hi[3];
    int64_t size(int axis) const { return hi[axis] - lo[axis]; }
    int64_t positions() const { return size(0) * size(1) * size(2); }
    bool same(const Box& o, int axis) const { return lo[axis] == o.lo[axis] && hi[axis] == o.hi[axis]; }
    bool operator==(const Box& o) const { return same(o, 0) && same(o, 1) && same(o, 2); }
    int64_t at(int64_t d, int64_t h, int64_t w) const {
        return ((d - lo[0]) * size(1) + h - lo[1]) * size(2) + w - lo[2];
    }
};

// Which channel lies where: each group is padded to whole vectors, or to half of one, and all of them together to whole
// ones. Slots without a channel hold values that nobody reads.
struct Channels {
    int64_t count, per_group, padded, slots;
    int64_t slot(int64_t c) const { return c / per_group * padded + c % per_group; }
    bool dense() const { return per_group == count; }
    template <class T> void fill_padding(T* v, T value) const {
        const int64_t used = count / per_group * padded;
        for (int64_t group = 0; padded > per_group && group < used; group += padded)
            for (int64_t s = per_group; s < padded; s++) v[group + s] = value;
        for (int64_t s = used; s < slots; s++) v[s] = value;
    }
};

template <class T> struct Tile {
    Box box;
    Channels channels;
    T* values;      // [position][slot]
    T* spare;       // where a window step puts its result
    int64_t n;      // sample
    int64_t part;   // of the output channels
    int64_t index;  // among all tiles of the segment, for partial statistics

    int64_t first_channel() const { return part * channels.count; }
    T* at(int64_t position) { return values + position * channels.slots; }
    void swap(const Box& next) {
        std::swap(values, spare);
        box = next;
    }
};

template <class T, class F> static inline void each_vector(Tile<T>& tile, F f) {
    const int64_t positions = tile.box.positions(), slots = tile.channels.slots;
    for (int64_t p = 0; p < positions; p++) {
        T* v = tile.at(p);
        for (int64_t s = 0; s < slots; s += LANES<T>) store(v + s, f(load(v + s), s));
    }
}

template <class T, class F> static inline void each_position(Tile<T>& tile, F f) {
    const int64_t positions = tile.box.positions(), slots = tile.channels.slots;
    for (int64_t p = 0; p < positions; p++)
        for (int64_t s = 0; s < slots; s += LANES<T>) f(tile.at(p), s);
}

// softmax over the channels of each position
template <class T> static void channel_softmax(Tile<T>& tile) {
    const Channels& c = tile.channels;
    const int64_t positions = tile.box.positions();
    for (int64_t p = 0; p < positions; p++) {
        T* v = tile.at(p);
        c.fill_padding(v, T(-INFINITY));  // takes no part: exp(-inf) = 0
        Vec<T> top = load(v);
        for (int64_t s = LANES<T>; s < c.slots; s += LANES<T>) top = maximum(top, load(v + s));
        const T most = max_lanes<T>(top);
        Vec<T> total = {};
        for (int64_t s = 0; s < c.slots; s += LANES<T>) {
            Vec<T> e = exponential(load(v + s) - most);
            store(v + s, e);
            total += e;
        }
        T scale = T(1) / sum_lanes<T>(total);
        for (int64_t s = 0; s < c.slots; s += LANES<T>) store(v + s, load(v + s) * scale);
    }
}

// sum over the channels of each position; one channel is left
template <class T> static void channel_sum(Tile<T>& tile) {
    const Channels before = tile.channels;
    const Channels after = {1, 1, LANES<T>, LANES<T>};
    const int64_t positions = tile.box.positions();
    for (int64_t p = 0; p < positions; p++) {
        T* v = tile.values + p * before.slots;
        before.fill_padding(v, T(0));
        Vec<T> total = {};
        for (int64_t s = 0; s < before.slots; s += LANES<T>) total += load(v + s);
        Vec<T> result = {};
        result[0] = sum_lanes<T>(total);
        store(tile.values + p * after.slots, result);  // never behind what is still to be read
    }
    tile.channels = after;
}

// A window step: folds every window of the tile into one position of `next`.
template <class T, class F>
static void pool(Tile<T>& tile, const transfuse_step& step, const Box& next, const int64_t* extents, F fold) {
    const int64_t slots = tile.channels.slots;
    int64_t o[3];
    for (o[0] = next.lo[0]; o[0] < next.hi[0]; o[0]++)
        for (o[1] = next.lo[1]; o[1] < next.hi[1]; o[1]++)
            for (o[2] = next.lo[2]; o[2] < next.hi[2]; o[2]++) {
                int64_t lo[3], hi[3];
                for (int a = 0; a < 3; a++) {
                    int64_t first = o[a] * step.stride[a] - step.padding[a];
                    lo[a] = std::max<int64_t>(0, first);
                    hi[a] = std::min<int64_t>(extents[a], first + step.kernel[a]);
                }
                T* to = tile.spare + next.at(o[0], o[1], o[2]) * slots;
                for (int64_t s = 0; s < slots; s += LANES<T>) {
                    Vec<T> value = {};
                    bool first = true;
                    for (int64_t d = lo[0]; d < hi[0]; d++)
                        for (int64_t h = lo[1]; h < hi[1]; h++) {
                            const T* v = tile.at(tile.box.at(d, h, lo[2])) + s;
                            for (int64_t w = lo[2]; w < hi[2]; w++, v += slots) {
                                value = first ? load(v) : fold(value, load(v), s);
                                first = false;
                            }
                        }
                    store(to + s, value);
                }
            }
    tile.swap(next);
}

}  // namespace TF_NAMESPACE

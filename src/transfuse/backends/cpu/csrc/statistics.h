// Statistics: of a tile, and of all tiles.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "memory.h"
#include "tile.h"

namespace TF_NAMESPACE {

// Mean and sum of squared deviations of n values; merged in a fixed order (Chan et al. 1979).
struct Moments {
    double n = 0, mean = 0, m2 = 0;
    void merge(const Moments& o) {
        if (o.n == 0) return;
        double total = n + o.n, delta = o.mean - mean;
        // The mean of values of which some are Inf is Inf, and Inf - Inf would make it NaN.
        mean = std::isfinite(delta) ? mean + delta * o.n / total : (mean * n + o.mean * o.n) / total;
        m2 += o.m2 + delta * delta * n * o.n / total;
        n = total;
    }
};

// Adds up `kinds` sums of every slot: in the compute type over few positions, and those by `flush`,
// so that a sum of thousands of terms is as good as one of few.
template <class T, class Add, class Flush>
static void sum_by_blocks(Tile<T>& tile, int kinds, Add add, Flush flush) {
    constexpr int64_t SOME = 32;
    const int64_t positions = tile.box.positions(), slots = tile.channels.slots;
    std::vector<T> total(kinds * slots);
    for (int64_t p0 = 0; p0 < positions; p0 += SOME) {
        std::fill(total.begin(), total.end(), T(0));
        for (int64_t p = p0; p < std::min(p0 + SOME, positions); p++)
            for (int64_t s = 0; s < slots; s += LANES<T>) add(tile.at(p), s, total.data());
        for (int64_t s = 0; s < slots; s++) flush(s, total.data());
    }
}

// Moments of every slot over the tile's positions: two passes over values in the cache.
template <class T> static void slot_moments(Tile<T>& tile, std::vector<Moments>& out) {
    const double positions = double(tile.box.positions());
    const int64_t slots = tile.channels.slots;
    out.assign(slots, Moments());
    // Shifted by the first value, so that the sums stay small beside a large mean.
    std::vector<T> first(tile.values, tile.values + slots);
    for (T& value : first)
        if (!std::isfinite(value)) value = 0;
    sum_by_blocks(
        tile, 1,
        [&](const T* v, int64_t s, T* total) {
            store(total + s, load(total + s) + (load(v + s) - load(&first[s])));
        },
        [&](int64_t s, const T* total) { out[s].mean += double(total[s]); });
    std::vector<T> mean(slots);
    for (int64_t s = 0; s < slots; s++) {
        out[s].n = positions;
        out[s].mean = double(first[s]) + out[s].mean / positions;
        mean[s] = T(out[s].mean);
    }
    std::vector<double> rest(slots);
    sum_by_blocks(
        tile, 2,
        [&](const T* v, int64_t s, T* total) {
            Vec<T> delta = load(v + s) - load(&mean[s]);
            store(total + s, load(total + s) + delta * delta);
            store(total + slots + s, load(total + slots + s) + delta);
        },
        [&](int64_t s, const T* total) {
            out[s].m2 += double(total[s]);
            rest[s] += double(total[slots + s]);
        });
    for (int64_t s = 0; s < slots; s++) {
        const double off = rest[s] / positions;  // what rounding the mean to T left out
        out[s].mean = double(mean[s]) + (std::isfinite(mean[s]) ? off : 0);
        out[s].m2 -= positions * off * off;
    }
}

// mean holds a maximum, m2 a sum of exp(x - maximum): bring both to the larger maximum.
static inline void merge_sums(Moments& a, const Moments& b) {
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

static inline std::vector<Moments> by_group(const std::vector<Moments>& slots, const Channels& c, int64_t groups) {
    std::vector<Moments> found(groups);
    for (int64_t i = 0; i < c.count; i++) found[i / (c.count / groups)].merge(slots[c.slot(i)]);
    return found;
}

// Sum over positions of each slot of exp(x), which takes the place of x, or of exp(x - top).
template <bool KEEP, class T>
static std::vector<Moments> sums(Tile<T>& tile, const std::vector<T>& top = std::vector<T>()) {
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

template <class T> static std::vector<Moments> maxima(Tile<T>& tile) {
    std::vector<T> top(tile.values, tile.values + tile.channels.slots);
    each_position(tile, [&](T* v, int64_t s) { store(&top[s], maximum(load(&top[s]), load(v + s))); });
    std::vector<T> shift = top;
    for (T& most : shift)
        if (most == -INFINITY) most = 0;  // nothing but -Inf: each adds exp(-Inf) = 0
    auto found = sums<false>(tile, shift);
    for (size_t s = 0; s < top.size(); s++) found[s].mean = double(top[s]);
    return found;
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

template <class T>
static void put(Statistic<T>& statistic, const Tile<T>& tile, const std::vector<Moments>& moments) {
    std::copy(moments.begin(), moments.end(), statistic.moments.get() + tile.index * statistic.width);
}

}  // namespace TF_NAMESPACE

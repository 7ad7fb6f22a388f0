// The inner loops: positions x output channels, summed over taps and input channels.
#pragma once
#include <algorithm>
#include <type_traits>
#include <utility>

#include "dots.h"
#include "vector.h"

namespace TF_NAMESPACE {

// Where a tap finds its inputs, relative to the first position, and its weights, in lines of a block.
struct Tap {
    int64_t x, w;
};

// What becomes of a sum: it is the first of its place, and has the bias of its channels added if there is one, or it joins
// what is there. `second` is the distance to another place that it joins too, 0 for none. Handed on by reference: a copy
// of what was just written field by field waits until all that came before is done.
template <class T> struct To {
    bool first;
    int64_t second;
    bool minus;
    const T* bias;
};

template <class V> using Value = std::decay_t<decltype(std::declval<V>()[0])>;
template <class V> TF_INLINE V load_as(const Value<V>* p) {
    V v;
    memcpy(&v, p, sizeof v);
    return v;
}

// How inputs lie: the positions of a channel side by side, and channels `apart`; the same with two channels in each
// value; or the channels of a position side by side, and positions `apart`.
enum class Order { rows, dots, columns };

// M positions of one channel after another, without a pointer for each: four share one.
template <class T, int M, Order ORDER> struct Positions {
    static constexpr int SOME = ORDER == Order::columns ? 4 : M;
    const T* first[(M + SOME - 1) / SOME];
    const int64_t apart;

    __attribute__((always_inline)) Positions(const T* x, int64_t apart) : apart(apart) {
#pragma GCC unroll 4
        for (int k = 0; k * SOME < M; k++) first[k] = x + (ORDER == Order::columns ? k * SOME * apart : 0);
    }
    __attribute__((always_inline)) const T* at(int i) const {
        return first[i / SOME] + i % SOME * (ORDER == Order::columns ? apart : 1);
    }
    __attribute__((always_inline)) void next_channel() {
#pragma GCC unroll 4
        for (int k = 0; k * SOME < M; k++) first[k] += ORDER == Order::columns ? 1 : apart;
    }
};

// A product added to a sum, or where channels are two by two the sum of two products.
template <Order ORDER, class V> TF_INLINE V with_product(V sum, const Value<V>* x, V w) {
    if constexpr (ORDER == Order::dots) {
        typedef int32_t Bits __attribute__((vector_size(sizeof(V))));
        int32_t both;
        memcpy(&both, x, sizeof both);
        return with_dots(sum, (V)(both - Bits{}), w);
    } else {
        return sum + (*x - V{}) * w;
    }
}

// The sums of a block at their places. Sums of parts are added up: fewer terms in a row, less rounding.
template <class V, int M, int N>
TF_INLINE void put(const V (&sums)[M][N], Value<V>* __restrict s, int64_t ps, const To<Value<V>>& to) {
    constexpr int L = sizeof(V) / sizeof(Value<V>);
    const auto each = [&](Value<V>* first, auto joined) {
#pragma GCC unroll 16
        for (int i = 0; i < M; i++)
#pragma GCC unroll 4
            for (int j = 0; j < N; j++) {
                Value<V>* at = first + i * ps + j * L;
                const V sum = joined(at, sums[i][j], j);
                memcpy(at, &sum, sizeof sum);
            }
    };
    const auto plus = [](const Value<V>* at, V sum, int) { return load_as<V>(at) + sum; };
    const auto minus = [](const Value<V>* at, V sum, int) { return load_as<V>(at) - sum; };
    const int64_t second = to.second;
    const bool taken = to.minus;
    if (to.first && to.bias)
        each(s, [&](const Value<V>*, V sum, int j) { return load_as<V>(to.bias + j * L) + sum; });
    else if (to.first)
        each(s, [](const Value<V>*, V sum, int) { return sum; });
    else
        each(s, plus);
    if (!second) return;
    if (taken)
        each(s + second, minus);
    else
        each(s + second, plus);
}

// M positions times N vectors of channels, accumulated in registers; V is a vector, or half of one.
//   s[i * ps + j] (+)= sum over taps t and channels c: x[t.x + c * apart + i] * w[(t.w + c) * N*L + j]
// (of columns x[t.x + c + i * apart]), and the same sum is added to a second place, or taken from it. Vectors beyond the
// second have their weights in the same way `next` further on.
template <class V, int M, int N, Order ORDER>
static void block(const Value<V>* __restrict x, const Tap* taps, int count, int channels, int64_t apart,
                  const Value<V>* __restrict w, int64_t next, Value<V>* __restrict s, int64_t ps, const To<Value<V>>& to) {
    typedef Value<V> T;
    constexpr int L = sizeof(V) / sizeof(T), LINE = std::min(N, 2) * L;
    V acc[M][N];
#pragma GCC unroll 16
    for (int i = 0; i < M; i++)
#pragma GCC unroll 4
        for (int j = 0; j < N; j++) acc[i][j] = V{};
    for (int t = 0; t < count; t++) {
        Positions<T, M, ORDER> xp(x + taps[t].x, apart);
        const T* wp = w + taps[t].w * LINE;
        for (int c = 0; c < channels; c++) {
            V wv[N];
#pragma GCC unroll 4
            for (int j = 0; j < N; j++) wv[j] = load_as<V>(wp + j / 2 * next + j % 2 * L);
#pragma GCC unroll 16
            for (int i = 0; i < M; i++)
#pragma GCC unroll 4
                for (int j = 0; j < N; j++) acc[i][j] = with_product<ORDER>(acc[i][j], xp.at(i), wv[j]);
            xp.next_channel();
            wp += LINE;
        }
    }
    put(acc, s, ps, to);
}

template <class T>
using Block = void (*)(const T*, const Tap*, int, int, int64_t, const T*, int64_t, T*, int64_t, const To<T>&);

// So few positions have too few sums under way and meet each weight too seldom: they take four vectors of channels.
constexpr int FEW_POSITIONS = TF_ROWS / 3;
template <int N> constexpr int MOST_POSITIONS = N > 2 ? FEW_POSITIONS : TF_ROWS;

// Blocks of one to so many positions, by their number.
template <class V, int N, Order ORDER, int... M>
static Block<Value<V>> block_of(int positions, std::integer_sequence<int, M...>) {
    static const Block<Value<V>> table[] = {block<V, M + 1, N, ORDER>...};
    return table[positions - 1];
}

// About so many terms in a sum before it joins the others: keeps rounding below torch's, whose sums are
// shorter too where taps have few channels.
static inline int terms(int channels) { return channels < 32 ? 64 : 128; }

// The same as `block` of one vector, whose short sums, of so many taps and channels, are added up in registers.
template <class V, int M, Order ORDER>
static void slim_block(const Value<V>* __restrict x, const Tap* taps, int count, int channels, int64_t apart,
                       const Value<V>* __restrict w, Value<V>* __restrict s, int64_t ps, const To<Value<V>>& to, int some,
                       int part) {
    typedef Value<V> T;
    constexpr int L = sizeof(V) / sizeof(T);
    V total[M][1] = {};
    for (int t0 = 0; t0 < count; t0 += some)
        for (int c0 = 0; c0 < channels; c0 += part) {
            V acc[M] = {};
            const int end = std::min(count, t0 + some), n = std::min(part, channels - c0);
            for (int t = t0; t < end; t++) {
                Positions<T, M, ORDER> xp(x + taps[t].x + c0 * (ORDER == Order::columns ? 1 : apart), apart);
                const T* wp = w + (taps[t].w + c0) * L;
                for (int c = 0; c < n; c++, xp.next_channel(), wp += L) {
                    const V wv = load_as<V>(wp);
#pragma GCC unroll 16
                    for (int i = 0; i < M; i++) acc[i] = with_product<ORDER>(acc[i], xp.at(i), wv);
                }
            }
#pragma GCC unroll 16
            for (int i = 0; i < M; i++) total[i][0] += acc[i];
        }
    put(total, s, ps, to);
}

template <class V> using SlimBlock = void (*)(const Value<V>*, const Tap*, int, int, int64_t, const Value<V>*, Value<V>*,
                                              int64_t, const To<Value<V>>&, int, int);
template <class V, Order ORDER, int... M>
static SlimBlock<V> slim_block_of(int positions, std::integer_sequence<int, M...>) {
    static const SlimBlock<V> table[] = {slim_block<V, M + 1, ORDER>...};
    return table[positions - 1];
}

// A row of n positions. The remainder is shared between the last two blocks, so none is tiny. A block's
// short sums are added up while it is in the first-level cache.
template <class V, int N, Order ORDER>
static void row(const Value<V>* x, int64_t n, const Tap* taps, int count, int channels, int64_t apart, const Value<V>* w,
                int64_t next, Value<V>* s, int64_t ps, const To<Value<V>>& to) {
    constexpr int L = sizeof(V) / sizeof(Value<V>), LINE = std::min(N, 2) * L;
    constexpr std::make_integer_sequence<int, MOST_POSITIONS<N>> positions;
    const int most = terms(channels), taps_at_once = std::max(1, most / channels);
    const int parts = std::max(1, (channels + most / 2) / most), part = (channels + parts - 1) / parts;
    const int64_t channel = ORDER == Order::columns ? 1 : apart, position = ORDER == Order::columns ? apart : 1;
    const To<Value<V>> more = {false, to.second, to.minus, nullptr};
    while (n > 0) {
        constexpr int most_positions = MOST_POSITIONS<N>;
        const bool full = n >= 2 * most_positions || n == most_positions;
        const int m = full ? most_positions : n < most_positions ? int(n) : int((n + 1) / 2);
        if (count <= taps_at_once && part == channels) {  // one short sum
            block_of<V, N, ORDER>(m, positions)(x, taps, count, channels, apart, w, next, s, ps, to);
        } else if constexpr (N == 1) {
            slim_block_of<V, ORDER>(m, positions)(x, taps, count, channels, apart, w, s, ps, to, taps_at_once, part);
        } else {
            const auto sum = block_of<V, N, ORDER>(m, positions);
            for (int t = 0; t == 0 || t < count; t += taps_at_once)
                for (int c = 0; c < channels; c += part)
                    sum(x + c * channel, taps + t, std::min(taps_at_once, count - t), std::min(part, channels - c), apart,
                        w + c * LINE, next, s, ps, t == 0 && c == 0 ? to : more);
        }
        x += m * position;
        s += m * ps;
        n -= m;
    }
}

// The same for a block of so many channels.
template <class T>
using Row = void (*)(const T*, int64_t, const Tap*, int, int, int64_t, const T*, int64_t, T*, int64_t, const To<T>&);
template <class T, Order ORDER> static Row<T> row_of(int64_t wide) {
    if constexpr (TF_BYTES == 64)
        if (wide < LANES<T>) return row<HalfVec<T>, 1, ORDER>;
    if (wide == 4 * LANES<T>) return row<Vec<T>, 4, ORDER>;
    return wide == LANES<T> ? row<Vec<T>, 1, ORDER> : row<Vec<T>, 2, ORDER>;
}
template <class T> static Row<T> row_of(int64_t wide, Order order) {
    if constexpr (TF_BYTES == 64 && sizeof(T) == 4)
        if (order == Order::dots) return row_of<T, Order::dots>(wide);
    return order == Order::columns ? row_of<T, Order::columns>(wide) : row_of<T, Order::rows>(wide);
}

}  // namespace TF_NAMESPACE

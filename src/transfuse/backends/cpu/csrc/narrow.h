// Groups of few output channels: vectors of positions, each channel in registers of its own.
#pragma once
#include <algorithm>
#include <type_traits>

#include "microkernel.h"
#include "vector.h"

namespace TF_NAMESPACE {

constexpr int NARROW = 4;  // channels of a group at the most

// C channels of the first `n` of N vectors of positions; weights are [tap][input channel][channel].
// Eight sums at a time, more than products are under way: where there are fewer, of every U-th input channel each.
//   s[i * ps + o] = bias[o] + sum over taps t and channels c: x[t.x + c * cs + i] * w[(t.w + c) * C + o]
template <class T, int C, int N>
static void narrow_block(const T* __restrict x, int64_t n, const Tap* taps, int count, int channels, int64_t cs,
                         const T* __restrict w, const T* __restrict bias, T* __restrict s, int64_t ps) {
    constexpr int L = LANES<T>, U = C * N > 4 ? 1 : 8 / (C * N);
    Vec<T> acc[C][N] = {}, parts[U][C][N] = {};
    const auto add = [&](Vec<T> (&sums)[C][N], const T* xp, const T* wp) {
        Vec<T> xv[N];
#pragma GCC unroll 4
        for (int j = 0; j < N; j++) xv[j] = held(load(xp + j * L));
#pragma GCC unroll 4
        for (int o = 0; o < C; o++)
#pragma GCC unroll 4
            for (int j = 0; j < N; j++) sums[o][j] += xv[j] * wp[o];
    };
    for (int t = 0; t < count; t++) {
        const T* xp = x + taps[t].x;
        const T* wp = w + taps[t].w * C;
        int c = 0;
        for (; U > 1 && c + U <= channels; c += U)
#pragma GCC unroll 8
            for (int u = 0; u < U; u++, xp += cs, wp += C) add(parts[u], xp, wp);
        for (; c < channels; c++, xp += cs, wp += C) add(acc, xp, wp);
    }
#pragma GCC unroll 8
    for (int u = 0; U > 1 && u < U; u++)
        for (int o = 0; o < C; o++)
            for (int j = 0; j < N; j++) acc[o][j] += parts[u][o][j];
    T lines[C][N * L];
    for (int o = 0; o < C; o++)
        for (int j = 0; j < N; j++) store(&lines[o][j * L], acc[o][j] + fill(bias[o]));
    for (int64_t i = 0; i < n; i++, s += ps)
#pragma GCC unroll 4
        for (int o = 0; o < C; o++) s[o] = lines[o][i];
}

// A row of n positions: as many vectors at once as it fills, four at the most.
template <class T, int C>
static void narrow_row(const T* x, int64_t n, const Tap* taps, int count, int channels, int64_t cs, const T* w,
                       const T* bias, T* s, int64_t ps) {
    constexpr int64_t L = LANES<T>;
    for (; n > 2 * L; n -= 4 * L, x += 4 * L, s += 4 * L * ps)
        narrow_block<T, C, 4>(x, std::min(n, 4 * L), taps, count, channels, cs, w, bias, s, ps);
    if (n > L)
        narrow_block<T, C, 2>(x, n, taps, count, channels, cs, w, bias, s, ps);
    else if (n > 0)
        narrow_block<T, C, 1>(x, n, taps, count, channels, cs, w, bias, s, ps);
}

// The same for groups of so many channels.
template <class T>
using NarrowRow = void (*)(const T*, int64_t, const Tap*, int, int, int64_t, const T*, const T*, T*, int64_t);
template <class T> static NarrowRow<T> narrow_row_of(int64_t per_group) {
    static const NarrowRow<T> table[NARROW] = {narrow_row<T, 1>, narrow_row<T, 2>, narrow_row<T, 3>, narrow_row<T, 4>};
    return table[per_group - 1];
}

// Groups of one channel: V vectors of channels at M positions, x and weights with channels innermost.
//   s[i * ps + o] = bias[o] + sum over taps t: x[t.x + i * slots + o] * w[t.w + o]
template <class T, int M, int V>
static void lanes_block(const T* __restrict x, const Tap* taps, int count, int64_t slots, const T* __restrict w,
                        const T* __restrict bias, T* __restrict s, int64_t ps) {
    constexpr int L = LANES<T>;
    Vec<T> acc[M][V] = {};
    for (int t = 0; t < count; t++) {
        const T *xp = x + taps[t].x, *wp = w + taps[t].w;
        Vec<T> wv[V];
#pragma GCC unroll 4
        for (int j = 0; j < V; j++) wv[j] = load(wp + j * L);
#pragma GCC unroll 8
        for (int i = 0; i < M; i++)
#pragma GCC unroll 4
            for (int j = 0; j < V; j++) acc[i][j] += load(xp + i * slots + j * L) * wv[j];
    }
    for (int i = 0; i < M; i++)
        for (int j = 0; j < V; j++) store(s + i * ps + j * L, acc[i][j] + load(bias + j * L));
}

// A row of n positions, all channels: eight sums at a time, more than products are under way.
template <class T>
static void lanes_row(const T* x, int64_t n, const Tap* taps, int count, int64_t slots, const T* w, const T* bias, T* s,
                      int64_t ps) {
    constexpr int L = LANES<T>;
    const auto positions = [&](auto m) {
        constexpr int M = decltype(m)::value, V = 8 / M;
        for (; n >= M; n -= M, x += M * slots, s += M * ps) {
            int64_t o = 0;
            for (; o + V * L <= slots; o += V * L)
                lanes_block<T, M, V>(x + o, taps, count, slots, w + o, bias + o, s + o, ps);
            for (; o < slots; o += L) lanes_block<T, M, 1>(x + o, taps, count, slots, w + o, bias + o, s + o, ps);
        }
    };
    if (slots == L) positions(std::integral_constant<int, 8>());
    positions(std::integral_constant<int, 4>());
    positions(std::integral_constant<int, 2>());
    positions(std::integral_constant<int, 1>());
}

}  // namespace TF_NAMESPACE

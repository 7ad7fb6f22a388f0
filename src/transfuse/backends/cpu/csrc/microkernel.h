// The inner loops: positions x output channels, summed over taps and input channels.
#pragma once
#include <algorithm>

#include "vector.h"

namespace TF_NAMESPACE {

// Where a tap finds its inputs, relative to the first position, and its weights, in lines of a block.
struct Tap {
    int64_t x, w;
};

// What becomes of a sum: it is the first of its place, or added to it; `second` is the distance to
// another place that it joins too, 0 for none.
struct To {
    bool first;
    int64_t second;
    bool minus;
};

// M positions times N vectors of channels, accumulated in registers.
//   s[i * ps + j] (+)= sum over taps t and channels c: x[t.x + c * cs + i] * w[(t.w + c) * N*LANES + j]
// and the same sum is added to a second place, or taken from it.
template <class T, int M, int N>
static void block(const T* __restrict x, const Tap* taps, int count, int channels, int64_t cs,
                  const T* __restrict w, T* __restrict s, int64_t ps, To to) {
    constexpr int L = LANES<T>;
    Vec<T> acc[M][N];
#pragma GCC unroll 16
    for (int i = 0; i < M; i++)
#pragma GCC unroll 4
        for (int j = 0; j < N; j++) acc[i][j] = Vec<T>{};
    for (int t = 0; t < count; t++) {
        const T* xp = x + taps[t].x;
        const T* wp = w + taps[t].w * (N * L);
        for (int c = 0; c < channels; c++) {
            Vec<T> wv[N];
#pragma GCC unroll 4
            for (int j = 0; j < N; j++) wv[j] = load(wp + j * L);
#pragma GCC unroll 16
            for (int i = 0; i < M; i++) {
                Vec<T> xv = fill(xp[i]);
#pragma GCC unroll 4
                for (int j = 0; j < N; j++) acc[i][j] += xv * wv[j];
            }
            xp += cs;
            wp += N * L;
        }
    }
    // Sums of parts are added up: fewer terms in a row, less rounding.
#pragma GCC unroll 16
    for (int i = 0; i < M; i++)
#pragma GCC unroll 4
        for (int j = 0; j < N; j++) {
            T* at = s + i * ps + j * L;
            store(at, to.first ? acc[i][j] : load(at) + acc[i][j]);
        }
    if (!to.second) return;
#pragma GCC unroll 16
    for (int i = 0; i < M; i++)
#pragma GCC unroll 4
        for (int j = 0; j < N; j++) {
            T* at = s + to.second + i * ps + j * L;
            store(at, to.minus ? load(at) - acc[i][j] : load(at) + acc[i][j]);
        }
}

template <class T>
using Block = void (*)(const T*, const Tap*, int, int, int64_t, const T*, T*, int64_t, To);

// block<1> to block<TF_ROWS>, by the number of positions.
template <class T, int N> static Block<T> block_of(int positions) {
    static const Block<T> table[] = {
        block<T, 1, N>, block<T, 2, N>, block<T, 3, N>, block<T, 4, N>,  block<T, 5, N>,  block<T, 6, N>,
#if TF_ROWS > 6
        block<T, 7, N>, block<T, 8, N>, block<T, 9, N>, block<T, 10, N>, block<T, 11, N>, block<T, 12, N>,
#endif
    };
    return table[positions - 1];
}

// About so many terms in a sum before it joins the others: keeps rounding below torch's, whose sums are
// shorter too where taps have few channels.
static inline int terms(int channels) { return channels < 32 ? 64 : 128; }

// A row of n positions. The remainder is shared between the last two blocks, so none is tiny. A block's
// short sums are added up while it is in the first-level cache.
template <class T, int N>
static void row(const T* x, int64_t n, const Tap* taps, int count, int channels, int64_t cs, const T* w, T* s,
                int64_t ps, To to) {
    const int most = terms(channels), taps_at_once = std::max(1, most / channels);
    const int parts = std::max(1, (channels + most / 2) / most), part = (channels + parts - 1) / parts;
    while (n > 0) {
        const int m = n >= 2 * TF_ROWS || n == TF_ROWS ? TF_ROWS : n < TF_ROWS ? int(n) : int((n + 1) / 2);
        const auto sum = block_of<T, N>(m);
        To next = to;
        for (int t = 0; t == 0 || t < count; t += taps_at_once)
            for (int c = 0; c < channels; c += part) {
                sum(x + c * cs, taps + t, std::min(taps_at_once, count - t), std::min(part, channels - c), cs,
                    w + c * N * LANES<T>, s, ps, next);
                next.first = false;
            }
        x += m;
        s += m * ps;
        n -= m;
    }
}

}  // namespace TF_NAMESPACE

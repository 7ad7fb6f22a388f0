// The inner loops: positions x output channels, summed over taps and input channels.
#pragma once
#include "vector.h"

namespace TF_NAMESPACE {

// Where a tap finds its inputs, relative to the first position, and its weights.
struct Tap {
    int64_t x, w;
};

// M positions times N vectors of channels, accumulated in registers.
//   s[i * ps + j] (+)= sum over taps t and channels c: x[t.x + c * cs + i] * w[t.w + c * N*LANES + j]
template <class T, int M, int N>
static void block(const T* __restrict x, const Tap* taps, int count, int channels, int64_t cs,
                  const T* __restrict w, T* __restrict s, int64_t ps, bool first) {
    constexpr int L = LANES<T>;
    Vec<T> acc[M][N];
#pragma GCC unroll 16
    for (int i = 0; i < M; i++)
#pragma GCC unroll 4
        for (int j = 0; j < N; j++) acc[i][j] = Vec<T>{};
    for (int t = 0; t < count; t++) {
        const T* xp = x + taps[t].x;
        const T* wp = w + taps[t].w;
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
            T* to = s + i * ps + j * L;
            store(to, first ? acc[i][j] : load(to) + acc[i][j]);
        }
}

template <class T>
using Block = void (*)(const T*, const Tap*, int, int, int64_t, const T*, T*, int64_t, bool);

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

// A row of n positions. The remainder is shared between the last two blocks, so none is tiny.
template <class T, int N>
static void row(const T* x, int64_t n, const Tap* taps, int count, int channels, int64_t cs, const T* w,
                T* s, int64_t ps, bool first) {
    while (n > 0) {
        int m = n >= 2 * TF_ROWS || n == TF_ROWS ? TF_ROWS : n < TF_ROWS ? int(n) : int((n + 1) / 2);
        block_of<T, N>(m)(x, taps, count, channels, cs, w, s, ps, first);
        x += m;
        s += m * ps;
        n -= m;
    }
}

}  // namespace TF_NAMESPACE

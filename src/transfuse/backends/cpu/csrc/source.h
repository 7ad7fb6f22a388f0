// What the convolution reads: the program's input, or what a pool makes of it.
#pragma once
#include <algorithm>
#include <utility>
#include <vector>

#include "convert.h"
#include "memory.h"
#include "parallel.h"
#include "tile.h"

namespace TF_NAMESPACE {

template <class T> class Source {
  public:
    const void* data;
    int element;
    int64_t strides[5];
    int64_t inputs[3];  // along each axis

    // A pool's result is a contiguous tensor of the compute type.
    Source(const transfuse_program& program, int threads) : p(program) {
        for (int a = 0; a < 3; a++) inputs[a] = p.spatial[a];
        for (int i = 0; i < 5; i++) strides[i] = p.input_strides[i];
        data = p.input;
        element = p.input_element;
        if (!p.pooled) return;
        for (int a = 0; a < 3; a++) inputs[a] = windows(p.spatial[a], p.pool, a);
        const int64_t plane = inputs[1] * inputs[2], volume = inputs[0] * plane;
        pooled = allocate<T>(p.batch * p.in_channels * volume);
        const bool most = p.pool.op == TF_MAX_POOL;
        typedef std::pair<std::vector<T>, std::vector<T>> Rows;
        const auto prepare = [&] { return Rows(std::vector<T>(p.spatial[2]), std::vector<T>(p.spatial[2])); };
        in_parallel(threads, p.batch * p.in_channels * inputs[0], prepare, [&](Rows& rows, int64_t i) {
            const int64_t nc = i / inputs[0], z = i % inputs[0];
            for (int64_t y = 0; y < inputs[1]; y++)
                pool_row(nc, z, y, most, rows.first, rows.second,
                         pooled.get() + nc * volume + z * plane + y * inputs[2]);
        });
        data = pooled.get();
        element = sizeof(T) == 8 ? TF_F64 : TF_F32;
        const int64_t contiguous[5] = {p.in_channels * volume, volume, plane, inputs[2], 1};
        for (int i = 0; i < 5; i++) strides[i] = contiguous[i];
    }

  private:
    const transfuse_program& p;
    Buffer<T> pooled;

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
        const auto [d0, d1] = covered(0, z);
        const auto [h0, h1] = covered(1, y);
        for (int64_t id = d0; id < d1; id++)
            for (int64_t ih = h0; ih < h1; ih++) {
                const int64_t from = nc / p.in_channels * p.input_strides[0] +
                                     nc % p.in_channels * p.input_strides[1] + id * p.input_strides[2] +
                                     ih * p.input_strides[3];
                load_row(p.input_element, p.input, from, p.input_strides[4], width, first ? folded.data() : line.data());
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

    // The values of an axis that a window has: what lies in the padding is not among them.
    std::pair<int64_t, int64_t> covered(int axis, int64_t window) const {
        const int64_t first = window * p.pool.stride[axis] - p.pool.padding[axis];
        return {std::max<int64_t>(0, first), std::min(p.spatial[axis], first + p.pool.kernel[axis])};
    }

    // Windows along a row, one tap after another: those that find a value in any window.
    template <int STRIDE, class F> void fold_width(F fold, T none, int64_t stride, const T* from, T* to) const {
        const int64_t padding = p.pool.padding[2];
        if (STRIDE) stride = STRIDE;
        std::fill(to, to + inputs[2], none);
        const int64_t begin = std::max<int64_t>(0, padding - (inputs[2] - 1) * stride);
        const int64_t end = std::min(p.pool.kernel[2], p.spatial[2] + padding);
        for (int64_t k = begin; k < end; k++) {
            const int64_t off = k - padding;  // 0 <= x * stride + off < width
            const int64_t lo = off < 0 ? (-off - 1) / stride + 1 : 0;
            const int64_t hi = std::min(inputs[2], (p.spatial[2] - off - 1) / stride + 1);
            for (int64_t x = lo; x < hi; x++) to[x] = fold(to[x], from[x * stride + off]);
        }
    }

    static T larger(T a, T b) { return a > b || a != a ? a : b; }
};

}  // namespace TF_NAMESPACE

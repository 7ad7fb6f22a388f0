// Whether a layer is computed by columns, and its weights for that: every input position times the weights of all taps at
// once, in vectors of taps and channels, so that few channels fill them and short rows make one long one. Each output then
// adds up what it meets of these products (column_sums.h). Those that no output meets are computed, too.
#pragma once
#include <algorithm>
#include <vector>

#include "block.h"
#include "convert.h"
#include "program.h"
#include "taps.h"
#include "vector.h"

namespace TF_NAMESPACE {

constexpr int64_t COLUMNS_BYTES = 1 << 20;  // of a sample: they stay in the second-level cache
constexpr int64_t FEWEST_TERMS = 16;        // input channels of a product
constexpr double UNDER_WAY = 8;             // products at a time: a sum waits for the one before
constexpr double NARROW_STEPS = 1.5;        // of a vector of positions: each weight is a load of its own
constexpr double GATHER_STEPS = 8;          // products that could be computed while one is found and added
constexpr double OUTPUT_STEPS = 16;         // likewise while an output is stored beside the columns
constexpr double COLUMNS_GAIN = 0.85;       // of the steps at the most: they are an estimate

// Steps of the inner loop for one input channel: each vector of weights is read once for a block of positions.
template <class T> static double inner_steps(int64_t positions, int64_t channels) {
    const double vectors = double(ceiling(channels, LANES<T>)), blocks = double(ceiling(positions, TF_ROWS));
    return std::max(blocks * UNDER_WAY * std::max(1.0, vectors / 2), (double(positions) + blocks) * vectors);
}

// By the sizes alone, since weights are packed before tensors are known. `narrow`: what else would be done, and the
// share of time that is left of it where rows are paired.
template <class T> static bool pays_by_columns(const transfuse_program& p, bool narrow, double left) {
    if (p.groups != 1 || p.before_count || p.in_channels < FEWEST_TERMS) return false;
    double lanes = double(p.out_channels), room = double(sizeof(T));
    for (int a = 0; a < 3; a++) lanes *= double(p.kernel[a]), room *= double(p.spatial[a]);
    if (lanes == double(p.out_channels)) return false;  // one tap: rows are long where they follow one another
    if (room <= 0 || room * lanes > COLUMNS_BYTES) return false;
    const MetInputs depth(p, 0), height(p, 1), width(p, 2);
    double row = 0;
    if (narrow)
        row = NARROW_STEPS * double(ceiling(ceiling(outputs_of(p, 2), p.stride[2]), LANES<T>) * p.kernel[2] * p.out_channels);
    else
        for (int64_t met : width.of) row += met ? inner_steps<T>(met, p.out_channels) : 0;
    const double rows = double(depth.all) * double(height.all), pairs = rows * double(width.all);
    const double direct = rows * row * left, terms = double(p.in_channels);
    const double columns = inner_steps<T>(p.spatial[0] * p.spatial[1] * p.spatial[2], int64_t(lanes));
    const double outputs = depth.reached * height.reached * width.reached;
    const double gathered = pairs * GATHER_STEPS + outputs * OUTPUT_STEPS;
    return columns * terms + gathered * double(ceiling(p.out_channels, LANES<T>)) < COLUMNS_GAIN * direct * terms;
}

// Lanes of a column: the channels of the first tap, those of the next one.
static inline int64_t column_lanes(const transfuse_program& p) {
    return p.kernel[0] * p.kernel[1] * p.kernel[2] * p.out_channels;
}

// Packed: [block of lanes][input channel][lane in block], zeros behind the last; width(o) is that of the block at lane o.
template <class T, class F>
static void pack_columns(const transfuse_program& p, const void* weights, const int64_t* strides, F width, T* to) {
    const int64_t co = p.out_channels, plane = p.kernel[1] * p.kernel[2], lanes = column_lanes(p);
    const bool together = strides[4] == 1 && strides[3] == p.kernel[2];
    std::vector<T> column(size_t(lanes), T(0));
    for (int64_t i = 0; i < p.in_channels; i++) {
        for (int64_t a = 0; a < p.kernel[0]; a++) {
            const int64_t at = i * strides[0] + a * strides[2];
            T* read = column.data() + a * plane * co;
            if (together) copy_block(p.element, weights, at, {plane, co}, {1, strides[1]}, read, co);
            for (int64_t t = 0; t < plane && !together; t++)
                load_row(p.element, weights, at + t / p.kernel[2] * strides[3] + t % p.kernel[2] * strides[4], strides[1],
                         co, read + t * co);
        }
        for (T& each : column) each *= T(p.weight_scale);
        T* line = to;
        for (int64_t o = 0, wide; o < lanes; o += wide) {
            wide = width(o);
            T* end = std::copy(column.begin() + o, column.begin() + std::min(o + wide, lanes), line + i * wide);
            std::fill(end, line + (i + 1) * wide, T(0));
            line += p.in_channels * wide;
        }
    }
}

}  // namespace TF_NAMESPACE

// The transposed convolution of a box of outputs by columns: products first, then the sum of those that each output meets.
#pragma once
#include <vector>

#include "block.h"
#include "columns.h"
#include "inputs.h"
#include "memory.h"
#include "microkernel.h"
#include "reads.h"
#include "tile.h"
#include "weights.h"

namespace TF_NAMESPACE {

template <class T> class ColumnSums {
  public:
    ColumnSums(const Layer& layer, const void* input, int element, const int64_t* strides, const int64_t* inputs)
        : p(layer), input(input), element(element), lanes(column_lanes(layer)), padded(in_vectors<T>(lanes)) {
        for (int i = 0; i < 5; i++) stride[i] = strides[i];
        for (int a = 0; a < 3; a++) n[a] = inputs[a];
    }

    // All outputs of tile.box of sample tile.n, into tile.values; `bias`, if any, has one value for each slot.
    void operator()(Tile<T>& tile, const T* bias) {
        if (tile.n != sample || !(tile.box == box)) multiply(tile.n, tile.box);
        const int64_t vectors = tile.channels.slots / LANES<T>;
        T* to = tile.values;
        for (const auto& planes : reads[0].of)
            for (const auto& lines : reads[1].of) {
                list_rows(planes, lines);
                for (size_t w = 0; w + 1 < ends.size(); w++, to += tile.channels.slots)
                    for (int64_t j = 0; j < vectors * LANES<T>; j += LANES<T>) {
                        Vec<T> sum = {};
                        for (int64_t row : rows)
                            for (size_t k = ends[w]; k < ends[w + 1]; k++) sum += load(columns.get() + row + places[k] + j);
                        store(to + j, bias ? sum + load(bias + j) : sum);
                    }
            }
    }

  private:
    const Layer& p;
    const void* input;
    const int element;
    const int64_t lanes, padded;  // of a column
    int64_t stride[5], n[3];
    // What was multiplied last.
    int64_t sample = -1;
    Box box = {};
    Reads reads[3];
    int64_t room = 0, copied = 0;
    Buffer<T> columns, copy;         // [position][lane], and [input channel][position]
    std::vector<int64_t> rows;       // that a row of outputs meets, and their taps: where these are in the columns
    std::vector<int64_t> places;     // likewise of the outputs of a row, which end where `ends` says
    std::vector<size_t> ends;

    void multiply(int64_t from, const Box& asked) {
        sample = -1;  // until all is done
        for (int a = 0; a < 3; a++) reads[a] = Reads(p, a, n[a], asked.lo[a], asked.hi[a]);
        ends.assign(1, 0), places.clear();
        for (const auto& each : reads[2].of) {
            for (const auto& meets : each) places.push_back((meets.input - reads[2].lo) * padded + meets.tap * p.out_channels);
            ends.push_back(places.size());
        }
        const int64_t positions = size(0) * size(1) * size(2), count = (positions + 1) * padded + 2 * LANES<T> + p.out_channels;
        if (count > room) {
            room = 0, columns.reset();
            columns = allocate<T>(count);
            room = count;
        }
        // One row, where rows and planes that are met follow one another.
        int64_t width = size(2), lines = size(1), planes = size(0);
        if (lines == 1 || stride[3] == width * stride[4]) width *= lines, lines = 1;
        if (lines == 1 && (planes == 1 || stride[2] == width * stride[4])) width *= planes, planes = 1;
        const int64_t at = from * stride[0] + reads[0].lo * stride[2] + reads[1].lo * stride[3] + reads[2].lo * stride[4];
        const bool as_is = element == COMPUTED<T> && width == positions;
        const T* x = static_cast<const T*>(input) + at;
        if (as_is && stride[4] == 1 && is_near(stride[1])) {
            by_blocks(x, positions, Order::rows, stride[1]);
        } else if (as_is && stride[1] == 1 && is_near(stride[4])) {
            by_blocks(x, positions, Order::columns, stride[4]);
        } else {
            const int64_t pitch = positions | 1;
            if (pitch * p.in_channels > copied) {
                copied = 0, copy.reset();
                copy = allocate<T>(pitch * p.in_channels);
                copied = pitch * p.in_channels;
            }
            for (int64_t d = 0; d < planes; d++)
                for (int64_t h = 0; h < lines; h++)
                    copy_block(element, input, at + d * stride[2] + h * stride[3], {p.in_channels, width},
                               {stride[1], stride[4]}, copy.get() + (d * lines + h) * width, pitch);
            by_blocks(copy.get(), positions, Order::rows, pitch);
        }
        sample = from, box = asked;
    }

    int64_t size(int a) const { return reads[a].hi - reads[a].lo; }
    // Further apart, values drive one another out of the first-level cache.
    static bool is_near(int64_t apart) { return apart * int64_t(sizeof(T)) % PAGE_BYTES != 0; }

    void by_blocks(const T* x, int64_t positions, Order order, int64_t apart) {
        const Tap tap = {0, 0};
        for (int64_t o = 0, wide; o < padded; o += wide) {
            wide = block_width<T>(lanes, o);
            const T* weights = static_cast<const T*>(p.weights) + o * p.in_channels;
            row_of<T>(wide, order)(x, positions, &tap, 1, int(p.in_channels), apart, weights, 0, columns.get() + o, padded,
                                   {true, 0, false, nullptr});
        }
    }

    void list_rows(const std::vector<Reads::Meets>& planes, const std::vector<Reads::Meets>& lines) {
        rows.clear();
        for (const auto& z : planes)
            for (const auto& y : lines) {
                const int64_t first = ((z.input - reads[0].lo) * size(1) + y.input - reads[1].lo) * size(2);
                rows.push_back(first * padded + (z.tap * p.kernel[1] + y.tap) * p.kernel[2] * p.out_channels);
            }
    }
};

}  // namespace TF_NAMESPACE

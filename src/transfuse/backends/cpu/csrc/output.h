// Tiles into the output.
#pragma once
#include "convert.h"
#include "tile.h"

namespace TF_NAMESPACE {

// A vector of channels of every position into a row of positions of every channel.
template <class T>
static void turn(const T* from, int64_t slots, int64_t width, int lanes, T* to, int64_t pitch, bool streams) {
    constexpr int L = LANES<T>;
    int64_t w = 0;
    streams = STREAMS && streams && uintptr_t(to) % TF_BYTES == 0 && pitch % L == 0;
    for (; w + L <= width; w += L) {
        Vec<T> r[L];
#pragma GCC unroll 16
        for (int i = 0; i < L; i++) r[i] = load(from + (w + i) * slots);
        transpose<T>(r);
        if (lanes == L && streams) {
#pragma GCC unroll 16
            for (int i = 0; i < L; i++) stream(to + i * pitch + w, r[i]);
        } else if (lanes == L) {
#pragma GCC unroll 16
            for (int i = 0; i < L; i++) store(to + i * pitch + w, r[i]);
        } else {
            for (int i = 0; i < lanes; i++) store(to + i * pitch + w, r[i]);
        }
    }
    if (w == width) return;
    Vec<T> r[L];
    for (int i = 0; i < L; i++) r[i] = load(from + std::min(w + i, width - 1) * slots);
    transpose<T>(r);
    for (int i = 0; i < lanes; i++) store_some(to + i * pitch + w, r[i], width - w);
}

// A tile's values at their place, in the output's layout and type.
template <class T> static void write(const transfuse_program& p, Tile<T>& tile, bool streams) {
    const int64_t* st = p.output_strides;
    const int64_t slots = tile.channels.slots;
    const Channels& c = tile.channels;
    // Rows that follow one another in the output, too, make one.
    int64_t width = tile.box.size(2), rows = tile.box.size(1), planes = tile.box.size(0);
    if (st[3] == width * st[4] || rows == 1) width *= rows, rows = 1;
    if (rows == 1 && (st[2] == width * st[4] || planes == 1)) width *= planes, planes = 1;
    const bool as_is = (p.output_element == TF_F32 || p.output_element == TF_F64) && st[4] == 1;
    std::vector<T> lines(as_is ? 0 : width * LANES<T>);
    for (int64_t d = 0; d < planes; d++)
        for (int64_t h = 0; h < rows; h++) {
            const T* v = tile.at((d * rows + h) * width);
            const int64_t base = tile.n * st[0] + tile.first_channel() * st[1] + (tile.box.lo[0] + d) * st[2] +
                                 (tile.box.lo[1] + h) * st[3] + tile.box.lo[2] * st[4];
            if (st[1] == 1 && c.dense()) {  // channels last: as the tile lies
                for (int64_t w = 0; w < width; w++)
                    store_row(p.output_element, p.output, base + w * st[4], 1, c.count, v + w * slots);
                continue;
            }
            for (int64_t g = 0; g < c.count; g += c.per_group)
                for (int64_t o = 0; o < c.per_group; o += LANES<T>) {
                    const int lanes = int(std::min<int64_t>(LANES<T>, c.per_group - o));
                    const T* from = v + c.slot(g) + o;
                    const int64_t to = base + (g + o) * st[1];
                    if (as_is) {
                        turn(from, slots, width, lanes, static_cast<T*>(p.output) + to, st[1], streams);
                        continue;
                    }
                    turn(from, slots, width, lanes, lines.data(), width, false);
                    for (int l = 0; l < lanes; l++)
                        store_row(p.output_element, p.output, to + l * st[1], st[4], width, lines.data() + l * width);
                }
        }
    drain();
}

}  // namespace TF_NAMESPACE

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

// The channels of every position, positions `step` apart.
template <class T>
static void put_positions(const T* from, int64_t next, int64_t width, int64_t count, T* to, int64_t step) {
    constexpr int L = LANES<T>;
    if (next == count && step == count) count *= width, width = 1;
    for (int64_t i = 0; i < width; i++, from += next, to += step) {
        int64_t o = 0;
        for (; o + L <= count; o += L) store(to + o, load(from + o));
        if (o < count) store_some(to + o, load(from + o), count - o);
    }
}

// A tile's values at their place, in the output's layout and type.
template <class T> static void write(const transfuse_program& p, Tile<T>& tile, bool streams) {
    const int64_t* st = p.output_strides;
    const int64_t slots = tile.channels.slots;
    const Channels& c = tile.channels;
    int64_t size[3] = {tile.box.size(0), tile.box.size(1), tile.box.size(2)};
    const int64_t step[3] = {size[1] * size[2], size[2], 1};  // positions of the tile from one to the next
    // Rows run where values follow one another in the output, and on through axes where rows do.
    const int row = st[4] != 1 && st[3] == 1 ? 1 : 2;
    const int64_t value = st[2 + row];
    int64_t width = size[row];
    for (int a = row; a-- > 0 && (st[2 + a] == width * value || size[a] == 1);) width *= size[a], size[a] = 1;
    size[row] = 1;
    const bool as_computed = p.output_element == TF_F32 || p.output_element == TF_F64, as_is = as_computed && value == 1;
    std::vector<T> lines(as_is ? 0 : width * LANES<T>);
    const int64_t base = tile.n * st[0] + tile.first_channel() * st[1] + tile.box.lo[0] * st[2] +
                         tile.box.lo[1] * st[3] + tile.box.lo[2] * st[4];
    for (int64_t d = 0; d < size[0]; d++)
        for (int64_t h = 0; h < size[1]; h++)
            for (int64_t w = 0; w < size[2]; w++) {
                const T* v = tile.at(d * step[0] + h * step[1] + w * step[2]);
                const int64_t at = base + d * st[2] + h * st[3] + w * st[4], next = step[row] * slots;
                if (st[1] == 1 && c.dense()) {  // channels last: as the tile lies
                    if (as_computed)
                        put_positions(v, next, width, c.count, static_cast<T*>(p.output) + at, value);
                    for (int64_t i = 0; i < width && !as_computed; i++)
                        store_row(p.output_element, p.output, at + i * value, 1, c.count, v + i * next);
                    continue;
                }
                for (int64_t g = 0; g < c.count; g += c.per_group)
                    for (int64_t o = 0; o < c.per_group; o += LANES<T>) {
                        const int lanes = int(std::min<int64_t>(LANES<T>, c.per_group - o));
                        const T* from = v + c.slot(g) + o;
                        const int64_t to = at + (g + o) * st[1];
                        if (as_is) {
                            turn(from, next, width, lanes, static_cast<T*>(p.output) + to, st[1], streams);
                            continue;
                        }
                        turn(from, next, width, lanes, lines.data(), width, false);
                        for (int l = 0; l < lanes; l++)
                            store_row(p.output_element, p.output, to + l * st[1], value, width, lines.data() + l * width);
                    }
            }
    drain();
}

}  // namespace TF_NAMESPACE

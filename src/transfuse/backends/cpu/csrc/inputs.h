// What the outputs of a tile read of a sample: a copy with zeros beyond the ends of its rows, or the input itself.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "before.h"
#include "block.h"
#include "convert.h"
#include "dots.h"
#include "memory.h"
#include "microkernel.h"
#include "pairs.h"
#include "vector.h"
#include "weights.h"

namespace TF_NAMESPACE {

// So far apart, values lie in pages of their own, and a multiple of it apart lines of the first-level cache drive one
// another out.
constexpr int64_t PAGE_BYTES = 4096;
// Uses of a value up to which a copy of rows would cost more than to find each channel in a page of its own, or in a line
// that holds little else of use.
constexpr int64_t FAR_USES = 4, NEAR_USES = 64;
constexpr int64_t FEWEST_SIDE_BY_SIDE = 4;  // channels of a column that is read where it lies

// A row that is the sum or difference of two others of its plane, for two rows of outputs at once; row -1 is zeros.
struct MixedRow {
    int64_t row, other;
    int sign;
};

// What is asked for: planes, rows and columns from lo to hi; of the first two those that are met.
struct Asked {
    int64_t lo[3], hi[3];
    std::vector<bool> planes, rows;
    int64_t mixed;  // rows of each plane, behind its own
    bool inside;    // whether no column beyond the ends of rows is among them
};

template <class T> class Inputs {
  public:
    // What is there, and from one plane, row, channel and column to the next.
    const T* values = nullptr;
    int64_t next_plane = 0, next_row = 0, next_channel = 0, next_column = 0;
    Order order = Order::rows;

    Inputs(const Layer& layer, const void* input, int element, const int64_t* strides, const int64_t* inputs)
        : p(layer), input(input), element(element), width(inputs[2]), lanes(is_depthwise<T>(layer)),
          narrow(is_narrow<T>(layer)), before(layer), slots(conv_channels<T>(layer).slots), innermost(lanes) {
        const int64_t sizes[5] = {p.batch, p.in_channels, inputs[0], inputs[1], inputs[2]};
        for (int i = 0; i < 5; i++) stride[i] = strides[i];
        for (int i = 0; i < 5; i++) last += (sizes[i] - 1) * stride[i];
        const bool plain = !p.paired && !p.careful && !p.dots && !lanes && element == COMPUTED<T>;
        const auto apart = [&](int i) { return stride[i] * int64_t(sizeof(T)); };
        const bool many = p.in_channels / p.groups >= FEWEST_SIDE_BY_SIDE;
        columns = plain && !narrow && many && stride[1] == 1 && apart(4) % PAGE_BYTES;
        // Vectors that one value is multiplied with, for all parts of the channels.
        const int64_t uses = p.taps() * (narrow ? 1 : ceiling(p.parts * p.out_channels / p.groups, LANES<T>));
        const bool few = uses <= (apart(1) > PAGE_BYTES ? FAR_USES : NEAR_USES);
        rows = plain && !columns && few && stride[4] == 1 && apart(1) % PAGE_BYTES;
        if (!before) return;
        // Maps are computed where values are copied to: in the order in which they would be read where they lie.
        rows = false, innermost = lanes || columns;
        if (columns) slots = p.in_channels;
    }

    void take(int64_t sample, const Asked& asked) {
        this->sample = sample;
        for (int a = 0; a < 3; a++) lo[a] = asked.lo[a], hi[a] = asked.hi[a];
        if (in_place() && asked.inside && (columns || !reads_beyond())) {
            values = static_cast<const T*>(input) + row_at(lo[0], lo[1], lo[2]);
            order = columns ? Order::columns : Order::rows;
            next_plane = stride[2], next_row = stride[3], next_channel = stride[1], next_column = stride[4];
            return;
        }
        make_room(hi[1] - lo[1] + asked.mixed);
        from = std::max<int64_t>(lo[2], 0), until = std::max(from, std::min(hi[2], width));
        if (innermost)
            copy_innermost(asked);
        else if (p.dots)
            copy_dots(asked);
        else if (stride[4] == 1 || until - from == 1)
            copy_rows(asked);
        else if (stride[1] == 1)
            copy_channels(asked);
        else
            copy_planes(asked);
    }

    // Whether they are read where they are, as far as nothing beyond the ends of rows is asked for.
    bool in_place() const { return !before && (columns || rows); }

    // From one position to the next where channels lie side by side, else from one channel to the next.
    int64_t apart() const { return order == Order::columns ? next_column : next_channel; }

    // Whether sums and differences of the copied inputs are as good as the inputs.
    bool is_tame() const {
        const int64_t size = (hi[1] - lo[1]) * slab();
        bool tame = true;
        for (int64_t d = 0; d < hi[0] - lo[0]; d++) {
            const T* x = copy.get() + d * next_plane;
            Mask<T> most = {};
            int64_t i = 0;
            for (; i + LANES<T> <= size; i += LANES<T>) {
                const Mask<T> bits = (Mask<T>)load(x + i) & MAGNITUDE<T>;  // those of Inf and NaN are largest
                most = most > bits ? most : bits;
            }
            const Vec<T> largest = (Vec<T>)most;
            for (int l = 0; l < LANES<T>; l++) tame = tame && largest[l] < T(TAME);
            for (; i < size; i++) tame = tame && std::abs(x[i]) < T(TAME);
        }
        return tame;
    }

    // The mixed rows of every plane, two slabs [channel][width] each.
    void mix(const std::vector<MixedRow>& mixed_rows) {
        const int64_t size = slab();
        for (int64_t d = 0; d < hi[0] - lo[0]; d++) {
            const T* plane = copy.get() + d * next_plane;
            T* to = copy.get() + d * next_plane + (hi[1] - lo[1]) * size;
            for (const MixedRow& mixed : mixed_rows) {
                const T sign = T(mixed.sign), *b = plane + mixed.other * size;
                const T* a = plane + mixed.row * size;
                if (mixed.row < 0)
                    for (int64_t i = 0; i < size; i++) to[i] = sign * b[i];
                else
                    for (int64_t i = 0; i < size; i++) to[i] = a[i] + sign * b[i];
                to += size;
            }
        }
    }

  private:
    const Layer& p;
    const void* input;
    int element;
    const int64_t width;
    const bool lanes, narrow;
    bool columns, rows;  // whether they can be read where they are
    const Before<T> before;
    int64_t slots;   // of channels, where they are
    bool innermost;  // in the copy
    int64_t last = 0;    // of all values
    int64_t stride[5];
    int64_t sample = 0, lo[3] = {0, 0, 0}, hi[3] = {0, 0, 0};
    int64_t from = 0, until = 0;  // columns that are copied
    Buffer<T> beside;  // for the operands of maps
    int64_t beside_room = 0;
    // [depth][row][channel][width], or where channels are innermost [depth][row][width][channel]; mixed rows come last.
    Buffer<T> copy;
    int64_t room = 0, pitch = 0;

    // Whether vectors of positions would read on behind the last value of all.
    bool reads_beyond() const {
        const int64_t end = row_at(hi[0] - 1, hi[1] - 1, hi[2] - 1) + (p.in_channels - 1) * stride[1];
        return narrow && end + 2 * LANES<T> > last;
    }

    int64_t slab() const { return pitch * (innermost ? slots : p.in_channels); }

    void make_room(int64_t rows) {
        const int64_t columns = hi[2] - lo[2];
        constexpr int64_t step = 16 / sizeof(T), line = 64 / sizeof(T);
        pitch = (columns + step - 1) / step * step;
        if (pitch % line == 0) pitch += step;  // powers of two would meet in one cache set
        if (innermost) pitch = columns;
        const int64_t size = (hi[0] - lo[0]) * rows * slab();
        if (size > room) {
            room = 0, copy.reset();  // before the larger one: never both at once
            copy = allocate<T>(size + 4 * LANES<T>);  // vectors may read beyond the last row
            room = size;
        }
        if (const int64_t size = before.room(innermost ? slots : pitch); size > beside_room) {
            beside_room = 0, beside = allocate<T>(size);
            beside_room = size;
        }
        values = copy.get();
        order = p.dots ? Order::dots : innermost && !lanes ? Order::columns : Order::rows;
        next_plane = rows * slab(), next_row = slab();
        next_channel = order == Order::columns ? 1 : pitch, next_column = innermost ? slots : 1;
    }

    // Where the input's column w of a row begins, and a row of the copy.
    int64_t row_at(int64_t d, int64_t h, int64_t w) const {
        return sample * stride[0] + d * stride[2] + h * stride[3] + w * stride[4];
    }
    T* copied_row(int64_t d, int64_t h) { return copy.get() + (d - lo[0]) * next_plane + (h - lo[1]) * next_row; }

    // f(d, h), which copies a row, for those that any output meets.
    template <class F> void each_copied(const Asked& asked, F f) {
        for (int64_t d = lo[0]; d < hi[0]; d++)
            for (int64_t h = lo[1]; h < hi[1]; h++)
                if (asked.planes[size_t(d - lo[0])] && asked.rows[size_t(h - lo[1])]) f(d, h);
    }

    // Channels c to end of a row that was copied become what maps make of them; zeros stay zeros.
    void map_rows(int64_t d, int64_t h, int64_t c, int64_t end) {
        const int64_t zeros = from - lo[2], count = until - from;
        if (!before || !count) return;
        T* to = copied_row(d, h) + c * pitch;
        before(to + zeros, {end - c, count}, pitch, {{sample, c, d, h, from}}, 1, 4, beside.get());
        for (; c < end; c++, to += pitch) fill_ends(to, zeros, count);
    }

    // Row by row, as they lie.
    void copy_rows(const Asked& asked) {
        const int64_t zeros = from - lo[2], count = until - from;
        const bool plain = count > 0 && stride[4] == 1 && element == (sizeof(T) == 8 ? TF_F64 : TF_F32);
        const int64_t some = before.some(pitch);
        each_copied(asked, [&](int64_t d, int64_t h) {
            T* to = copied_row(d, h);
            int64_t at = row_at(d, h, from);
            for (int64_t c = 0; c < p.in_channels; c++, to += pitch, at += stride[1]) {
                // Rows of one channel follow one another, those of several lie far apart: a later one is asked for now.
                if (plain) __builtin_prefetch(static_cast<const T*>(input) + at + 2 * stride[3]);
                if (plain) {
                    copy_row(static_cast<const T*>(input) + at, zeros, count, to);
                } else {
                    load_row(element, input, at, stride[4], count, to + zeros);
                    fill_ends(to, zeros, count);
                }
                if (before && ((c + 1) % some == 0 || c + 1 == p.in_channels)) map_rows(d, h, c / some * some, c + 1);
            }
        });
    }

    // Row by row, channels two by two.
    void copy_dots(const Asked& asked) {
        const int64_t zeros = from - lo[2], count = until - from;
        const uint16_t* data = static_cast<const uint16_t*>(input);
        // Whether two channels are a value of 32 bits in memory, too.
        bool together = stride[1] == 1 && stride[4] > 1 && uintptr_t(data) % 4 == 0;
        for (int i : {0, 2, 3, 4}) together = together && stride[i] % 2 == 0;
        each_copied(asked, [&](int64_t d, int64_t h) {
            T* to = copied_row(d, h);
            const int64_t at = row_at(d, h, from);
            if (together)
                copy_block(TF_F32, input, at / 2, {p.in_channels, count}, {1, stride[4] / 2}, to + zeros, pitch);
            for (int64_t c = 0; c < p.in_channels; c++, to += pitch) {
                const uint16_t* row = data + at + 2 * c * stride[1];
                if constexpr (sizeof(T) == 4)
                    if (!together) join(row, row + stride[1], stride[4], count, to + zeros);
                fill_ends(to, zeros, count);
            }
        });
    }

    // Column by column, channels innermost.
    void copy_innermost(const Asked& asked) {
        const int64_t zeros = (from - lo[2]) * slots, count = until - from;
        each_copied(asked, [&](int64_t d, int64_t h) {
            T* to = copied_row(d, h);
            std::fill(to, to + zeros, T(0));
            copy_block(element, input, row_at(d, h, from), {count, p.in_channels}, {stride[4], stride[1]},
                       to + zeros, slots);
            before(to + zeros, {count, p.in_channels}, slots, {{sample, 0, d, h, from}}, 4, 1, beside.get());
            std::fill(to + zeros + count * slots, to + slab(), T(0));
        });
    }

    // Channels lie side by side: those of a row are turned.
    void copy_channels(const Asked& asked) {
        const int64_t zeros = from - lo[2], count = until - from;
        each_copied(asked, [&](int64_t d, int64_t h) {
            T* to = copied_row(d, h);
            copy_block(element, input, row_at(d, h, from), {p.in_channels, count}, {1, stride[4]}, to + zeros, pitch);
            for (int64_t c = 0; c < p.in_channels; c++) fill_ends(to + c * pitch, zeros, count);
            map_rows(d, h, 0, p.in_channels);
        });
    }

    // Neither do: rows of a plane are turned, or are where planes follow one another as rows do.
    void copy_planes(const Asked& asked) {
        const int64_t zeros = from - lo[2], count = until - from, rows = hi[1] - lo[1];
        const bool one = stride[2] == rows * stride[3] && next_plane == rows * slab();
        const int64_t together = one ? hi[0] - lo[0] : 1;
        for (int64_t d = lo[0]; d < hi[0]; d += together)
            for (int64_t c = 0; c < p.in_channels; c++) {
                T* to = copied_row(d, lo[1]) + c * pitch;
                copy_block(element, input, row_at(d, lo[1], from) + c * stride[1], {together * rows, count},
                           {stride[3], stride[4]}, to + zeros, slab());
                for (int64_t r = 0; r < together * rows; r++) fill_ends(to + r * slab(), zeros, count);
            }
        each_copied(asked, [&](int64_t d, int64_t h) { map_rows(d, h, 0, p.in_channels); });
    }

    // Zeros before and behind what was copied of a row.
    void fill_ends(T* row, int64_t zeros, int64_t count) const {
        std::fill(row, row + zeros, T(0));
        std::fill(row + zeros + count, row + pitch, T(0));
    }

    // n values after `zeros`, and zeros up to the pitch. Vectors write beyond it: the next row overwrites that.
    void copy_row(const T* from, int64_t zeros, int64_t n, T* to) const {
        constexpr int L = LANES<T>;
        T *at = to + zeros, *end = to + pitch;
        clear(to, at);
        for (; n >= L; n -= L, from += L, at += L) store(at, load(from));
        if (n) store(at, load_some(from, n)), at += L;
        clear(at, end);
    }

    // Mostly one vector: a loop alone would become a call of memset.
    static void clear(T* at, const T* end) {
        if (at >= end) return;
        store(at, Vec<T>{});
        for (at += LANES<T>; at < end; at += LANES<T>) store(at, Vec<T>{});
    }
};

}  // namespace TF_NAMESPACE

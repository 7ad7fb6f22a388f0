// Blocks: rows of values that a sweep works on at once, read from and written to views.
#pragma once
#include <algorithm>
#include <vector>

#include "convert.h"
#include "map.h"
#include "memory.h"
#include "sweep.h"

namespace TF_NAMESPACE {

constexpr int64_t BLOCK_VALUES = 2048;  // of a block: it stays in the first-level cache with what comes of it
constexpr int64_t LONG_ROW = 512;       // values
constexpr int64_t ITEM_VALUES = 32768;  // that a thread takes at a time, so that taking costs nothing

template <class T> constexpr int COMPUTED = sizeof(T) == 8 ? TF_F64 : TF_F32;

static inline int64_t ceiling(int64_t a, int64_t b) { return a / b + (a % b != 0); }

// Rows and values of each; how far apart they are in a view.
struct Extent {
    int64_t rows, width;
    int64_t values() const { return rows * width; }
};
struct Steps {
    int64_t row, value;
};

// Where a block's values are: rows `pitch` apart, or the same number everywhere.
template <class T> struct Placed {
    const T* at;
    int64_t pitch;
    T number;
};

// The place i along axes first to last of a view, the last one running fastest.
static inline int64_t offset_of(const transfuse_view& v, const int64_t* sizes, int first, int last, int64_t i) {
    int64_t found = 0;
    for (int a = last; a-- > first; i /= sizes[a]) found += i % sizes[a] * v.strides[a];
    return found;
}

// Rows that run along several axes, the last of `axes` fastest; values of a row lie along `axis`, or there is one
// where that is negative.
struct Grid {
    const int64_t* sizes;
    std::vector<int> axes;
    int axis;
};

// How the rows of a grid lie in a view: as many as `run`, from any multiple of it on, are equally far apart.
class Lie {
  public:
    Lie(const Grid& grid, const transfuse_view& v) : steps{0, grid.axis < 0 ? 0 : v.strides[grid.axis]} {
        bool begun = false;
        for (size_t i = grid.axes.size(); i-- > 0;) {
            const int64_t size = grid.sizes[grid.axes[i]], stride = v.strides[grid.axes[i]];
            if (size == 1) continue;
            if (outer.empty() && (!begun || stride == steps.row * run)) {
                if (!begun) steps.row = stride;
                begun = true;
                run *= size;
            } else {
                outer.push_back({size, stride});
            }
        }
    }

    Steps steps;
    int64_t run = 1;

    int64_t offset(int64_t row) const {
        int64_t found = row % run * steps.row;
        row /= run;
        for (const Outer& each : outer) found += row % each.size * each.stride, row /= each.size;
        return found;
    }

    // f(row, rows, offset) for rows that are equally far apart, until all from `row` on are done.
    template <class F> void each_run(int64_t row, int64_t rows, F f) const {
        if (outer.empty()) return f(0, rows, row * steps.row);
        int64_t at[TF_AXES], from = row % run, base = 0, rest = row / run;
        for (size_t i = 0; i < outer.size(); i++) {
            at[i] = rest % outer[i].size, rest /= outer[i].size;
            base += at[i] * outer[i].stride;
        }
        for (int64_t done = 0; done < rows;) {
            const int64_t some = std::min(rows - done, run - from);
            f(done, some, base + from * steps.row);
            done += some, from = 0;
            for (size_t i = 0; i < outer.size(); i++) {
                base += outer[i].stride;
                if (++at[i] < outer[i].size) break;
                base -= outer[i].size * outer[i].stride;
                at[i] = 0;
            }
        }
    }

    bool is_run(int64_t row, int64_t rows) const {
        return outer.empty() || rows == 1 || row / run == (row + rows - 1) / run;
    }

  private:
    struct Outer {
        int64_t size, stride;
    };
    std::vector<Outer> outer;  // axes beyond a run, the nearest first
};

// Rows as columns. In a last vector of fewer values nothing beyond them is read or written.
template <class T> static void turn(const T* from, int64_t pitch, Extent e, T* to, int64_t to_pitch) {
    constexpr int L = LANES<T>;
    for (int64_t r = 0; r < e.rows; r += L) {
        const int64_t rows = std::min<int64_t>(L, e.rows - r);
        for (int64_t w = 0; w < e.width; w += L) {
            const int64_t width = std::min<int64_t>(L, e.width - w);
            const T* at = from + r * pitch + w;
            Vec<T> square[L];
            for (int i = 0; i < L; i++) {
                const T* row = at + std::min<int64_t>(i, rows - 1) * pitch;
                square[i] = width == L ? load(row) : load_some(row, width);
            }
            transpose<T>(square);
            T* here = to + w * to_pitch + r;
            for (int i = 0; i < width; i++, here += to_pitch)
                rows == L ? store(here, square[i]) : store_some(here, square[i], rows);
        }
    }
}

// Two rows value by value.
template <class T> static void interleave(const T* a, const T* b, int64_t n, T* to) {
    constexpr int L = LANES<T>;
    constexpr std::make_integer_sequence<int, L> lanes;
    int64_t i = 0;
    for (; i + L <= n; i += L) {
        store(to + 2 * i, interleave_low(load(a + i), load(b + i), lanes));
        store(to + 2 * i + L, interleave_high(load(a + i), load(b + i), lanes));
    }
    for (; i < n; i++) to[2 * i] = a[i], to[2 * i + 1] = b[i];
}

// Rows that lie across in memory: value by value along a row a tensor is far apart, from row to row it is not.
template <class T>
static void copy_turned(int element, const void* data, int64_t at, Extent e, int64_t step, T* to, int64_t pitch) {
    constexpr int L = LANES<T>;
    with_element(element, [&](auto* type) {
        typedef std::remove_pointer_t<decltype(type)> E;
        const E* from = static_cast<const E*>(data) + at;
        if constexpr (std::is_same<E, T>::value) return turn(from, step, {e.width, e.rows}, to, pitch);
        const int64_t rows = e.rows / L * L, width = e.width / L * L;
        for (int64_t r = 0; r < rows; r += L)
            for (int64_t w = 0; w < width; w += L) {
                Vec<T> square[L];
                for (int i = 0; i < L; i++) square[i] = widened<T>(from + (w + i) * step + r);
                transpose<T>(square);
                for (int i = 0; i < L; i++) store(to + (r + i) * pitch + w, square[i]);
            }
        for (int64_t r = 0; r < e.rows; r++)
            for (int64_t w = r < rows ? width : 0; w < e.width; w++) to[r * pitch + w] = T(from[w * step + r]);
    });
}

// The values of a block to rows `pitch` apart.
template <class T>
static void copy_block(int element, const void* data, int64_t at, Extent e, Steps s, T* to, int64_t pitch) {
    if (e.width == 1 && pitch == 1) e = {1, e.rows}, s = {0, s.row};
    if (e.rows > 1 && s.value > 1 && s.row == 1) return copy_turned(element, data, at, e, s.value, to, pitch);
    if (s.value == 1 && s.row == e.width && pitch == e.width) return load_row(element, data, at, 1, e.values(), to);
    const int64_t read = s.row ? e.rows : 1;
    if (s.value == 0) {
        with_element(element, [&](auto* type) {
            const auto* from = static_cast<const std::remove_pointer_t<decltype(type)>*>(data) + at;
            for (int64_t r = 0; r < read; r++) std::fill(to + r * pitch, to + r * pitch + e.width, T(from[r * s.row]));
        });
    } else {
        for (int64_t r = 0; r < read; r++) load_row(element, data, at + r * s.row, s.value, e.width, to + r * pitch);
    }
    // The same row again and again: what is there already is copied, twice as much each time.
    if (pitch == e.width)
        for (int64_t done = read, some; done < e.rows; done += some) {
            some = std::min(done, e.rows - done);
            memcpy(to + done * pitch, to, some * pitch * sizeof(T));
        }
    else
        for (int64_t r = read; r < e.rows; r++) std::copy(to, to + e.width, to + r * pitch);
}

// Values from `from`, rows one after another, to where they belong.
template <class T> static void write_block(const transfuse_view& v, int64_t at, Extent e, Steps s, const T* from) {
    if (e.width == 1) e = {1, e.rows}, s = {0, s.row};
    if (s.value == 1 && (s.row == e.width || e.rows == 1))
        return store_row(v.element, v.data, at, 1, e.values(), from);
    if (s.row == 1 && v.element == COMPUTED<T>) {
        T* to = static_cast<T*>(v.data) + at;
        if (e.rows == 2 && s.value == 2) return interleave(from, from + e.width, e.width, to);
        if (e.rows >= LANES<T> / 2) return turn(from, e.width, e, to, s.value);
    }
    for (int64_t r = 0; r < e.rows; r++)
        store_row(v.element, v.data, at + r * s.row, s.value, e.width, from + r * e.width);
}

// Rows of a grid from `row` on to where they belong in a view that begins at `at`.
template <class T>
static void write_rows(const transfuse_view& v, const Lie& lie, int64_t at, int64_t row, Extent e, const T* from) {
    lie.each_run(row, e.rows, [&](int64_t r, int64_t rows, int64_t offset) {
        write_block(v, at + offset, {rows, e.width}, lie.steps, from + r * e.width);
    });
}

// What a thread's rooms hold of earlier blocks: the same row again and again, as a value for each channel is where
// channels lie innermost. The next block need not copy it once more.
class Repeated {
  public:
    // Rooms begin elsewhere for blocks of another size.
    void expect(int64_t block) {
        if (block != values) forget();
        values = block;
    }
    void forget() {
        std::fill(held, held + used, Held{});
        used = 0;
    }
    bool has(int k, int64_t at, Extent e) const {
        return held[k].rows >= e.rows && held[k].width == e.width && held[k].at == at;
    }
    void keep(int k, int64_t at, Extent e) {
        held[k] = {at, e.rows, e.width};
        used = std::max(used, k + 1);
    }
    void lose(int k) { held[k] = {}; }

  private:
    struct Held {
        int64_t at = 0, rows = 0, width = 0;
    };
    Held held[UINT8_MAX];
    int used = 0;
    int64_t values = 0;
};

// Views that are read block by block through an expression.
template <class T> class Reader {
  public:
    Reader(const transfuse_view* views, int count, const transfuse_code* code, const Grid& grid)
        : views(views), map(code) {
        for (int k = 0; k < count; k++) lies.emplace_back(grid, views[k]);
    }

    int count() const { return map ? map.operands() : 1; }
    // Values of room that a thread needs for blocks of so many.
    int64_t room(int64_t values) const { return (count() + 1) * values; }

    // The rows of a grid from `row` on, in views that begin at `at`: as they lie, or in `room`; where they are to be
    // `together`, one after another.
    Placed<T> operator()(const int64_t* at, int64_t row, Extent e, T* room, bool together,
                         Repeated* repeated = nullptr) const {
        if (map) {
            into(room + count() * e.values(), e.width, at, row, e, room, repeated);
            return {room + count() * e.values(), e.width, T(0)};
        }
        Placed<T> found = fetch(0, at[0], row, e, room, together);
        if (!found.at) {
            std::fill(room, room + e.values(), found.number);
            found = {room, e.width, T(0)};
        }
        return found;
    }

    // Their images at `to`, rows `pitch` apart. Where the expression reads the running value, it is there.
    void into(T* to, int64_t pitch, const int64_t* at, int64_t row, Extent e, T* room,
              Repeated* repeated = nullptr) const {
        Placed<T> placed[UINT8_MAX];
        if (repeated) repeated->expect(e.values());
        From<T> from[UINT8_MAX];
        bool dense = e.rows == 1 || pitch == e.width;
        for (int k = 0; k < map.operands(); k++) {
            placed[k] = fetch(k, at[k], row, e, room + k * e.values(), e.width < LONG_ROW, repeated);
            dense = dense && (!placed[k].at || placed[k].pitch == e.width);
        }
        const Extent runs = dense ? Extent{1, e.values()} : e;
        for (int64_t r = 0; r < runs.rows; r++) {
            for (int k = 0; k < map.operands(); k++)
                from[k] = {placed[k].at ? placed[k].at + r * placed[k].pitch : nullptr, placed[k].number};
            map(to + r * pitch, runs.width, from);
        }
    }

    // The values of view k: as they lie where they can be read so, else copied to `room`.
    Placed<T> fetch(int k, int64_t at, int64_t row, Extent e, T* room, bool together,
                    Repeated* repeated = nullptr) const {
        const transfuse_view& v = views[k];
        const Lie& lie = lies[k];
        if (!lie.is_run(row, e.rows)) {
            if (repeated) repeated->lose(k);
            lie.each_run(row, e.rows, [&](int64_t r, int64_t rows, int64_t offset) {
                copy_block(v.element, v.data, at + offset, {rows, e.width}, lie.steps, room + r * e.width, e.width);
            });
            return {room, e.width, T(0)};
        }
        Steps s = lie.steps;
        at += lie.offset(row);
        if (e.rows == 1) s.row = s.value == 1 ? e.width : 0;
        if (s.value == 0 && s.row == 0) {
            T number;
            load_row(v.element, v.data, at, 1, 1, &number);
            return {nullptr, 0, number};
        }
        const bool straight = s.value == 1 || (e.width == 1 && s.row == 1);
        if (v.element == COMPUTED<T> && straight && (s.row == e.width || !together))
            return {static_cast<const T*>(v.data) + at, s.row, T(0)};
        if (repeated && repeated->has(k, at, e)) return {room, e.width, T(0)};
        copy_block(v.element, v.data, at, e, s, room, e.width);
        if (repeated) s.row == 0 ? repeated->keep(k, at, e) : repeated->lose(k);
        return {room, e.width, T(0)};
    }

    const transfuse_view* const views;
    const Map<T> map;
    std::vector<Lie> lies;
};

}  // namespace TF_NAMESPACE

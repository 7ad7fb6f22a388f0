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

// Rows that lie across in memory: value by value along a row a tensor is far apart, from row to row it is not.
template <class T>
static void copy_turned(int element, const void* data, int64_t at, Extent e, int64_t step, T* to, int64_t pitch) {
    constexpr int L = LANES<T>;
    with_element(element, [&](auto* type) {
        typedef std::remove_pointer_t<decltype(type)> E;
        const E* from = static_cast<const E*>(data) + at;
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
    if (s.value > 1 && s.row == 1) return copy_turned(element, data, at, e, s.value, to, pitch);
    for (int64_t r = 0; r < e.rows; r++, to += pitch) {
        load_row(element, data, at + r * s.row, s.value, s.value ? e.width : 1, to);
        if (!s.value) std::fill(to + 1, to + e.width, *to);
    }
}

// The values of a block: as they lie where they can be read so, else copied to `room`.
template <class T>
static Placed<T> fetch(const transfuse_view& v, int64_t at, Extent e, Steps s, T* room, bool together) {
    if (e.rows == 1) s.row = s.value == 1 ? e.width : 0;
    if (s.value == 0 && s.row == 0) {
        T number;
        load_row(v.element, v.data, at, 1, 1, &number);
        return {nullptr, 0, number};
    }
    // Short rows apart from one another are brought together, so that they can be gone through as one.
    const bool dense = s.row == e.width, direct = dense || e.width >= LONG_ROW || !together;
    if (v.element == COMPUTED<T> && s.value == 1 && direct) return {static_cast<const T*>(v.data) + at, s.row, T(0)};
    if (s.value == 1 && dense)
        load_row(v.element, v.data, at, 1, e.values(), room);
    else
        copy_block(v.element, v.data, at, e, s, room, e.width);
    return {room, e.width, T(0)};
}

// Values from `from`, rows one after another, to where they belong.
template <class T> static void write_block(const transfuse_view& v, int64_t at, Extent e, Steps s, const T* from) {
    if (s.value == 1 && s.row == e.width)
        return store_row(v.element, v.data, at, 1, e.values(), from);
    for (int64_t r = 0; r < e.rows; r++)
        store_row(v.element, v.data, at + r * s.row, s.value, e.width, from + r * e.width);
}

// Views that are read block by block through an expression. Vectors lie along `axis`, rows along `row_axis`.
template <class T> class Reader {
  public:
    Reader(const transfuse_view* views, const transfuse_code* code, int row_axis, int axis)
        : views(views), map(code), row_axis(row_axis), axis(axis) {}

    int count() const { return map ? map.operands() : 1; }
    // Values of room that a thread needs for blocks of so many.
    int64_t room(int64_t values) const { return (count() + 1) * values; }

    // The values of a block whose views begin at `at`: as they lie, or in `room`.
    Placed<T> operator()(const int64_t* at, Extent e, T* room) const {
        if (map) {
            into(room + count() * e.values(), e.width, at, e, room);
            return {room + count() * e.values(), e.width, T(0)};
        }
        Placed<T> found = fetch(views[0], at[0], e, steps(views[0]), room, false);
        if (!found.at) {
            std::fill(room, room + e.values(), found.number);
            found = {room, e.width, T(0)};
        }
        return found;
    }

    // The images of a block at `to`, rows `pitch` apart. Where the expression reads the running value, it is there.
    void into(T* to, int64_t pitch, const int64_t* at, Extent e, T* room) const {
        Placed<T> placed[UINT8_MAX];
        From<T> from[UINT8_MAX];
        bool dense = e.rows == 1 || pitch == e.width;
        for (int k = 0; k < map.operands(); k++) {
            placed[k] = fetch(views[k], at[k], e, steps(views[k]), room + k * e.values(), true);
            dense = dense && (!placed[k].at || placed[k].pitch == e.width);
        }
        const Extent runs = dense ? Extent{1, e.values()} : e;
        for (int64_t r = 0; r < runs.rows; r++) {
            for (int k = 0; k < map.operands(); k++)
                from[k] = {placed[k].at ? placed[k].at + r * placed[k].pitch : nullptr, placed[k].number};
            map(to + r * pitch, runs.width, from);
        }
    }

    Steps steps(const transfuse_view& v) const { return {row_axis < 0 ? 0 : v.strides[row_axis], v.strides[axis]}; }

    const transfuse_view* const views;
    const Map<T> map;

  private:
    const int row_axis, axis;
};

}  // namespace TF_NAMESPACE

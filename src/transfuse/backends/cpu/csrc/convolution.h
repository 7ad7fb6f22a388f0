// The transposed convolution of a box of outputs, from a zero-padded copy of the inputs it reads.
#pragma once
#include <memory>
#include <vector>

#include "block.h"
#include "convert.h"
#include "memory.h"
#include "microkernel.h"
#include "narrow.h"
#include "pairs.h"
#include "taps.h"
#include "tile.h"
#include "weights.h"

namespace TF_NAMESPACE {

constexpr int64_t PART_BYTES = 200 * 1024;  // of weights, beside a tile in the second-level cache
constexpr int64_t SLABS_BYTES = 16 * 1024;  // of inputs, beside weights in the first-level cache
constexpr double FEW_ZEROS = 0.96;          // products with an input, where leaving out the others is no gain

// What outputs lo <= o < hi of an axis read: for each, its taps and the inputs they meet.
struct Reads {
    struct Meets {
        int64_t tap, input;
    };
    std::vector<std::vector<Meets>> of;  // by output - lo; only inputs that exist
    int64_t lo = INT64_MAX, hi = INT64_MIN;  // inputs met at all

    Reads() = default;
    Reads(const transfuse_program& p, int axis, int64_t inputs, int64_t from, int64_t to) {
        const Taps taps(p, axis);
        for (int64_t o = from; o < to; o++) {
            of.emplace_back();
            taps.each(o, 0, inputs, [&](int64_t k, int64_t i) {
                of.back().push_back({k, i});
                lo = std::min(lo, i);
                hi = std::max(hi, i + 1);
            });
        }
        if (lo > hi) lo = hi = 0;
    }

    // Of the inputs from lo on, those that are met: dilation passes over others.
    std::vector<bool> met() const {
        std::vector<bool> found(size_t(hi - lo), false);
        for (const auto& each : of)
            for (const Meets& meets : each) found[size_t(meets.input - lo)] = true;
        return found;
    }
};

// Outputs start, start + stride, … along the width, and where each tap meets the first of them.
struct WidthPhase {
    struct Meets {
        int64_t tap, input;
    };
    int64_t start, count;
    std::vector<Meets> taps;

    // Neighbouring taps that meet inputs at the outputs lo to hi alone, the longest first; none where all taps are
    // taken at all outputs, zeros beyond the ends included.
    struct Span {
        size_t first, taps;
        int64_t lo, hi;
    };
    std::vector<Span> spans;

    // Short rows meet many of these zeros.
    void list_spans(int64_t inputs) {
        int64_t met = 0;
        for (size_t i = 0; i < taps.size(); i++) {
            const int64_t lo = std::max<int64_t>(0, -taps[i].input), hi = std::min(count, inputs - taps[i].input);
            if (lo >= hi) continue;
            met += hi - lo;
            if (spans.size() && spans.back().lo == lo && spans.back().hi == hi && spans.back().first + spans.back().taps == i)
                spans.back().taps++;
            else
                spans.push_back({i, 1, lo, hi});
        }
        std::stable_sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.hi - a.lo > b.hi - b.lo; });
        if (double(met) > FEW_ZEROS * double(count) * double(taps.size())) spans.clear();
    }
};

static std::vector<WidthPhase> width_phases(const transfuse_program& p, int64_t inputs, int64_t lo,
                                            int64_t hi) {
    const Taps taps(p, 2);
    std::vector<WidthPhase> phases;
    for (int64_t o = lo; o < std::min(lo + p.stride[2], hi); o++) {
        WidthPhase phase = {o, (hi - o + p.stride[2] - 1) / p.stride[2], {}, {}};
        taps.each(o, 1 - phase.count, inputs, [&](int64_t k, int64_t i) { phase.taps.push_back({k, i}); });
        phases.push_back(std::move(phase));
    }
    return phases;
}

template <class T> class Convolution {
  public:
    Convolution(const Layer& layer, const void* input, int element, const int64_t* strides,
                const int64_t* inputs)
        : p(layer), input(input), element(element), channels(conv_channels<T>(layer)) {
        for (int i = 0; i < 5; i++) stride[i] = strides[i];
        for (int a = 0; a < 3; a++) n[a] = inputs[a];
        narrow = is_narrow<T>(p), lanes = is_depthwise<T>(p);
        if (p.paired) pairs.reset(new Pairs(p));
    }

    // All outputs of tile.box of sample tile.n, into tile.values.
    void operator()(Tile<T>& tile) {
        tile.channels = channels;
        const Box& box = tile.box;
        read(tile.n, box);
        for (const WidthPhase& phase : phases)
            // Rows with the same phase use the same weights: one after another, while these are cached.
            for (int64_t pd = 0; pd < std::min(p.stride[0], box.size(0)); pd++)
                for (int64_t ph = 0; ph < std::min(p.stride[1], box.size(1)); ph++) {
                    list_sums(box, phase, pd, ph);
                    add_up(tile, phase);
                }
    }

  private:
    const Layer& p;
    const void* input;
    int element;
    Channels channels;
    int64_t stride[5], n[3];
    bool narrow, lanes;
    std::unique_ptr<Pairs> pairs;
    // [depth][row][channel][width], or where lanes are groups [depth][row][width][channel]; zeros beyond the width's
    // ends; mixed rows come last
    Buffer<T> copy;
    int64_t copied = 0, pitch = 0, first_column = 0, plane_rows = 0;

    // What was read last: the parts of a tile's channels need the same, and tiles of the same rows may.
    int64_t sample = -1;
    Box copied_box = {};
    Reads depth, height;
    int64_t first_plane = 0, end_plane = 0;  // of the copy
    std::vector<bool> planes;                // from the first one on: those that it holds
    std::vector<WidthPhase> phases;

    void read(int64_t from, const Box& box) {
        if (from == sample && box == copied_box) return;
        const bool same_box = box == copied_box;
        const bool same_rows = from == sample && box.same(copied_box, 1) && box.same(copied_box, 2);
        sample = -1, copied_box = {};  // until all is done
        if (!same_box) depth = Reads(p, 0, n[0], box.lo[0], box.hi[0]);
        // All planes where most are asked for, those before the first one counted: the next tile asks for most, too. What
        // is copied follows from the tile alone, so that its rows are paired or not whichever its thread had before.
        const int64_t before = (p.dilation[0] * (p.kernel[0] - 1) - p.padding[0] - box.lo[0]) / p.stride[0];
        const bool most = 2 * (depth.hi - std::min(depth.lo, -before)) > n[0];
        const int64_t first = most ? 0 : depth.lo;
        std::vector<bool> wanted = most ? std::vector<bool>(size_t(n[0]), true) : depth.met();
        if (!same_rows || first != first_plane || wanted != planes) {
            first_plane = first, end_plane = first + int64_t(wanted.size());
            planes = std::move(wanted);
            if (!same_box) lay_out(box);
            read_rows(from, box);
        }
        sample = from;
        copied_box = box;
    }

    void lay_out(const Box& box) {
        height = Reads(p, 1, n[1], box.lo[1], box.hi[1]);
        phases = width_phases(p, n[2], box.lo[2], box.hi[2]);
        for (WidthPhase& phase : phases)
            if (!narrow && !p.careful) phase.list_spans(n[2]);
        list_rows(box, pairs != nullptr);
    }

    void read_rows(int64_t from, const Box& box) {
        if (listed_pairs != (pairs != nullptr)) list_rows(box, pairs != nullptr);
        copy_inputs(from);
        if (pairs && !is_tame()) {
            const int64_t rows = plane_rows;
            list_rows(box, false);
            plane_rows = rows;  // as they were copied
        }
        mix_inputs();
    }

    // A sum over taps for one row of the box or for two; `met` are rows of a plane of the copy.
    struct RowSum {
        int64_t row, second;  // 0: no second
        bool first, minus;
        std::vector<Reads::Meets> met;
    };
    struct MixedRow {
        int64_t row, other;  // rows of the plane, -1: zeros
        int sign;
    };
    std::vector<std::vector<RowSum>> row_sums;  // by phase along the height
    std::vector<MixedRow> mixed_rows;
    bool listed_pairs = false;

    struct Sum {
        int64_t line, second;
        bool first, minus;
        size_t begin, end;  // its taps
    };
    std::vector<Sum> sums;
    std::vector<Tap> taps;

    // The sums of every row of the box, by their phase; rows in pairs where that takes fewer products.
    void list_rows(const Box& box, bool paired) {
        listed_pairs = paired;
        const int64_t s = p.stride[1], rows = box.size(1), apart = paired ? outputs_apart(p) : s;
        row_sums.assign(std::min(s, rows), {});
        mixed_rows.clear();
        for (int64_t phase = 0; phase < int64_t(row_sums.size()); phase++) {
            std::vector<RowSum> parts[PARTS];
            for (int64_t first = phase; first < std::min(phase + apart, rows); first += s)
                for (int64_t h = first; h < rows; h += apart) {
                    if (paired && h + apart < rows && pair(box, h, apart, parts)) {
                        h += apart;
                        continue;
                    }
                    parts[A].push_back({h, 0, true, false, {}});
                    for (const auto& meets : height.of[h])
                        parts[A].back().met.push_back({meets.tap, meets.input - height.lo});
                }
            for (auto& part : parts)
                for (RowSum& sum : part) row_sums[phase].push_back(std::move(sum));
        }
        plane_rows = height.hi - height.lo + int64_t(mixed_rows.size());
    }

    // Rows h and h + apart together, unless one after the other is as good.
    bool pair(const Box& box, int64_t h, int64_t apart, std::vector<RowSum> (&parts)[PARTS]) {
        const int64_t s = p.stride[1], at = box.lo[1] + h + p.padding[1], phase = (at % s + s) % s;
        const size_t one_by_one = height.of[h].size() + height.of[h + apart].size();
        const int64_t first = (at - pairs->last_tap[phase] * p.dilation[1]) / s;
        const auto input = [&](int64_t row) { return first + row * (apart / s); };
        const auto exists = [&](int64_t row) { return input(row) >= 0 && input(row) < n[1]; };
        std::vector<Product> products;
        for (const Product& product : pairs->phases[phase])
            if (exists(product.row) || (product.sign && exists(product.other))) products.push_back(product);
        if (products.size() >= one_by_one) return false;
        parts[A].push_back({h, 0, true, false, {}});
        parts[D].push_back({h + apart, 0, true, false, {}});
        parts[B].push_back({h, apart, false, false, {}});
        parts[C].push_back({h, apart, false, true, {}});
        const auto in_plane = [&](int64_t row) { return exists(row) ? input(row) - height.lo : -1; };
        for (const Product& product : products) {
            int64_t row = in_plane(product.row), other = product.sign ? in_plane(product.other) : -1;
            if (other >= 0) {
                mixed_rows.push_back({row, other, product.sign});
                row = height.hi - height.lo + int64_t(mixed_rows.size()) - 1;
            }
            parts[product.part].back().met.push_back({product.tap, row});
        }
        return true;
    }

    int64_t slab() const { return pitch * (lanes ? channels.slots : p.in_channels); }
    int64_t column() const { return lanes ? channels.slots : 1; }  // from one to the next in the copy

    void copy_inputs(int64_t from_sample) {
        int64_t lo = INT64_MAX, hi = INT64_MIN;
        for (const WidthPhase& phase : phases)
            for (const auto& meets : phase.taps) {
                // Spans read no zeros beyond the ends.
                const int64_t end = meets.input + phase.count;
                lo = std::min(lo, phase.spans.empty() ? meets.input : std::max<int64_t>(0, meets.input));
                hi = std::max(hi, phase.spans.empty() ? end : std::min(n[2], end));
            }
        if (lo > hi) lo = hi = 0;
        first_column = lo;
        constexpr int64_t step = 16 / sizeof(T), line = 64 / sizeof(T);
        pitch = (hi - lo + step - 1) / step * step;
        if (pitch % line == 0) pitch += step;  // powers of two would meet in one cache set
        if (lanes) pitch = hi - lo;
        const int64_t size = (end_plane - first_plane) * plane_rows * slab();
        if (size > copied) {
            copied = 0, copy.reset();  // before the larger one: never both at once
            copy = allocate<T>(size + 4 * LANES<T>);  // vectors may read beyond the last row
            copied = size;
        }
        const int64_t from = std::max<int64_t>(lo, 0), until = std::max(from, std::min(hi, n[2]));
        if (lanes)
            copy_lanes(from_sample, from, until);
        else if (p.dots)
            copy_dots(from_sample, from, until);
        else if (stride[4] == 1 || until - from == 1)
            copy_rows(from_sample, from, until);
        else if (stride[1] == 1)
            copy_channels(from_sample, from, until);
        else
            copy_planes(from_sample, from, until);
    }

    // Where the input's row begins that `from` lies in, and its place in the copy.
    int64_t row_at(int64_t sample, int64_t d, int64_t h, int64_t from) const {
        return sample * stride[0] + d * stride[2] + h * stride[3] + from * stride[4];
    }
    T* copied_row(int64_t d, int64_t h) { return copy.get() + ((d - first_plane) * plane_rows + h - height.lo) * slab(); }

    // f(d, h) for the rows that any output meets.
    template <class F> void each_copied(F f) {
        const auto rows = height.met();
        for (int64_t d = first_plane; d < end_plane; d++)
            for (int64_t h = height.lo; h < height.hi; h++)
                if (pairs || (planes[size_t(d - first_plane)] && rows[size_t(h - height.lo)])) f(d, h);
    }

    // Row by row, as they lie.
    void copy_rows(int64_t from_sample, int64_t from, int64_t until) {
        const int64_t zeros = from - first_column, count = until - from;
        const bool plain = count > 0 && stride[4] == 1 && element == (sizeof(T) == 8 ? TF_F64 : TF_F32);
        each_copied([&](int64_t d, int64_t h) {
            T* to = copied_row(d, h);
            int64_t at = row_at(from_sample, d, h, from);
            for (int64_t c = 0; c < p.in_channels; c++, to += pitch, at += stride[1]) {
                // Rows of one channel follow one another, those of several lie far apart: a later one is asked for now.
                if (plain) __builtin_prefetch(static_cast<const T*>(input) + at + 2 * stride[3]);
                if (plain) {
                    copy_row(static_cast<const T*>(input) + at, zeros, count, to);
                    continue;
                }
                load_row(element, input, at, stride[4], count, to + zeros);
                fill_ends(to, zeros, count);
            }
        });
    }

    // Row by row, channels two by two.
    void copy_dots(int64_t from_sample, int64_t from, int64_t until) {
        const int64_t zeros = from - first_column, count = until - from;
        const uint16_t* data = static_cast<const uint16_t*>(input);
        // Whether two channels are a value of 32 bits in memory, too.
        bool together = stride[1] == 1 && stride[4] > 1 && uintptr_t(data) % 4 == 0;
        for (int i : {0, 2, 3, 4}) together = together && stride[i] % 2 == 0;
        each_copied([&](int64_t d, int64_t h) {
            T* to = copied_row(d, h);
            const int64_t at = row_at(from_sample, d, h, from);
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
    void copy_lanes(int64_t from_sample, int64_t from, int64_t until) {
        const int64_t slots = channels.slots, zeros = (from - first_column) * slots, count = until - from;
        each_copied([&](int64_t d, int64_t h) {
            T* to = copied_row(d, h);
            std::fill(to, to + zeros, T(0));
            copy_block(element, input, row_at(from_sample, d, h, from), {count, p.in_channels}, {stride[4], stride[1]},
                       to + zeros, slots);
            std::fill(to + zeros + count * slots, to + slab(), T(0));
        });
    }

    // Channels lie side by side: those of a row are turned.
    void copy_channels(int64_t from_sample, int64_t from, int64_t until) {
        const int64_t zeros = from - first_column, count = until - from;
        each_copied([&](int64_t d, int64_t h) {
            T* to = copied_row(d, h);
            copy_block(element, input, row_at(from_sample, d, h, from), {p.in_channels, count}, {1, stride[4]}, to + zeros, pitch);
            for (int64_t c = 0; c < p.in_channels; c++) fill_ends(to + c * pitch, zeros, count);
        });
    }

    // Neither do: rows of a plane are turned, or are where planes follow one another as rows do.
    void copy_planes(int64_t from_sample, int64_t from, int64_t until) {
        const int64_t zeros = from - first_column, count = until - from, rows = height.hi - height.lo;
        const bool one = stride[2] == rows * stride[3] && plane_rows == rows;
        const int64_t together = one ? end_plane - first_plane : 1;
        for (int64_t d = first_plane; d < end_plane; d += together)
            for (int64_t c = 0; c < p.in_channels; c++) {
                T* to = copied_row(d, height.lo) + c * pitch;
                copy_block(element, input, row_at(from_sample, d, height.lo, from) + c * stride[1], {together * rows, count},
                           {stride[3], stride[4]}, to + zeros, slab());
                for (int64_t r = 0; r < together * rows; r++) fill_ends(to + r * slab(), zeros, count);
            }
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

    // Whether sums and differences of the copied inputs are as good as the inputs.
    bool is_tame() const {
        const int64_t size = (height.hi - height.lo) * slab();
        bool tame = true;
        for (int64_t d = 0; d < end_plane - first_plane; d++) {
            const T* x = copy.get() + d * plane_rows * slab();
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

    // The mixed rows of every plane: each is a sum or a difference of two slabs [channel][width].
    void mix_inputs() {
        const int64_t size = slab();
        for (int64_t d = 0; d < end_plane - first_plane; d++) {
            const T* plane = copy.get() + d * plane_rows * size;
            T* to = copy.get() + (d * plane_rows + height.hi - height.lo) * size;
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

    // The sums of the rows of one phase along each axis, and their taps.
    void list_sums(const Box& box, const WidthPhase& phase, int64_t pd, int64_t ph) {
        const int64_t cig = p.in_channels / p.groups;
        sums.clear();
        taps.clear();
        // A slab that several spans read stays in the first-level cache: so many at a time.
        const int64_t some = std::max<int64_t>(1, SLABS_BYTES / int64_t(sizeof(T)) / (cig * pitch));
        for (const RowSum& row : row_sums[ph])
            for (int64_t d = pd; d < box.size(0); d += p.stride[0]) {
                const int64_t line = d * box.size(1) + row.row, rows = int64_t(row.met.size());
                const int64_t all = int64_t(depth.of[d].size()) * rows, by = phase.spans.empty() ? all : some;
                for (int64_t from = 0; from < all || (row.first && from == 0); from += std::max<int64_t>(1, by)) {
                    const int64_t until = std::min(from + by, all);
                    const size_t begin = taps.size();
                    const auto list = [&](size_t first, size_t count) {
                        if (from == until) return;
                        size_t at = taps.size();
                        taps.resize(at + size_t(until - from) * count);
                        const Reads::Meets* plane = &depth.of[d][size_t(from / rows)];
                        for (int64_t i = from, r = from % rows; i < until; i++, r++) {
                            if (r == rows) plane++, r = 0;
                            const Reads::Meets &a = *plane, &b = row.met[size_t(r)];
                            const int64_t x = ((a.input - first_plane) * plane_rows + b.input) * slab();
                            const int64_t k = (a.tap * p.tap_rows + b.tap) * p.kernel[2];
                            for (size_t j = first; j < first + count; j++)
                                taps[at++] = {x + (phase.taps[j].input - first_column) * column(),
                                              (k + phase.taps[j].tap) * (lanes ? channels.slots : cig)};
                        }
                    };
                    if (phase.spans.empty()) list(0, phase.taps.size());
                    for (const auto& span : phase.spans) list(span.first, span.taps);
                    const bool first = row.first && from == 0;
                    if (first || taps.size() > begin)
                        sums.push_back({line, row.second, first, row.minus, begin, taps.size()});
                }
            }
    }

    void add_up(Tile<T>& tile, const WidthPhase& phase) {
        const Box& box = tile.box;
        if (lanes) return add_lanes(tile, phase);
        const int64_t cig = p.in_channels / p.groups;
        // Input channels by parts, so that the weights of a part stay in the second-level cache.
        const int64_t all = p.kernel[0] * p.kernel[1] * p.kernel[2];
        const int64_t some = std::max<int64_t>(1, by_phase(p, all));
        int64_t part = std::max<int64_t>(16, PART_BYTES / int64_t(sizeof(T)) / (some * 2 * LANES<T>) / 8 * 8);
        if (part * 2 > cig) part = cig;
        const int64_t per_group = p.out_channels / p.groups;
        const int64_t padded = narrow ? per_group : group_slots<T>(p);
        if (narrow) part = cig;
        const T* first = static_cast<const T*>(p.weights) + tile.part * padded * p.groups * p.taps() * cig;
        for (int64_t slot = 0, wide; slot < padded * p.groups; slot += wide) {
            const int64_t group = slot / padded;
            wide = narrow ? per_group : block_width<T>(per_group, slot % padded);
            const auto add = row_of<T>(wide, p.dots);
            const auto add_few = narrow ? narrow_row_of<T>(per_group) : nullptr;
            const T* weights = first + slot * p.taps() * cig;
            for (int64_t c0 = 0; c0 < cig; c0 += part) {
                const int count = int(std::min(part, cig - c0));
                const T* x = copy.get() + (group * cig + c0) * pitch;
                const T* w = weights + c0 * wide;
                for (const Sum& sum : sums) {
                    const Tap* t = taps.data() + sum.begin;
                    const int met = int(sum.end - sum.begin);
                    const int64_t position = sum.line * box.size(2) + phase.start - box.lo[2];
                    const int64_t second = sum.second * box.size(2) * channels.slots;
                    T* s = tile.values + position * channels.slots + slot;
                    if (p.careful)
                        each_met(phase, t, met, [&](int64_t q, const Tap* some, int taps) {
                            if (narrow)
                                add_few(x + q, 1, some, taps, count, pitch, w, s + q * step(), step());
                            else
                                add(x + q, 1, some, taps, count, pitch, w, s + q * step(), step(), {c0 == 0, 0, false});
                        });
                    else if (narrow)
                        add_few(x, phase.count, t, met, count, pitch, w, s, step());
                    else if (phase.spans.empty() || !met)
                        add(x, phase.count, t, met, count, pitch, w, s, step(),
                            {sum.first && c0 == 0, second, sum.minus});
                    else
                        by_span(phase, met, sum.first && c0 == 0, [&](const auto& span, int64_t first, int some, bool set) {
                            add(x + span.lo, span.hi - span.lo, t + first, some, count, pitch, w, s + span.lo * step(), step(),
                                {set, second, sum.minus});
                        });
                }
            }
        }
    }

    void add_lanes(Tile<T>& tile, const WidthPhase& phase) {
        const T *x = copy.get(), *w = static_cast<const T*>(p.weights);
        for (const Sum& sum : sums) {
            const Tap* t = taps.data() + sum.begin;
            const int met = int(sum.end - sum.begin);
            T* s = tile.at(sum.line * tile.box.size(2) + phase.start - tile.box.lo[2]);
            if (p.careful)
                each_met(phase, t, met, [&](int64_t q, const Tap* some, int taps) {
                    lanes_row(x + q * column(), 1, some, taps, channels.slots, w, s + q * step(), step());
                });
            else
                lanes_row(x, phase.count, t, met, channels.slots, w, s, step());
        }
    }

    // f(span, its first tap, taps, whether its sums are the first of their places), over `met` taps.
    template <class F> void by_span(const WidthPhase& phase, int met, bool set, F f) const {
        size_t each = 0;
        for (const auto& span : phase.spans) each += span.taps;
        const int pairs = met / int(each);  // of taps along depth and height
        const WidthPhase::Span all = {0, 0, 0, phase.count};
        const bool whole = phase.spans[0].hi - phase.spans[0].lo == phase.count;
        if (set && !whole) f(all, 0, 0, true);  // zeros
        int64_t first = 0;
        for (const auto& span : phase.spans) {
            const int some = pairs * int(span.taps);
            f(span, first, some, set && whole && first == 0);
            first += some;
        }
    }

    int64_t step() const { return p.stride[2] * channels.slots; }

    // One position after another, each with the taps that meet an input: with weights that are not
    // finite, a product with a zero that stands for no input would be NaN. f(position, taps, how many)
    template <class F> void each_met(const WidthPhase& phase, const Tap* t, int count, F f) const {
        std::vector<Tap> met;
        for (int64_t q = 0; q < phase.count; q++) {
            met.clear();
            for (int i = 0; i < count; i++) {
                const int64_t x = phase.taps[i % phase.taps.size()].input + q;
                if (x >= 0 && x < n[2]) met.push_back(t[i]);
            }
            f(q, met.data(), int(met.size()));
        }
    }
};

}  // namespace TF_NAMESPACE

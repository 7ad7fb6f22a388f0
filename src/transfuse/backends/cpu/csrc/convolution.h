// The transposed convolution of a box of outputs, from the inputs that it reads.
#pragma once
#include <memory>
#include <vector>

#include "column_sums.h"
#include "inputs.h"
#include "memory.h"
#include "microkernel.h"
#include "narrow.h"
#include "pairs.h"
#include "reads.h"
#include "tile.h"
#include "weights.h"

namespace TF_NAMESPACE {

constexpr int64_t PART_BYTES = 200 * 1024;  // of weights, beside a tile in the second-level cache
constexpr int64_t SLABS_BYTES = 16 * 1024;  // of inputs, beside weights in the first-level cache

template <class T> class Convolution {
  public:
    Convolution(const Layer& layer, const void* input, int element, const int64_t* strides,
                const int64_t* inputs)
        : p(layer), channels(tile_channels<T>(layer)), inputs(layer, input, element, strides, inputs) {
        for (int a = 0; a < 3; a++) n[a] = inputs[a];
        narrow = is_narrow<T>(p), lanes = is_depthwise<T>(p);
        if (narrow) zeros.assign(size_t(channels.slots), T(0));
        if (p.paired) pairs.reset(new Pairs(p));
        if (p.columns) columns.reset(new ColumnSums<T>(p, input, element, strides, inputs));
    }

    // Whether a bias can be part of the sums: where each is a single short one. It would be lost amid large ones.
    static bool takes_bias(const Layer& p) {
        const int64_t channels = p.in_channels / p.groups;
        int64_t count = channels;
        for (int a = 0; a < 3; a++) count *= ceiling(p.kernel[a], Taps(p, a).step);
        return is_narrow<T>(p) || p.columns || (!p.paired && count <= terms(int(channels)));
    }

    // All outputs of tile.box of sample tile.n, into tile.values; `line` is a bias for each slot, if it takes one.
    void operator()(Tile<T>& tile, const T* line) {
        bias = line;
        tile.channels = channels;
        if (columns) return (*columns)(tile, line);
        const Box& box = tile.box;
        read(tile.n, box);
        gaps = (lanes || !narrow) && has_gaps(box);
        if (gaps) fill_gaps(tile);
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
    Channels channels;
    Inputs<T> inputs;
    int64_t n[3];
    bool narrow, lanes;
    const T* bias = nullptr;
    std::vector<T> zeros;  // a bias where there is none
    bool gaps = false;  // whether many outputs of the tile meet no input, and all of them are their bias from the start
    std::unique_ptr<Pairs> pairs;
    std::unique_ptr<ColumnSums<T>> columns;

    // What was read last: the parts of a tile's channels need the same, and tiles of the same rows may.
    int64_t sample = -1;
    Box copied_box = {};
    Reads depth, height;
    Asked asked = {};
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
        const int64_t end = most ? n[0] : depth.hi;
        std::vector<bool> planes = most || pairs ? std::vector<bool>(size_t(end - first), true) : depth.met();
        if (!same_rows || first != asked.lo[0] || planes != asked.planes) {
            asked.lo[0] = first, asked.hi[0] = end;
            asked.planes = std::move(planes);
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
        ask();
        list_rows(box, pairs != nullptr);
    }

    // Rows and columns that outputs read; where rows may be mixed, all of them, as all planes are.
    void ask() {
        asked.lo[1] = height.lo, asked.hi[1] = height.hi;
        asked.rows = pairs ? std::vector<bool>(size_t(height.hi - height.lo), true) : height.met();
        asked.inside = true;
        int64_t lo = INT64_MAX, hi = INT64_MIN;
        for (const WidthPhase& phase : phases) {
            const bool spans = !phase.spans.empty();  // which read nothing beyond the ends
            for (const auto& meets : phase.taps) {
                const int64_t end = meets.input + phase.count;
                asked.inside = asked.inside && (spans || (meets.input >= 0 && end <= n[2]));
                lo = std::min(lo, spans ? std::max<int64_t>(0, meets.input) : meets.input);
                hi = std::max(hi, spans ? std::min(n[2], end) : end);
            }
        }
        if (lo > hi) lo = hi = 0;
        asked.lo[2] = lo, asked.hi[2] = hi;
    }

    void fill_gaps(Tile<T>& tile) const {
        const int64_t positions = tile.box.positions();
        if (!bias) return std::fill(tile.values, tile.at(positions), T(0));
        for (int64_t i = 0; i < positions; i++) std::copy(bias, bias + channels.slots, tile.at(i));
    }

    // Whether so many outputs meet no input that they are not worth a sum each.
    bool has_gaps(const Box& box) const {
        const auto met = [](const Reads& reads) {
            return std::count_if(reads.of.begin(), reads.of.end(), [](const auto& each) { return !each.empty(); });
        };
        int64_t columns_met = 0;
        for (const WidthPhase& phase : phases) columns_met += phase.taps.empty() ? 0 : phase.count;
        return met(depth) * met(height) * columns_met <= box.positions() / 2;
    }

    void read_rows(int64_t from, const Box& box) {
        if (listed_pairs != (pairs != nullptr)) list_rows(box, pairs != nullptr);
        asked.mixed = int64_t(mixed_rows.size());
        inputs.take(from, asked);
        if (pairs && !inputs.is_tame()) list_rows(box, false);
        inputs.mix(mixed_rows);
    }

    // A sum over taps for one row of the box or for two; `met` are rows of a plane of the copy.
    struct RowSum {
        int64_t row, second;  // 0: no second
        bool first, minus;
        std::vector<Reads::Meets> met;
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

    // The sums of the rows of one phase along each axis, and their taps.
    void list_sums(const Box& box, const WidthPhase& phase, int64_t pd, int64_t ph) {
        const int64_t cig = p.in_channels / p.groups;
        sums.clear();
        taps.clear();
        // A slab that several spans read stays in the first-level cache: so many at a time.
        const int64_t slab = cig * std::max<int64_t>(1, asked.hi[2] - asked.lo[2]) * int64_t(sizeof(T));
        const int64_t some = std::max<int64_t>(1, SLABS_BYTES / slab);
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
                            const int64_t x = (a.input - asked.lo[0]) * inputs.next_plane + b.input * inputs.next_row;
                            const int64_t k = (a.tap * p.tap_rows + b.tap) * p.kernel[2];
                            for (size_t j = first; j < first + count; j++)
                                taps[at++] = {x + (phase.taps[j].input - asked.lo[2]) * inputs.next_column,
                                              (k + phase.taps[j].tap) * (lanes ? channels.slots : cig)};
                        }
                    };
                    if (phase.spans.empty()) list(0, phase.taps.size());
                    for (const auto& span : phase.spans) list(span.first, span.taps);
                    const bool first = row.first && from == 0;
                    if ((first && !gaps) || taps.size() > begin)
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
        const int64_t per_group = p.out_channels / p.groups, apart = inputs.apart();
        const int64_t padded = narrow ? per_group : group_slots<T>(p);
        if (narrow) part = cig;
        const T* least = bias ? bias : zeros.data();
        const T* first = static_cast<const T*>(p.weights) + tile.part * padded * p.groups * p.taps() * cig;
        for (int64_t slot = 0, wide; slot < padded * p.groups; slot += wide) {
            const int64_t group = slot / padded;
            const int64_t line = narrow ? per_group : block_width<T>(per_group, slot % padded);
            const bool few = phase.count <= FEW_POSITIONS && !narrow && slot % padded + 4 * LANES<T> <= padded;
            wide = few ? 4 * LANES<T> : line;
            const int64_t next = line * p.taps() * cig;
            const auto add = row_of<T>(wide, inputs.order);
            const auto add_few = narrow ? narrow_row_of<T>(per_group) : nullptr;
            const T* weights = first + slot * p.taps() * cig;
            for (int64_t c0 = 0; c0 < cig; c0 += part) {
                const int count = int(std::min(part, cig - c0));
                const T* x = inputs.values + (group * cig + c0) * inputs.next_channel;
                const T *w = weights + c0 * line, *begins = bias ? bias + slot : nullptr;
                for (const Sum& sum : sums) {
                    const Tap* t = taps.data() + sum.begin;
                    const int met = int(sum.end - sum.begin);
                    const int64_t position = sum.line * box.size(2) + phase.start - box.lo[2];
                    const int64_t second = sum.second * box.size(2) * channels.slots;
                    T* s = tile.values + position * channels.slots + slot;
                    if (p.careful)
                        each_met(phase, t, met, [&](int64_t q, const Tap* some, int taps) {
                            if (narrow)
                                add_few(x + q, 1, some, taps, count, inputs.next_channel, w, least + slot,
                                        s + q * step(), step());
                            else
                                add(x + q, 1, some, taps, count, apart, w, next, s + q * step(), step(),
                                {c0 == 0, 0, false, begins});
                        });
                    else if (narrow)
                        add_few(x, phase.count, t, met, count, inputs.next_channel, w, least + slot, s, step());
                    else if (phase.spans.empty() || !met)
                        add(x, phase.count, t, met, count, apart, w, next, s, step(),
                            {sum.first && c0 == 0, second, sum.minus, begins});
                    else
                        by_span(phase, met, sum.first && c0 == 0, [&](const auto& span, int64_t first, int some, bool set) {
                            add(x + span.lo * inputs.next_column, span.hi - span.lo, t + first, some, count, apart, w, next,
                                s + span.lo * step(), step(), {set, second, sum.minus, begins});
                        });
                }
            }
        }
    }

    void add_lanes(Tile<T>& tile, const WidthPhase& phase) {
        const T *x = inputs.values, *w = static_cast<const T*>(p.weights), *least = bias ? bias : zeros.data();
        for (const Sum& sum : sums) {
            const Tap* t = taps.data() + sum.begin;
            const int met = int(sum.end - sum.begin);
            T* s = tile.at(sum.line * tile.box.size(2) + phase.start - tile.box.lo[2]);
            if (p.careful)
                each_met(phase, t, met, [&](int64_t q, const Tap* some, int taps) {
                    lanes_row(x + q * inputs.next_column, 1, some, taps, channels.slots, w, least, s + q * step(), step());
                });
            else
                lanes_row(x, phase.count, t, met, channels.slots, w, least, s, step());
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
